"""Every way in which a definition can move is seen, and said with what was found and expected."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_vllm import FUSED_MOE, Fake

import infera_shims
from infera_compat import release
from infera_compat.contracts import ANY, Moved, Need, Verdict, hashes, judge
from infera_compat.definitions import Source
from infera_compat.settings import SEAMS
from infera_compat.shims import pick

# What 0.32.0's files parse to that its shim reads; 0.22.1's and 0.23.0's to less.
NODES = 45_000

SOURCE = {
    "method": "class Layer:\n    def forward(self, query, key, out=None):\n        pass\n",
    "classmethod": "class Layer:\n    @classmethod\n    def forward(cls, query, key): ...\n",
    "staticmethod": "class Layer:\n    @staticmethod\n    def forward():\n        pass\n",
    "property": "class Layer:\n    @property\n    def forward(self):\n        pass\n",
    "function": "def forward(query, key, *rest, scale, **more):\n    pass\n",
    "class": "@Registry.register('layer')\nclass Layer(Base):\n    pass\n",
    "variable": "registry: dict[str, type] = {}\n",
}
NEEDS = {
    "method": Need("vllm.a.b:Layer.forward", "method", "w", ("self", "query", "key", "out")),
    "classmethod": Need("vllm.a.b:Layer.forward", "classmethod", "w", ("cls", "query", "key")),
    "staticmethod": Need("vllm.a.b:Layer.forward", "staticmethod", "w", ()),
    "property": Need("vllm.a.b:Layer.forward", "property", "w", ("self",)),
    "function": Need(
        "vllm.a.b:forward", "function", "w", ("query", "key", "*rest", "scale", "**more")
    ),
    "class": Need("vllm.a.b:Layer", "class", "w", decorator="layer"),
    "variable": Need("vllm.a.b:registry", "variable", "w"),
}


@pytest.fixture
def held(tmp_path: Path) -> Callable[[Need, str], Verdict]:
    """Hold vllm/a/b.py of this source against one need."""

    def hold(need: Need, source: str) -> Verdict:
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / "b.py").write_text(source, "utf-8")
        return judge(Source(tmp_path), [need], {})

    return hold


Held = Callable[[Need, str], Verdict]


@pytest.mark.parametrize("kind", NEEDS)
def test_what_stands_as_it_stood_holds(held: Held, kind: str) -> None:
    assert held(NEEDS[kind], SOURCE[kind]) == Verdict(1, 1)


MOVES = {
    "renamed parameter": ("method", "key", "keys"),
    "reordered": ("method", "query, key", "key, query"),
    "one more parameter": ("method", "out=None", "out=None, scale=None"),
    "one parameter fewer": ("method", ", out=None", ""),
    "now keyword-only": ("method", "key, out", "key, *, out"),
    "now takes any": ("method", "out=None", "*out"),
    "the rest renamed": ("function", "**more", "**kwargs"),
    "no longer keyword-only": ("function", "*rest, scale", "scale"),
    "a static method": ("classmethod", "@classmethod", "@staticmethod"),
    "a plain method": ("classmethod", "    @classmethod\n", ""),
    "a class method": ("method", "    def", "    @classmethod\n    def"),
    "a property": ("method", "    def", "    @property\n    def"),
    "the class renamed": ("method", "class Layer", "class OldLayer"),
    "the method renamed": ("method", "def forward", "def forward_cuda"),
    "a function": ("class", "@Registry.register('layer')\nclass Layer(Base)", "def Layer()"),
    "a variable": (
        "class",
        "@Registry.register('layer')\nclass Layer(Base):\n    pass",
        "Layer = 1",
    ),
    "registered otherwise": ("class", "'layer'", "'other'"),
    "no longer registered": ("class", "@Registry.register('layer')\n", ""),
    "the variable renamed": ("variable", "registry", "registry_oot"),
    "the variable a function": (
        "variable",
        "registry: dict[str, type] = {}",
        "def registry(): ...",
    ),
    "imported from elsewhere": (
        "variable",
        "registry: dict[str, type] = {}",
        "from x import registry",
    ),
    "nested in a function": ("variable", "registry", "def make():\n    registry"),
}


@pytest.mark.parametrize(("kind", "before", "after"), MOVES.values(), ids=MOVES)
def test_each_kind_of_move_is_seen(held: Held, kind: str, before: str, after: str) -> None:
    source = SOURCE[kind]
    assert before in source
    verdict = held(NEEDS[kind], source.replace(before, after))
    assert (verdict.held, verdict.of, len(verdict.moved)) == (0, 1, 1)
    text = str(verdict.moved[0])
    assert NEEDS[kind].describe() in text
    assert "a/b.py:" in text or "nothing of that name" in text


def test_a_move_is_described_by_what_was_found_where_and_what_was_expected(held: Held) -> None:
    moved = held(NEEDS["method"], "\n" + SOURCE["method"].replace("key", "keys")).moved[0]
    assert str(moved) == (
        "found method vllm.a.b:Layer.forward(self, query, keys, out=None) at a/b.py:3; "
        "expected method vllm.a.b:Layer.forward(self, query, key, out) (w)"
    )
    moved = held(NEEDS["class"], SOURCE["class"].replace("'layer'", "'other'")).moved[0]
    assert "registered as 'other' at a/b.py:2" in str(moved)
    assert "registered as 'layer'" in str(moved)


def test_a_file_that_is_gone_is_a_move(tmp_path: Path) -> None:
    verdict = judge(Source(tmp_path), [NEEDS["method"]], {})
    assert verdict.moved == (Moved(NEEDS["method"], None),)
    assert hashes(Source(tmp_path), [NEEDS["method"]]) == {"a/b.py": ""}


def test_a_module_that_became_a_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "__init__.py").write_text(SOURCE["variable"])
    assert judge(Source(tmp_path), [NEEDS["variable"]], {}) == Verdict(1, 1)
    assert list(hashes(Source(tmp_path), [NEEDS["variable"]])) == ["a/b/__init__.py"]


def test_a_file_that_this_python_cannot_parse_is_a_move_and_no_error(held: Held) -> None:
    assert held(
        NEEDS["method"], "class Layer:\n    def forward(self, query, key,, out): ...\n"
    ).moved


@pytest.mark.parametrize(
    "block",
    [
        "if {0}:\n{1}else:\n    pass\n",
        "try:\n{1}except ImportError:\n    pass\n",
        "if 0:\n    pass\nelse:\n{1}",
    ],
)
@pytest.mark.parametrize("kind", ["function", "variable", "method"])
def test_a_definition_inside_if_or_try_is_found(held: Held, kind: str, block: str) -> None:
    inner = "".join(f"    {line}\n" for line in SOURCE[kind].splitlines())
    assert not held(NEEDS[kind], block.format("True", inner)).moved


def test_an_open_end_admits_what_follows_and_nothing_before(held: Held) -> None:
    need = Need("vllm.a.b:Layer.forward", "method", "w", ("self", "query", ANY))
    assert not held(need, SOURCE["method"]).moved
    assert not held(need, "class Layer:\n    def forward(self, query): ...\n").moved
    assert held(need, "class Layer:\n    def forward(self, new, query): ...\n").moved
    assert held(need, "class Layer:\n    def forward(self): ...\n").moved


def test_what_the_worker_needs_every_seam_needs() -> None:
    for shim in infera_shims.order(None):
        for op in SEAMS:
            for seam in shim.seams(op):
                assert set(shim.groups["worker"]) < set(shim.group(op, seam))


def test_a_verdict_tells_what_moved_of_some_needs(tmp_path: Path) -> None:
    needs = [Need(f"vllm.a:{name}", "class", "w") for name in ("One", "Two", "Three")]
    (tmp_path / "a.py").write_text("class Two: ...\n")
    verdict = judge(Source(tmp_path), needs, {})
    assert [moved.need for moved in verdict.among(needs[1:])] == [needs[2]]
    assert verdict.among([needs[1]]) == ()


@pytest.mark.parametrize(
    ("need", "holds", "moved"),
    [
        pytest.param(
            Need("vllm.a.b:Layer", "class", "w", bases=("Base",)),
            ["class Layer(Other, Base): ...", "class Layer(there.Base[int]): ..."],
            ["class Layer: ...", "class Layer(NewBase): ..."],
            id="bases",
        ),
        pytest.param(
            Need("vllm.a.b:run", "function", "w", ("x", "scale"), defaults=(("scale", "None"),)),
            ["def run(x, scale=None): ..."],
            ["def run(x, scale): ...", "def run(x, scale=1.0): ..."],
            id="defaults",
        ),
        pytest.param(
            Need("vllm.a.b:registry", "variable", "w", type="dict"),
            ["registry: dict[str, int] = make()", "registry = {}"],
            ["registry: list[str] = []", "registry = ()", "registry = make()"],
            id="type",
        ),
        pytest.param(
            Need("vllm.a.b:Layer.size", "attribute", "w"),
            [
                "class Layer:\n    def __init__(self):\n        self.size = 1",
                "class Layer:\n    def __init__(self):\n        self.size: int = 1",
            ],
            [
                "class Layer:\n    def __init__(self):\n        self.size.x = 1",
                "class Layer:\n    def __init__(self):\n        other.size = 1",
                "class Layer:\n    def setup(self):\n        self.size = 1",
                "class Layer:\n    size = 1",
            ],
            id="attribute",
        ),
    ],
)
def test_bases_defaults_types_and_attributes_are_compared_where_they_are_needed(
    held: Held, need: Need, holds: list[str], moved: list[str]
) -> None:
    assert [held(need, source).moved for source in holds] == [()] * len(holds)
    assert all(held(need, source).moved for source in moved)


def test_a_name_that_is_bound_again_is_what_it_was_bound_to_last(held: Held) -> None:
    again = f"{SOURCE['method']}\n\nLayer = patched(Layer)\n"
    assert "nothing of that name" in str(held(NEEDS["method"], again).moved[0])


def test_files_known_whole_are_not_read_again(held: Held, tmp_path: Path) -> None:
    need = NEEDS["method"]
    held(need, "class Layer:\n    pass\n")
    known = {name: [sha] for name, sha in hashes(Source(tmp_path), [need]).items()}
    assert judge(Source(tmp_path), [need], known) == Verdict(1, 1, known=True)


def test_one_unknown_file_and_all_are_read(tmp_path: Path) -> None:
    needs = [Need(f"vllm.{name}:Thing", "class", "w") for name in ("a", "b")]
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("class Thing: ...\n")
    known = {name: [sha] for name, sha in hashes(Source(tmp_path), needs).items()}
    (tmp_path / "b.py").write_text("class Other: ...\n")
    verdict = judge(Source(tmp_path), needs, known)
    assert [moved.need.symbol for moved in verdict.moved] == ["vllm.b:Thing"]


def test_hashes_recorded_for_another_shim_do_not_count(
    make_fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_fake("v0_23").root
    by_name = {shim.name: shim for shim in infera_shims.order(None)}
    known = {name: [sha] for name, sha in hashes(Source(root), by_name["v0_22"].needs).items()}
    monkeypatch.setattr(infera_shims, "recorded", lambda: {"main": known})
    shim, verdict = pick(release.at(root))
    assert (shim.name, verdict.known) == ("v0_23", False)


@pytest.mark.parametrize("line", infera_shims.LINES)
def test_the_whole_comparison_of_a_vllm_of_full_size_takes_no_longer_than_300_ms(
    make_fake: Callable[..., Fake], line: str
) -> None:
    fake = make_fake(line)
    shim = next(shim for shim in infera_shims.order(None) if shim.name == line)
    names = list(hashes(Source(fake.root), shim.needs))
    for name in names:
        pad(fake.root / name, NODES // len(names))
    took = []
    for _ in range(3):
        start = time.process_time()
        verdict = judge(Source(fake.root), shim.needs, {})
        took.append(time.process_time() - start)
        assert not verdict.moved
    assert min(took) <= 0.3


def pad(file: Path, nodes: int) -> None:
    """Append functions until the file parses to so many more nodes."""
    body = "".join(
        f"    if self.size > {n} and name in config:\n"
        f"        self.values[name].append(transform(name, scale=config[name] * {n}))\n"
        for n in range(8)
    )
    each = sum(1 for _ in ast.walk(ast.parse(f"def padding(self, name, config):\n{body}")))
    functions = (f"\ndef padding_{n}(self, name, config):\n{body}" for n in range(nodes // each))
    with file.open("a", encoding="utf-8") as text:
        text.writelines(functions)


def test_a_moved_parameter_of_one_seam_leaves_the_others_needs_held(fake: Fake) -> None:
    fake.edit(
        f"{FUSED_MOE}/modular_kernel.py",
        "def __init__(self, prepare_finalize, fused_experts)",
        "def __init__(self, finalize, prepare_finalize, fused_experts)",
    )
    shim, verdict = pick(release.at(fake.root))
    hit = [
        (op, seam) for op in SEAMS for seam in shim.seams(op) if verdict.among(shim.group(op, seam))
    ]
    assert hit == [("moe", "modular_kernel")]
