"""Between vLLM and a kernel: what a layer is in the contract's words, and a step as its call.

One adapter an op and process. It decides for each layer, once, whether the kernel takes it; whether
a step goes to the kernel depends on shapes and flags alone, since a CUDA graph keeps the answer.
"""
