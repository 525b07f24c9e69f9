"""The experts of a mixture-of-experts layer."""
