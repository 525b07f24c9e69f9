"""Other attention and MoE kernels for stock vLLM, without a fork."""

__version__ = "0.1.0"
