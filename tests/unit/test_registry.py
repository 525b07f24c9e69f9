"""Kernels of ours and of others: which are found and loaded, and whose fault it is if not."""

from __future__ import annotations

import sys

import pytest
from fake_kernels import BASES, Shelf, kernel

from infera_compat.errors import OFF_SWITCH, CompatError
from infera_compat.kernels import registry
from infera_compat.kernels.kernel import CONTRACT, OPS
from infera_compat.settings import MODES


def refused(name: str) -> str:
    with pytest.raises(CompatError) as caught:
        registry.find().load(name)
    text = str(caught.value)
    assert OFF_SWITCH in text
    return text


def test_without_a_kernel_nothing_is_found(shelf: Shelf) -> None:
    assert registry.find() == registry.Registry({})
    assert registry.find().load_all() == ({}, [])
    assert "(none)" in refused("any")


def test_finding_imports_no_module(shelf: Shelf) -> None:
    shelf.put_kernel("one", "raise AssertionError('imported')")
    assert registry.find().names() == ("one",)
    assert "dist_of_one" not in sys.modules


def test_an_entry_says_whose_it_is(shelf: Shelf) -> None:
    shelf.put("Their_Kernels", "one = their_kernels:KERNEL", None, version="2.3")
    entry = registry.find().entries["one"]
    assert str(entry) == "one of Their_Kernels 2.3"
    assert entry.value == "their_kernels:KERNEL"


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_of_each_op_is_loaded(shelf: Shelf, op: str) -> None:
    shelf.put_kernel("one", kernel("one", op))
    loaded = registry.find().load("one")
    assert (loaded.name, loaded.op, loaded.contract) == ("one", op, CONTRACT)
    assert registry.find().load_all() == ({"one": loaded}, [])


def test_every_op_has_a_class_to_derive_from() -> None:
    assert {op: base for op, (_, base) in registry.BASES.items()} == BASES
    assert set(registry.BASES) == set(OPS)


def test_a_value_may_lead_through_attributes_and_name_extras(shelf: Shelf) -> None:
    source = kernel("one") + "\nclass Holder:\n    KERNEL = KERNEL\n"
    shelf.put("theirs", "one = theirs : Holder.KERNEL [gpu]", source)
    assert registry.find().load("one").name == "one"


GOOD = kernel("one")
BASE_ONLY = """
from infera_compat.kernels.kernel import ATTENTION, Kernel

class A(Kernel):
    name, op = "one", ATTENTION
    def supports(self, spec): return None
    def run(self, call): pass

KERNEL = A()
"""
DUCK = """
class Duck:
    name, op, contract, captures = "one", "attention", 1, True
    def supports(self, spec): return None
    def workspace(self, spec, sizes): return 0
    def warm_up(self, spec, sizes, device, store): pass
    def run(self, call): pass

KERNEL = Duck()
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
        ("from os import nothing_of_the_kind", "cannot import name"),
        ("def (", "SyntaxError"),
        ("raise OSError('libcudart.so.12: no such file')", "OSError: libcudart.so.12"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("raise Exception", "Exception"),
        ("KERNELS = ()", "has no attribute 'KERNEL'"),
        ("KERNEL = None", "an object of the type NoneType"),
        (GOOD.replace("KERNEL = A()", "KERNEL = A"), "the class A"),
        (GOOD + "\ndef make():\n    return A()\nKERNEL = make\n", "the function make"),
        ("import os as KERNEL", "the module os"),
        (DUCK, "an object of the type Duck"),
        (BASE_ONLY, "attention.contract.AttentionKernel"),
        (GOOD.replace('name = "one"', 'name = "two"'), "the name 'two'"),
        (GOOD.replace('    name = "one"\n', ""), "no attribute 'name'"),
        (GOOD.replace('"one"', '"one"; op = "convolution"'), "op 'convolution'"),
        (GOOD.replace('"one"', '"one"; op = ["attention"]'), "op ['attention']"),
        (GOOD.replace('"one"', '"one"; op = "experts"'), "experts.contract.ExpertsKernel"),
        (GOOD.replace('"one"', '"one"; contract = 2'), "one for contract 2"),
        (GOOD.replace('"one"', '"one"; contract = "new"'), "this infera-compat speaks"),
        (GOOD.replace("def run", "def runs"), "TypeError"),
        (None, "No module named 'dist_of_one'"),
    ],
)
def test_a_broken_kernel_is_told_with_its_distribution_and_costs_the_others_nothing(
    shelf: Shelf, source: str | None, words: str
) -> None:
    distribution = shelf.put_kernel("one", source or "")
    if source is None:
        (shelf.site / "dist_of_one.py").unlink()
    shelf.put_kernel("two")
    text = refused("one")
    assert words in text
    assert f"kernel one of {distribution} 1.0" in text
    kernels, broken = registry.find().load_all()
    assert list(kernels) == ["two"]
    assert [(one.entry.distribution, one.missing) for one in broken] == [(distribution, None)]
    assert str(broken[0]).startswith("broken: found ")
    assert words in str(broken[0])


@pytest.mark.parametrize("value", ["", ":", "not a module", "..", ":KERNEL", "dist_of_one:"])
def test_a_value_that_names_no_kernel_is_told(shelf: Shelf, value: str) -> None:
    shelf.put("dist-of-one", f"one = {value}", kernel("one"))
    assert "kernel one of dist-of-one 1.0" in refused("one")


@pytest.mark.parametrize("absent", registry.NOT_HERE)
def test_without_torch_a_kernel_is_not_loaded_and_not_broken(shelf: Shelf, absent: str) -> None:
    words = f"No module named {absent!r}"
    shelf.put_kernel("one", f"raise ModuleNotFoundError({words!r}, name={absent!r})")
    (broken,) = registry.find().load_all()[1]
    assert (broken.missing, str(broken)) == (absent, f"not loaded: {words}")
    assert words in refused("one")


def test_what_is_no_accident_passes_through(shelf: Shelf) -> None:
    shelf.put_kernel("one", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.find().load_all()


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit",
        "def __getattr__(name): raise ValueError(name)",
    ],
)
def test_a_module_that_ends_the_process_or_raises_as_it_likes_is_told(
    shelf: Shelf, source: str
) -> None:
    shelf.put_kernel("one", source)
    shelf.put_kernel("two")
    kernels, broken = registry.find().load_all()
    assert list(kernels) == ["two"]
    assert [each.entry.name for each in broken] == ["one"]


def test_of_two_distributions_with_one_name_neither_is_loaded(shelf: Shelf) -> None:
    for distribution in ("first", "second"):
        shelf.put(distribution, f"one = {distribution}:KERNEL", kernel("one"))
    shelf.put_kernel("two")
    found = registry.find()
    assert found.names() == ("one", "two")
    kernels, broken = found.load_all()
    assert list(kernels) == ["two"]
    assert [str(one) for one in broken] == [
        f"broken: found name taken by {other} 1.0 ({other}:KERNEL), expected a name of its own"
        for other in ("second", "first")
    ]
    text = refused("one")
    assert all(part in text for part in ("first 1.0", "second 1.0", "name taken"))


@pytest.mark.parametrize("written", ["infera-compat", "Infera_Compat"])
def test_ours_keeps_its_name_and_the_other_is_told(
    shelf: Shelf, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shelf.put_kernel("one", "raise AssertionError('imported')")
    (info,) = shelf.site.glob("infera_compat-*")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {written}\nVersion: 9\n")
    (info / "entry_points.txt").write_text("[infera_compat.kernels]\none = ours_of_test:KERNEL\n")
    (shelf.site / "ours_of_test.py").write_text(kernel("one"))
    found = registry.find()
    assert found.entries["one"].distribution == written
    assert found.load("one").name == "one"
    kernels, broken = found.load_all()
    assert list(kernels) == ["one"]
    assert [one.entry.distribution for one in broken] == [other]


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_no_name_for_a_kernel(shelf: Shelf, mode: str) -> None:
    distribution = shelf.put_kernel(mode)
    assert registry.find().entries == {}
    assert f"{distribution} 1.0" in refused(mode)


def test_the_rest_of_a_distribution_that_was_removed_by_halves_is_told(shelf: Shelf) -> None:
    shelf.put_kernel("one")
    (shelf.site / "dist_of_one-1.0.dist-info" / "METADATA").unlink()
    (shelf.site / "dist_of_one.py").unlink()
    assert "No module named 'dist_of_one'" in refused("one")
