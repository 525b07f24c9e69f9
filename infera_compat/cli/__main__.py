"""`python -m infera_compat.cli`: the command line where its script is not on PATH."""

from infera_compat.cli import main

main()
