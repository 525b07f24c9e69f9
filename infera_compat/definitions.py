"""What a release has under a symbol, read from its source by `ast`: nothing is imported.

So a release can be judged before anything of it is patched, without torch and without a GPU.
"""

from __future__ import annotations

import ast
import gc
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SPECIAL = {
    "classmethod": "classmethod",
    "staticmethod": "staticmethod",
    "property": "property",
    "cached_property": "property",
}
"""Decorators that change what a function in a class is, and what they make of it."""
ASYNC = "async "
Defaults = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Definition:
    """One definition of a release.

    symbol: "package.module:Name" or "package.module:Class.name".
    kind: class, function, method, classmethod, staticmethod, property, variable, import, or
        attribute (set on self in the class's constructor); "async function", and so on, for those.
    parameters: names in their order, "/" after positional-only and "*" before keyword-only ones,
        "*args"/"**kwargs" as written; None where it is nothing to call. defaults: by parameter, as
        written in the source.
    decorators: the string arguments of its decorators (the names it is registered under). marks:
        the decorators themselves, as written.
    bases: of a class, their last names. members: its methods and annotated fields in their order, a
        field as "name: annotation".
    type: of a variable or attribute: its annotation without arguments ("dict" for dict[str, int]),
        or, where it has none, the type of the literal that it is set to, or the name that is called
        for it; of an import: where from; else None.
    place: file and line.
    """

    symbol: str
    kind: str
    parameters: tuple[str, ...] | None
    decorators: tuple[str, ...]
    place: str
    defaults: Defaults = ()
    marks: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    type: str | None = None

    def describe(self) -> str:
        """The definition as it was found, in one line, with file and line."""
        line = describe(
            self.kind, self.symbol, self.parameters, self.defaults, self.bases, self.type
        )
        return f"{line}{registered(self.decorators)} at {self.place}"


def describe(
    kind: str,
    symbol: str,
    parameters: tuple[str, ...] | None,
    defaults: Defaults,
    bases: tuple[str, ...],
    type_: str | None,
) -> str:
    """A definition in one line, much as its source would say it."""
    given = dict(defaults)
    inside = bases
    if parameters is not None:
        inside = tuple(f"{name}={given[name]}" if name in given else name for name in parameters)
    call = f"({', '.join(inside)})" if inside or parameters is not None else ""
    return f"{kind} {symbol}{call}{f': {type_}' if type_ else ''}"


def registered(names: Iterable[str]) -> str:
    """The end of a description that says under which names something is registered."""
    return "".join(f", registered as {name!r}" for name in names)


class Source:
    """A release's source: each file is read once, however many shims ask."""

    def __init__(self, root: Path) -> None:
        """`root` is the package's folder; nothing is read yet."""
        self.root = root
        self._trees: dict[str, ast.Module | None] = {}
        self._hashes: dict[str, str] = {}

    def find(self, symbol: str) -> Definition | None:
        """What the release has under a symbol."""
        module, _, name = symbol.partition(":")
        if module not in self._trees:
            self._trees[module] = _parse(self._file(module))
        tree = self._trees[module]
        return _find(tree, symbol, name, self.path(module)) if tree else None

    def hash(self, module: str) -> str:
        """The SHA-256 of a module's file; "" if there is none."""
        if module not in self._hashes:
            file = self._file(module)
            self._hashes[module] = hashlib.sha256(file.read_bytes()).hexdigest() if file else ""
        return self._hashes[module]

    def path(self, module: str) -> str:
        """A module's path below the package, whether it is there or not."""
        file = self._file(module)
        if file is None:
            return "/".join(module.split(".")[1:]) + ".py"
        return file.relative_to(self.root).as_posix()

    def _file(self, module: str) -> Path | None:
        parts = module.split(".")[1:]
        stem = self.root.joinpath(*parts)
        files = (stem.with_suffix(".py"), stem / "__init__.py") if parts else ()
        return next((file for file in files if file.is_file()), None)


def _parse(file: Path | None) -> ast.Module | None:
    """The module's syntax tree; None where there is no file, or none that this Python can read."""
    if file is None:
        return None
    with _no_collection():
        try:
            return ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return None


@contextmanager
def _no_collection() -> Iterator[None]:
    """No search for garbage: a tree is a hundred thousand new objects, and none of them is any.

    In a process that holds torch, those searches would take longer than the parsing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _find(tree: ast.Module, symbol: str, name: str, file: str) -> Definition | None:
    body: Sequence[ast.stmt] = tree.body
    inside_class = False
    *outer, last = name.split(".")
    for part in outer:
        owner = _last(node for node in _flat(body) if part in _names(node))
        if not isinstance(owner, ast.ClassDef):
            return None
        body, inside_class = owner.body, True
    # The last one counts: a name that is bound again is that, whatever it was before.
    node = _last(node for node in _flat(body) if last in _names(node))
    if node is not None and not isinstance(node, ast.Delete):
        return _shape(node, symbol, f"{file}:{node.lineno}", inside_class)
    init = _last(node for node in _flat(body) if "__init__" in _names(node))
    if node is None and inside_class and isinstance(init, ast.FunctionDef):
        for place, type_ in _sets_on_self(init, last):
            return Definition(symbol, "attribute", None, (), f"{file}:{place}", type=type_)
    return None


def _last(nodes: Iterable[ast.stmt]) -> ast.stmt | None:
    found = None
    for node in nodes:
        found = node
    return found


def _sets_on_self(init: ast.FunctionDef, name: str) -> Iterator[tuple[int, str | None]]:
    """The lines where a constructor sets `self.name`, and what type it writes there."""
    typed = {
        id(node.target): _head(node.annotation)
        for node in ast.walk(init)
        if isinstance(node, ast.AnnAssign)
    }
    for node in ast.walk(init):
        # Only what is assigned to is stored to: `self.name = …`, annotated or unpacked as well.
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.lineno, typed.get(id(node))


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
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
    if isinstance(node, ast.Assign | ast.Delete):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.ImportFrom):
        return tuple(alias.asname or alias.name for alias in node.names)
    return ()


def _shape(node: ast.stmt, symbol: str, place: str, inside_class: bool) -> Definition:
    if isinstance(node, ast.ClassDef):
        return Definition(
            symbol,
            "class",
            None,
            _strings(node.decorator_list),
            place,
            marks=tuple(map(ast.unparse, node.decorator_list)),
            bases=tuple(name for name in map(_head, node.bases) if name),
            members=tuple(_members(node)),
        )
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        marks = tuple(map(ast.unparse, node.decorator_list))
        special = (SPECIAL.get(mark.rpartition(".")[2]) for mark in marks)
        kind = next(filter(None, special), "method" if inside_class else "function")
        return Definition(
            symbol,
            f"{ASYNC}{kind}" if isinstance(node, ast.AsyncFunctionDef) else kind,
            _parameters(node.args),
            _strings(node.decorator_list),
            place,
            defaults=_defaults(node.args),
            marks=marks,
        )
    if isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        return Definition(symbol, "import", None, (), place, type=origin)
    if isinstance(node, ast.AnnAssign):
        return Definition(symbol, "variable", None, (), place, type=_head(node.annotation))
    value = node.value if isinstance(node, ast.Assign) else None
    return Definition(symbol, "variable", None, (), place, type=_literal(value))


def _members(node: ast.ClassDef) -> Iterator[str]:
    for member in _flat(node.body):
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            yield member.name
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield f"{member.target.id}: {ast.unparse(member.annotation)}"


def _head(expression: ast.expr) -> str | None:
    """The last name of a base or an annotation, its arguments left out."""
    if isinstance(expression, ast.Subscript):
        return _head(expression.value)
    if isinstance(expression, ast.Attribute):
        return expression.attr
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value.partition("[")[0].rpartition(".")[2]
    return expression.id if isinstance(expression, ast.Name) else None


def _literal(value: ast.expr | None) -> str | None:
    """The type of what a name is set to, as far as its source tells."""
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.Tuple):
        return type(value).__name__.lower()
    if isinstance(value, ast.Call):
        return _head(value.func)
    return type(value.value).__name__ if isinstance(value, ast.Constant) else None


def _parameters(args: ast.arguments) -> tuple[str, ...]:
    names = [arg.arg for arg in args.posonlyargs]
    if names:
        names.append("/")
    names += [arg.arg for arg in args.args]
    if args.vararg:
        names.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        names.append("*")
    names += [arg.arg for arg in args.kwonlyargs]
    return (*names, f"**{args.kwarg.arg}") if args.kwarg else tuple(names)


def _defaults(args: ast.arguments) -> Defaults:
    positional = [*args.posonlyargs, *args.args]
    pairs = list(
        zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)
    )
    pairs += [
        (arg, value)
        for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        if value is not None
    ]
    return tuple((arg.arg, ast.unparse(value)) for arg, value in pairs)


def _strings(decorators: Iterable[ast.expr]) -> tuple[str, ...]:
    calls = (mark for mark in decorators if isinstance(mark, ast.Call))
    constants = (arg for call in calls for arg in call.args if isinstance(arg, ast.Constant))
    return tuple(arg.value for arg in constants if isinstance(arg.value, str))
