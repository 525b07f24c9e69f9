"""One op being bound: what a seam is given, and the guard that makes it whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from infera_compat.errors import CompatError, Refused, words_of
from infera_compat.imports import when_imported
from infera_compat.ledger import Choice, Ledger
from infera_compat.originals import Originals
from infera_compat.settings import Settings

if TYPE_CHECKING:
    from infera_shims.adapters.adapter import Adapter


@dataclass
class Binding:
    """An op in this process; a context in which a part of it is bound.

    choice: what is to be bound; refused here where it fails. ledger: the book to count in.
    settings: what the operator asked for. platform_note: why InferaPlatform could not be taken, if
    it was asked for and could not. fell_back: told when the op went back to stock, and why.
    adapter: the kernel over the model's layers; None passes through. originals: what was replaced
    so far.

    Leaving the context by an error puts every original of the op back. A CompatError (a stop that
    the operator asked for) goes on from there; any other Exception leaves the op stock.
    """

    choice: Choice
    ledger: Ledger
    settings: Settings
    platform_note: str | None
    fell_back: Callable[[Choice, str], None]
    adapter: Adapter | None = None
    originals: Originals = field(default_factory=Originals)

    def once_imported(self, module: str, bind_part: Callable[[ModuleType, Binding], None]) -> None:
        """Run `bind_part(module, self)` in this context, once vLLM has imported `module`.

        Not if the op went back to stock meanwhile.
        """

        def imported(found: ModuleType) -> None:
            with self:
                if self.choice.kernel:
                    bind_part(found, self)

        when_imported(module, imported)

    def __enter__(self) -> Binding:
        """Begin a part."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Restore on any error; swallow what may fall back."""
        if error is None:
            return False
        self.originals.restore()
        if isinstance(error, CompatError) or not isinstance(error, Exception):
            return False
        reason = str(error) if isinstance(error, Refused) else words_of(error)
        self.choice.refuse(reason)
        self.fell_back(self.choice, reason)
        return True
