"""The tables in the repository are what the generator gives: nobody wrote them by hand."""

from __future__ import annotations

from pathlib import Path

from infera_compat.matrix import support
from infera_compat.matrix.checkout import Checkout

CHECKOUT = Checkout(Path(__file__).parents[2])
AGAIN = "run `infera-compat matrix support`"


def test_support_md_is_generated() -> None:
    text = (CHECKOUT.root / "matrix/SUPPORT.md").read_text("utf-8")
    assert text == support.document(support.known(CHECKOUT)), AGAIN


def test_the_readmes_table_is_generated() -> None:
    text = (CHECKOUT.root / "README.md").read_text("utf-8")
    assert text == support.in_readme(text, support.readme_block(support.known(CHECKOUT))), AGAIN
