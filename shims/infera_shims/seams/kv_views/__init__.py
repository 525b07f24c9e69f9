"""Views of a layer's KV cache, `[blocks, block_size, heads, channels]`, whatever its layout.

    regimes.py   how K and V can lie in a cache tensor, and what each backend does in which release
    views.py     the strided views of a tensor in a regime: no copy, no device work
    tensors.py   a small cache made by the release's own shape, stride and layout code
    update.py    writing tokens into a cache by the release's own cache update
    live.py      the same for a layer of a live worker
    probe.py     which regime really holds: marks written by stock, read through the views

A kernel that reads the cache probes once where the model is built, on tensors of its own, and then
takes views of the real one with the regime that was found. What no regime explains is refused.
"""
