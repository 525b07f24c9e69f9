"""A kernel's integration plan: sections that are filled from its spec and from what was measured.

Nothing here is measured: a plan reads the records in matrix/results, and says what is missing.
"""
