"""How each seam is bound, written once for all releases."""
