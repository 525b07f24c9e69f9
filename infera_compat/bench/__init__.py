"""Measures kernels beside stock vLLM: which cells, against which floor, and what came of it."""
