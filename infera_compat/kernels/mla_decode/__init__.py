"""Decoding over the latent cache of multi-head latent attention (MLA)."""
