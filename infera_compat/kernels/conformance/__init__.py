"""Whether a kernel keeps the contract: what `infera-compat verify` runs. torch, and never vLLM."""
