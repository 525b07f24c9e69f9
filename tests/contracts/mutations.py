"""A release's source, changed at one symbol in every way that a contract is there to notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import indent

from infera_compat.contracts import ANY, Need
from infera_compat.definitions import SPECIAL

Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOVED = "moved_elsewhere"


def mutations(text: str, need: Need) -> Iterator[tuple[str, str]]:
    """What was done to the symbol, and the module's text after it."""
    body = _body(ast.parse(text), need)
    if need.kind == "attribute":
        yield from _attribute(text, body, need)
        return
    name = need.symbol.rpartition(":")[2].rpartition(".")[2]
    nodes = [node for node in _flat(body) if name in _names(node)]
    for done, change in _everywhere(need, name):
        yield done, splice(text, {node: change(copy.deepcopy(node)) for node in nodes})
    last = nodes[-1]
    for done, node in _of_kind(last, need):
        yield done, splice(text, {last: [node]})


def splice(text: str, changed: Mapping[ast.stmt, Sequence[ast.stmt]]) -> str:
    """The text with some of its statements replaced, the rest as it was written."""
    lines = text.splitlines(keepends=True)
    for node in sorted(changed, key=lambda node: -node.lineno):
        marks = node.decorator_list if isinstance(node, Named) else ()
        first = min([node.lineno, *(mark.lineno for mark in marks)])
        statements = changed[node] or [ast.Pass()]
        new = "\n".join(ast.unparse(ast.fix_missing_locations(each)) for each in statements)
        lines[first - 1 : node.end_lineno] = [indent(new, " " * node.col_offset) + "\n"]
    return "".join(lines)


def renamed_behind_an_alias(text: str, need: Need) -> str:
    """The change under which the release itself goes on working."""
    return dict(mutations(text, need))["renamed, the old name is an alias"]


Change = Callable[[ast.stmt], list[ast.stmt]]


def _everywhere(need: Need, name: str) -> Iterator[tuple[str, Change]]:
    """What is done to each statement that binds the name."""
    yield "dropped", lambda node: []
    yield "renamed", lambda node: [_renamed(node, name)]
    alias = ast.parse(f"{name} = {MOVED}").body
    # A variable of any type may well be another one by another name.
    if need.kind != "variable" or need.type is not None:
        yield "renamed, the old name is an alias", lambda node: [_renamed(node, name), *alias]
    others = {
        "class": f"class {name}: pass",
        "function": f"def {name}(self): pass",
        "variable": f"{name} = None",
        "import": f"from vllm.{MOVED} import {name}",
    }
    for kind, statement in others.items():
        if kind != need.kind and not (kind == "function" and need.kind == "method"):
            new = ast.parse(statement).body
            yield f"a {kind} of that name", lambda node, new=new: new


def _of_kind(node: ast.stmt, need: Need) -> Iterator[tuple[str, ast.stmt]]:
    if isinstance(node, ast.ClassDef):
        yield from _class(node, need)
    elif isinstance(node, FUNCTIONS):
        yield from _function(node, need)
    elif need.type is not None:
        name = need.symbol.rpartition(":")[2].rpartition(".")[2]
        other = "list" if need.type != "list" else "dict"
        yield "annotated otherwise", ast.parse(f"{name}: {other}[str]").body[0]
        yield "set to another literal", ast.parse(f"{name} = {other}()").body[0]
        yield "of no known type", ast.parse(f"{name} = some.thing").body[0]


def _class(node: ast.ClassDef, need: Need) -> Iterator[tuple[str, ast.stmt]]:
    for base in need.bases:
        changed = copy.deepcopy(node)
        changed.bases = [each for each in node.bases if ast.unparse(each).split(".")[-1] != base]
        yield f"without its base {base}", changed
    if need.decorator is not None:
        changed = copy.deepcopy(node)
        changed.decorator_list = []
        yield "registered under no name", changed
        changed = copy.deepcopy(node)
        for each in (x for mark in changed.decorator_list for x in ast.walk(mark)):
            if isinstance(each, ast.Constant) and each.value == need.decorator:
                each.value = MOVED
        yield "registered under another name", changed


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, need: Need
) -> Iterator[tuple[str, ast.stmt]]:
    other = ast.AsyncFunctionDef if isinstance(node, ast.FunctionDef) else ast.FunctionDef
    yield other.__name__, other(**{name: getattr(node, name, None) for name in node._fields})
    if need.kind != "function":
        for special in ("", *SPECIAL, "functools.cached_property"):
            if SPECIAL.get(special.rpartition(".")[2], "method") == need.kind:
                continue
            changed = copy.deepcopy(node)
            changed.decorator_list = [
                mark for mark in node.decorator_list if ast.unparse(mark) not in SPECIAL
            ]
            if special:
                changed.decorator_list.insert(0, ast.parse(special, mode="eval").body)
            yield f"a {special or 'method'}", changed
    if need.parameters is not None:
        yield from _parameters(node, need, need.parameters)


def _parameters(
    node: ast.FunctionDef | ast.AsyncFunctionDef, need: Need, parameters: tuple[str, ...]
) -> Iterator[tuple[str, ast.stmt]]:
    contracted = [name for name in parameters if name.isidentifier()]

    def change(edit: Callable[[ast.arguments], object]) -> ast.stmt:
        changed = copy.deepcopy(node)
        edit(changed.args)
        return changed

    for name in contracted:
        yield f"parameter {name} renamed", change(lambda args, name=name: _rename(args, name))
        yield f"parameter {name} dropped", change(lambda args, name=name: _drop(args, name))
        yield f"one before {name}", change(lambda args, name=name: _before(args, name))
        if name in dict(need.defaults):
            yield f"another default of {name}", change(lambda args, name=name: _default(args, name))
    for one, two in pairwise(contracted):
        yield (
            f"{one} and {two} swapped",
            change(lambda args, one=one, two=two: _swap(args, one, two)),
        )
    if ANY not in parameters:
        yield "one parameter more", change(_more)
    if sum(arg.arg in contracted for arg in node.args.args) > 1:
        yield "the last keyword-only", change(lambda args: _keyword_only(args, contracted))
        yield (
            "the first positional-only",
            change(lambda args: args.posonlyargs.append(args.args.pop(0))),
        )


def _all(args: ast.arguments) -> Iterator[ast.arg]:
    yield from (*args.posonlyargs, *args.args, *args.kwonlyargs)


def _rename(args: ast.arguments, name: str) -> None:
    for arg in _all(args):
        if arg.arg == name:
            arg.arg = MOVED


def _swap(args: ast.arguments, one: str, two: str) -> None:
    names = {one: two, two: one}
    for arg in _all(args):
        arg.arg = names.get(arg.arg, arg.arg)


def _drop(args: ast.arguments, name: str) -> None:
    for index, arg in enumerate(args.kwonlyargs):
        if arg.arg == name:
            del args.kwonlyargs[index], args.kw_defaults[index]
            return
    position = next(i for i, arg in enumerate(args.args) if arg.arg == name)
    with_default = position - (len(args.args) - len(args.defaults))
    del args.args[position]
    if with_default >= 0:
        del args.defaults[with_default]


def _before(args: ast.arguments, name: str) -> None:
    new = ast.arg(MOVED)
    for index, arg in enumerate(args.kwonlyargs):
        if arg.arg == name:
            args.kwonlyargs.insert(index, new)
            args.kw_defaults.insert(index, ast.Constant(None))
            return
    position = next(i for i, arg in enumerate(args.args) if arg.arg == name)
    with_default = position - (len(args.args) - len(args.defaults))
    args.args.insert(position, new)
    if with_default >= 0:
        args.defaults.insert(with_default, ast.Constant(None))


def _default(args: ast.arguments, name: str) -> None:
    new = ast.Constant(MOVED)
    for index, arg in enumerate(args.kwonlyargs):
        if arg.arg == name:
            args.kw_defaults[index] = new
            return
    position = next(i for i, arg in enumerate(args.args) if arg.arg == name)
    args.defaults[position - (len(args.args) - len(args.defaults))] = new


def _more(args: ast.arguments) -> None:
    args.kwonlyargs.append(ast.arg(MOVED))
    args.kw_defaults.append(ast.Constant(None))


def _keyword_only(args: ast.arguments, contracted: Sequence[str]) -> None:
    """The last contracted positional one, and all after it, behind a "*"."""
    last = max(i for i, arg in enumerate(args.args) if arg.arg in contracted)
    without = len(args.args) - len(args.defaults)
    defaults: list[ast.expr | None] = [*[None] * without, *args.defaults]
    args.kwonlyargs[:0], args.kw_defaults[:0] = args.args[last:], defaults[last:]
    args.args, args.defaults = args.args[:last], [x for x in defaults[:last] if x is not None]
    args.vararg = None


def _attribute(text: str, body: Sequence[ast.stmt], need: Need) -> Iterator[tuple[str, str]]:
    name = need.symbol.rpartition(".")[2]
    init = [n for n in _flat(body) if isinstance(n, ast.FunctionDef) and n.name == "__init__"][-1]
    renamed = _Attribute(name).visit(copy.deepcopy(init))
    after = {
        "renamed": "",
        "dropped": "",
        "a property": f"@property\ndef {name}(self): return self.{MOVED}",
        "set later": f"def later(self): self.{name} = self.{MOVED}",
        "a method": f"def {name}(self): return self.{MOVED}",
    }
    for done, statement in after.items():
        node = _Dropped(name).visit(copy.deepcopy(init)) if done == "dropped" else renamed
        yield done, splice(text, {init: [node, *ast.parse(statement).body]})


class _Attribute(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == self.name and ast.unparse(node.value) == "self":
            node.attr = MOVED
        return node


class _Dropped(_Attribute):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        super().visit_Attribute(node)
        dropped = node.attr == MOVED and isinstance(node.ctx, ast.Store)
        return ast.Name(MOVED, ast.Store()) if dropped else node


def _body(tree: ast.Module, need: Need) -> Sequence[ast.stmt]:
    """The statements among which the symbol's own is."""
    body: Sequence[ast.stmt] = tree.body
    for part in need.symbol.partition(":")[2].split(".")[:-1]:
        owners = [n for n in _flat(body) if isinstance(n, ast.ClassDef) and n.name == part]
        body = owners[-1].body
    return body


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try):
                yield from _flat(getattr(node, inner, ()))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, Named):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _renamed(node: ast.stmt, name: str) -> ast.stmt:
    if isinstance(node, Named):
        node.name = MOVED
    for target in getattr(node, "targets", [getattr(node, "target", None)]):
        if isinstance(target, ast.Name) and target.id == name:
            target.id = MOVED
    return node
