"""Kernels, and the contract that they are written against: no vLLM anywhere in here.

Importing this package, a contract or the registry imports no torch; a kernel's own module does.
"""
