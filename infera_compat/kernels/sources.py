"""Which sources a kernel is: a digest that a record carries, so that it speaks for no others.

Read as text, and nothing is imported: what a record says can be held against a kernel that was not
loaded.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infera_compat.errors import CompatError

if TYPE_CHECKING:
    from infera_compat.kernels.kernel import Kernel

CORE = "infera_compat"
KERNELS = "infera_compat.kernels"
SPOKEN = (f"{KERNELS}.kernel", f"{KERNELS}.store", f"{KERNELS}.registry", f"{KERNELS}.table")
CONTRACT = "contract"
"""The contract's modules are no part of a kernel: the number Kernel.contract stands for them."""

TUNED = "configs"
"""A folder of JSON files beside a module: what a tuner found, which changes what a kernel runs."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest(kernel: Kernel[Any, Any, Any]) -> str:
    """The digest of a kernel's sources; see `of`."""
    return of(type(kernel).__module__)


@cache
def of(module: str) -> str:
    """A digest, of 16 hexadecimal digits, over the code of a kernel's module.

    With every module of the same top-level package that it imports, and that those import, and the
    tuned settings beside them. Comments and docstrings don't count: a record outlives them. Raises
    CompatError where a source can't be found or read.
    """
    reached = _reached(module)
    parts = {name: _code(file) for name, file in reached.items()}
    for place in {file.parent for file in reached.values()}:
        files = (place / TUNED).glob("*.json")
        parts |= {f"{place.name}/{TUNED}/{file.name}": _text(file) for file in files}
    told = "".join(f"{name}\n{part}\n" for name, part in sorted(parts.items()))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def folder(module: str) -> Path:
    """The folder that a module lies in; CompatError where its file can't be found."""
    return _required(module).parent


def _reached(module: str) -> dict[str, Path]:
    """The module and what it imports of its own package, each with its file."""
    reached = {module: _required(module)}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        for other in _imported(name, reached[name]):
            file = _file(other) if other not in reached and _counts(other, module) else None
            if file is not None:
                reached[other] = file
                waiting.append(other)
    return reached


def _counts(name: str, module: str) -> bool:
    """Whether a module that is imported is a part of the kernel."""
    package = module.partition(".")[0]
    if name.partition(".")[0] != package:
        return False
    if package != CORE:
        return True
    return (
        name.startswith(f"{KERNELS}.")
        and name not in SPOKEN
        and name.rpartition(".")[2] != CONTRACT
    )


def _imported(module: str, file: Path) -> Iterator[str]:
    """The names that a module's code may import: of `from a import b`, both a and a.b."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])]) if node.level else node.module
            yield str(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _required(module: str) -> Path:
    file = _file(module)
    if file is None:
        raise _unreadable(module, f"no file of the module {module}")
    return file


def _file(module: str) -> Path | None:
    """A module's source, found without importing it or the packages that it lies in."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module that was made by hand
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for place in spec.submodule_search_locations or ():
        path = Path(place, *rest)
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
    return None


def _code(file: Path) -> str:
    """A source without comments, docstrings, empty lines and spaces at the ends of lines."""
    text = _text(file)
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(_tree(file)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            _cut(lines, node.body[0])
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _cut(lines: list[str], told: ast.stmt) -> None:
    """Take a docstring out of the lines of its source; code may stand beside it."""
    first, last = told.lineno - 1, (told.end_lineno or told.lineno) - 1
    # ast counts columns in bytes.
    before = lines[first].encode()[: told.col_offset].decode()
    after = lines[last].encode()[told.end_col_offset :].decode()
    lines[first : last + 1] = [""] * (last - first) + [before + after]


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(_text(file))
    except (SyntaxError, ValueError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error


def _text(file: Path) -> str:
    try:
        with tokenize.open(file) as source:
            return source.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error


def _unreadable(what: object, found: str) -> CompatError:
    return CompatError(
        f"the source of {what} can't be read",
        found=found,
        expected="the Python source of a kernel, where it is installed",
        do="Install the kernel's distribution anew.",
    )
