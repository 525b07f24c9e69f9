"""The command line, `infera-compat`. Its libraries come with the extra `cli`."""

from __future__ import annotations

import sys

EXTRA = ("typer", "rich")


def main() -> None:
    """Run the command line; without its extra, say which `pip install` brings it (status 2)."""
    try:
        from infera_compat.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        print(
            f"infera-compat: the command line needs {error.name}, which is not installed.\n"
            "  pip install 'infera-compat[cli]'\n"
            "The plugin itself works without it.",
            file=sys.stderr,
        )
        sys.exit(2)
    app()
