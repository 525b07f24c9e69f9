"""What the operator asked for and did not get, as errors: each says what would have been right.

Whether one stops the start or is only said, who asked for it decides (infera_compat/install.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from infera_compat.errors import CompatError, words_of
from infera_compat.ledger import Choice, Ledger
from infera_compat.settings import AUTO, OFF, PASSTHROUGH

if TYPE_CHECKING:
    from infera_compat.contracts import Moved


def bound(choices: Iterable[Choice], strict: bool) -> None:
    """Raise CompatError where a seam was to be had and none was: for a kernel asked for by name.

    strict: for what passes through, too.
    """
    for choice in choices:
        named = choice.asked not in (AUTO, PASSTHROUGH, OFF)
        wanted = named or (strict and choice.asked == PASSTHROUGH)
        if wanted and choice.kernel is None:
            raise CompatError(
                f"{choice.asked} was asked for {choice.op} and can't be bound",
                found=str(choice.why_not),
                expected="a seam of this release that takes it",
                do=f"Unset INFERA_{choice.op.upper()}, or INFERA_STRICT.",
            )


def some_layer(ops: Iterable[str], ledger: Ledger) -> None:
    """Raise CompatError where a kernel that was asked for by name for one of `ops` got no layer."""
    for op in ops:
        choice = ledger.choices[op]
        if choice.asked == AUTO or ledger.bound(op):
            continue
        layers = ledger.of(op)
        why = f"{layers[0].layer}: {layers[0].why_not}" if layers else "no such layers"
        raise CompatError(
            f"{choice.asked} was asked for {op} and got none of {len(layers)} layers",
            found=why,
            expected="a layer that it takes",
            do=f"Unset INFERA_{op.upper()}.",
        )


def every_layer(ledger: Ledger) -> None:
    """Raise CompatError where a layer of an op that something was asked for stays stock."""
    for choice in ledger.choices.values():
        stock = [layer for layer in ledger.of(choice.op) if not layer.bound]
        if choice.asked in (AUTO, OFF) or not stock:
            continue
        raise CompatError(
            f"INFERA_STRICT: {choice.asked} does not cover every layer of {choice.op}",
            found=f"{len(stock)} stock layers, first {stock[0].layer} ({stock[0].why_not})",
            expected="all of them bound",
            do="Unset INFERA_STRICT to serve with a mix.",
        )


def moved(
    release: str, shim: str, contracts: int, fates: Iterable[tuple[Choice, tuple[Moved, ...]]]
) -> CompatError | None:
    """What is to be said of the seams that were to be taken and moved; None where none did.

    contracts: how many the shim asks for. fates: each op's choice, and what moved of its seams.
    """
    symbols: dict[str, Moved] = {}
    said: list[str] = []
    for choice, those in fates:
        if choice.asked == OFF or not those:
            continue
        symbols |= {x.need.symbol: x for x in those}
        said.append(f"{choice.op} {'is bound otherwise' if choice.kernel else 'stays stock'}")
    if not said:
        return None
    return CompatError(
        f"vLLM {release} is not what shim {shim} was written for; {' and '.join(said)}",
        found="; ".join(str(each) for each in symbols.values()),
        expected=f"all {contracts} contracts of {shim} to hold",
        do="Upgrade infera-compat, or install a vLLM that it lists.",
    )


def accident(op: str, what: str, error: BaseException) -> CompatError:
    """What is said where an automatic choice breaks."""
    found, expected = words_of(error), "no accident"
    if isinstance(error, CompatError):
        what, found, expected = f"{what}: {error.what}", error.found, error.expected
    else:
        what = f"{what} failed"
    return CompatError(
        f"{op} stays stock: {what}",
        found=found,
        expected=expected,
        do=f"Please report this; INFERA_{op.upper()}=off keeps it from being tried.",
    )
