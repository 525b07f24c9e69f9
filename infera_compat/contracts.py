"""Is the seam still what the shim was written against? Says exactly what moved if not.

Nothing is imported: a release's definitions are read from its source by `ast`, so that a release
can be judged before anything of it is patched, and without a GPU.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ANY = "..."
"""In Need.parameters: whatever follows is not ours to care about."""


@dataclass(frozen=True)
class Need:
    """One thing that a shim touches, as it must be found.

    op: what it serves: "attention", "moe", or "worker" (where the model is built; every op).
    symbol: "package.module:Name" or "package.module:Class.name".
    kind: class, function, method, classmethod, staticmethod, property, variable, or attribute (set
        on self in the class's constructor).
    parameters: names in their order, "*" before keyword-only ones, "*args"/"**kwargs" as written;
        None where a call is not what is needed; a last ANY admits what follows.
    decorator: a string argument that some decorator must have (a registered op's name).
    why: what binding does with it.
    """

    op: str
    symbol: str
    kind: str
    why: str
    parameters: tuple[str, ...] | None = None
    decorator: str | None = None

    @property
    def module(self) -> str:
        """The module part of the symbol."""
        return self.symbol.partition(":")[0]

    def describe(self) -> str:
        """The definition that is expected, in one line."""
        signature = "" if self.parameters is None else f"({', '.join(self.parameters)})"
        registered = f", registered as {self.decorator!r}" if self.decorator else ""
        return f"{self.kind} {self.symbol}{signature}{registered}"


@dataclass(frozen=True)
class Definition:
    """What a release has under a symbol: its kind, parameters, decorators' strings, and place."""

    symbol: str
    kind: str
    parameters: tuple[str, ...] | None
    decorators: tuple[str, ...]
    place: str

    def describe(self) -> str:
        """The definition as it was found, in one line, with file and line."""
        signature = "" if self.parameters is None else f"({', '.join(self.parameters)})"
        registered = "".join(f", registered as {name!r}" for name in self.decorators)
        return f"{self.kind} {self.symbol}{signature}{registered} at {self.place}"


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

    def moved_for(self, op: str) -> tuple[Moved, ...]:
        """What moved that `op` needs, the worker's needs included: every op stands on those."""
        return tuple(moved for moved in self.moved if moved.need.op in (op, "worker"))


def judge(root: Path, needs: Sequence[Need], recorded: Mapping[str, Iterable[str]]) -> Verdict:
    """Hold the release whose package is `root` against `needs`.

    recorded: for each file below the package ("platforms/interface.py"), the SHA-256 of every
    recorded release's version of it: files that all stand there were judged back then.
    """
    files = hashes(root, needs)
    if all(sha in recorded.get(name, ()) for name, sha in files.items()):
        return Verdict(len(needs), len(needs), known=True)
    moved = tuple(
        Moved(need, found)
        for need, found in zip(needs, definitions(root, needs), strict=True)
        if not _meets(found, need)
    )
    return Verdict(len(needs) - len(moved), len(needs), moved)


def hashes(root: Path, needs: Iterable[Need]) -> dict[str, str]:
    """The SHA-256 of each file that `needs` name, by its path below the package; "" if missing."""
    found = {}
    for module in sorted({need.module for need in needs}):
        file = source(root, module)
        name = _below(root, module)
        found[name] = hashlib.sha256(file.read_bytes()).hexdigest() if file else ""
    return found


def definitions(root: Path, needs: Sequence[Need]) -> list[Definition | None]:
    """What the release has under each need's symbol, in their order."""
    trees: dict[str, ast.Module | None] = {}
    found = []
    for need in needs:
        module, _, name = need.symbol.partition(":")
        if module not in trees:
            trees[module] = _parse(source(root, module))
        tree = trees[module]
        found.append(_find(tree, need.symbol, name, _below(root, module)) if tree else None)
    return found


def _parse(file: Path | None) -> ast.Module | None:
    """The module's syntax tree; None where there is no file, or none that this Python can read."""
    if file is None:
        return None
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return None


def source(root: Path, module: str) -> Path | None:
    """The source file of a module of the package at `root`, or None."""
    parts = module.split(".")[1:]
    for file in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
        if parts and file.is_file():
            return file
    return None


def _below(root: Path, module: str) -> str:
    file = source(root, module)
    return file.relative_to(root).as_posix() if file else "/".join(module.split(".")[1:]) + ".py"


def _find(tree: ast.Module, symbol: str, name: str, file: str) -> Definition | None:
    body: Sequence[ast.stmt] = tree.body
    inside_class = False
    *outer, last = name.split(".")
    for part in outer:
        owner = next(
            (n for n in _flat(body) if isinstance(n, ast.ClassDef) and n.name == part), None
        )
        if owner is None:
            return None
        body, inside_class = owner.body, True
    for node in _flat(body):
        if last in _names(node):
            kind, parameters, decorators = _shape(node, inside_class)
            return Definition(symbol, kind, parameters, decorators, f"{file}:{node.lineno}")
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for line in _sets_on_self(node, last):
                return Definition(symbol, "attribute", None, (), f"{file}:{line}")
    return None


def _sets_on_self(init: ast.FunctionDef, name: str) -> Iterable[int]:
    """The lines where a constructor sets `self.name`."""
    for node in ast.walk(init):
        # Only what is assigned to is stored to: `self.name = …`, annotated or unpacked as well.
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.lineno


def _flat(body: Sequence[ast.stmt]) -> Iterable[ast.stmt]:
    """The statements of a body, and of the plain if and try blocks in it."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _flat([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _flat([*node.body, *node.orelse, *node.finalbody])


def _names(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return (node.name,)
    if isinstance(node, ast.AnnAssign):
        return (node.target.id,) if isinstance(node.target, ast.Name) else ()
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    return ()


def _shape(
    node: ast.stmt, inside_class: bool
) -> tuple[str, tuple[str, ...] | None, tuple[str, ...]]:
    if isinstance(node, ast.ClassDef):
        return "class", None, _strings(node.decorator_list)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        marks = {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}
        special = marks & {"classmethod", "staticmethod", "property"}
        kind = next(iter(special), "method" if inside_class else "function")
        return kind, _parameters(node.args), _strings(node.decorator_list)
    return "variable", None, ()


def _parameters(args: ast.arguments) -> tuple[str, ...]:
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    if args.vararg:
        names.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        names.append("*")
    names += [arg.arg for arg in args.kwonlyargs]
    return (*names, f"**{args.kwarg.arg}") if args.kwarg else tuple(names)


def _strings(decorators: Iterable[ast.expr]) -> tuple[str, ...]:
    calls = (mark for mark in decorators if isinstance(mark, ast.Call))
    constants = (arg for call in calls for arg in call.args if isinstance(arg, ast.Constant))
    return tuple(arg.value for arg in constants if isinstance(arg.value, str))


def _meets(found: Definition | None, need: Need) -> bool:
    if found is None or found.kind != need.kind:
        return False
    if need.decorator is not None and need.decorator not in found.decorators:
        return False
    if need.parameters is None:
        return True
    if need.parameters[-1:] == (ANY,):
        fixed = need.parameters[:-1]
        return (found.parameters or ())[: len(fixed)] == fixed
    return found.parameters == need.parameters
