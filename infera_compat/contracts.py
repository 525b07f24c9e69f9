"""Is the seam still what the shim was written against? Says exactly what moved if not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infera_compat.definitions import Defaults, Definition, Source, describe, registered

ANY = "..."
"""In Need.parameters: whatever follows is not ours to care about."""


@dataclass(frozen=True)
class Need:
    """One thing that a shim touches, as it must be found; the terms are Definition's.

    why: what binding does with it.
    parameters: None where a call is not what is needed; a last ANY admits what follows.
    defaults: of those parameters whose default our own code repeats.
    decorator: a string argument that some decorator must have (a registered op's name).
    bases: names that must be among the class's bases.
    type: None where any will do.
    """

    symbol: str
    kind: str
    why: str
    parameters: tuple[str, ...] | None = None
    defaults: Defaults = ()
    decorator: str | None = None
    bases: tuple[str, ...] = ()
    type: str | None = None

    @property
    def module(self) -> str:
        """The module part of the symbol."""
        return self.symbol.partition(":")[0]

    def describe(self) -> str:
        """The definition that is expected, in one line."""
        line = describe(
            self.kind, self.symbol, self.parameters, self.defaults, self.bases, self.type
        )
        return line + registered((self.decorator,) if self.decorator else ())

    def met_by(self, found: Definition | None) -> bool:
        """Whether a release's definition is what is needed."""
        if found is None or found.kind != self.kind:
            return False
        if self.decorator is not None and self.decorator not in found.decorators:
            return False
        if self.type is not None and self.type != found.type:
            return False
        if not set(self.bases) <= set(found.bases):
            return False
        if not set(self.defaults) <= set(found.defaults):
            return False
        return self.parameters is None or self._takes(found.parameters or ())

    def _takes(self, parameters: tuple[str, ...]) -> bool:
        wanted = self.parameters or ()
        if wanted[-1:] == (ANY,):
            return parameters[: len(wanted) - 1] == wanted[:-1]
        return parameters == wanted


@dataclass(frozen=True)
class Moved:
    """A need that a release does not meet."""

    need: Need
    found: Definition | None

    def __str__(self) -> str:
        """Found, expected, and what it was needed for."""
        found = (
            "nothing of that name in a readable source"
            if self.found is None
            else self.found.describe()
        )
        return f"found {found}; expected {self.need.describe()} ({self.need.why})"


@dataclass(frozen=True)
class Verdict:
    """How a release stands to a shim's needs.

    held, of: needs that are met, and how many there are.
    moved: the others.
    known: the files are those of a recorded release, so the definitions were not read again.
    """

    held: int
    of: int
    moved: tuple[Moved, ...] = ()
    known: bool = False

    def among(self, needs: Iterable[Need]) -> tuple[Moved, ...]:
        """What moved of `needs`."""
        wanted = set(needs)
        return tuple(moved for moved in self.moved if moved.need in wanted)


def judge(source: Source, needs: Sequence[Need], recorded: Mapping[str, Iterable[str]]) -> Verdict:
    """Hold a release against `needs`.

    recorded: for each file below the package ("platforms/interface.py"), the SHA-256 of every
    recorded release's version of it: files that all stand there were judged back then.
    """
    files = hashes(source, needs)
    if all(sha in recorded.get(name, ()) for name, sha in files.items()):
        return Verdict(len(needs), len(needs), known=True)
    found = ((need, source.find(need.symbol)) for need in needs)
    moved = tuple(
        Moved(need, definition) for need, definition in found if not need.met_by(definition)
    )
    return Verdict(len(needs) - len(moved), len(needs), moved)


def hashes(source: Source, needs: Iterable[Need]) -> dict[str, str]:
    """The SHA-256 of each file that `needs` name, by its path below the package; "" if missing."""
    modules = sorted({need.module for need in needs})
    return {source.path(module): source.hash(module) for module in modules}
