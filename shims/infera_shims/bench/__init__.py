"""What the benches run: objects of the installed stock vLLM, and a kernel through its adapter."""
