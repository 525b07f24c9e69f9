"""The matrix: every supported release run on a CPU, each op by each seam, against stock.

Works in a checkout, never in a process of vLLM; `infera-compat matrix` is its command line.
"""
