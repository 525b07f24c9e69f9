"""Kernels bound in real engines on a CPU: they run, and generate what stock generates.

In float32, where stock's kernels and the reference ones round alike to the fifth digit: a wrong
mask, page, expert or weight shows as other text. In bfloat16 the tiny models' best two tokens are
often so near each other that rounding picks another one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import DENSE, HERE, MOE, Run

from infera_compat.release import Release
from infera_shims.engines import child

ATTENTION, EXPERTS = "reference_attention", "reference_experts"
FLOAT32 = {"dtype": "float32", **HERE}
BOUND = 1e-3
"""Of logprobs, absolute. Seen: 1e-5."""

WAYS = {
    "attention": ((DENSE, MOE), False, {"INFERA_ATTENTION": ATTENTION}),
    "attention by layer": (
        (DENSE,),
        False,
        {"INFERA_ATTENTION": ATTENTION, "INFERA_ATTENTION_SEAM": "layer"},
    ),
    "attention by model": (
        (DENSE,),
        False,
        {"INFERA_ATTENTION": ATTENTION, "INFERA_ATTENTION_SEAM": "model"},
    ),
    "experts": ((MOE,), False, {"INFERA_MOE": EXPERTS}),
    "both, compiled": ((MOE,), True, {"INFERA_ATTENTION": ATTENTION, "INFERA_MOE": EXPERTS}),
}
CASES = [(way, kind) for way, (kinds, _, _) in WAYS.items() for kind in kinds]
OPS = {"INFERA_ATTENTION": "attention", "INFERA_MOE": "moe"}


@pytest.fixture(scope="session")
def kernels(start: Callable[..., Run]) -> Callable[[str], Run]:
    """A way of running with kernels, or "stock", in float32; each is started once."""
    off = {"INFERA_VLLM_OPS_DISABLE": "1"}

    @functools.cache
    def run(way: str) -> Run:
        if way == "stock":
            return start("stock-32", (DENSE, MOE), False, False, **off, **FLOAT32)
        if way == "stock, compiled":
            return start("stock-32-c", (MOE,), True, False, **off, **FLOAT32)
        kinds, compiled, asked = WAYS[way]
        return start(way.replace(" ", "-"), kinds, compiled, True, **asked, **FLOAT32)

    return run


def owns_the_cache(release: Release) -> bool:
    """From 0.24 on a CPU's cache is written apart from `forward`, so that it can be ours."""
    return release.version is not None and release.version.minor >= 24


def keeps_unpacked(release: Release) -> bool:
    """From 0.30 on a CPU's experts are a modular kernel that packs its weights late."""
    return release.version is not None and release.version.minor >= 30


def can(way: str, release: Release) -> bool:
    asked = WAYS[way][2]
    return ("INFERA_ATTENTION" not in asked or owns_the_cache(release)) and (
        "INFERA_MOE" not in asked or keeps_unpacked(release)
    )


@pytest.fixture
def able(request: pytest.FixtureRequest, release: Release) -> None:
    way = request.node.callspec.params["way"]
    if not can(way, release):
        pytest.skip(f"{release} refuses it: test_refused_by_name")


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("way", "kind"), CASES)
def test_the_same_text_and_near_logprobs(
    kernels: Callable[[str], Run], way: str, kind: str
) -> None:
    stock = kernels("stock, compiled" if "compiled" in way else "stock").requests(kind)
    ours = kernels(way).requests(kind)
    assert [x["ids"] for x in ours] == [x["ids"] for x in stock]
    for here, there in zip(ours, stock, strict=True):
        for place, other in zip(here["logprobs"], there["logprobs"], strict=True):
            for token in place.keys() & other.keys():
                near = float.fromhex(place[token]), float.fromhex(other[token])
                assert math.isclose(*near, rel_tol=0, abs_tol=BOUND)
            assert len(place.keys() & other.keys()) >= 4


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("way", "kind"), CASES)
def test_not_by_stock_s_own_code(kernels: Callable[[str], Run], way: str, kind: str) -> None:
    """Other sums in another order: a kernel that never ran would give stock's very bits."""
    stock = kernels("stock, compiled" if "compiled" in way else "stock").requests(kind)
    assert kernels(way).requests(kind) != stock


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("way", "kind"), CASES)
def test_the_kernel_ran_in_every_layer_and_step(
    kernels: Callable[[str], Run], way: str, kind: str
) -> None:
    (report,) = kernels(way).models[kind]["reports"]
    asked = {OPS[name]: value for name, value in WAYS[way][2].items() if name in OPS}
    for layer in report["layers"]:
        if layer["op"] in asked:
            assert layer["kernel"] == asked[layer["op"]], layer
            assert layer["calls"]["serving"] == report["steps"] >= 24, layer
            assert layer["calls"]["handed"] == 0, layer
        else:
            assert layer["kernel"] is None, layer


@pytest.mark.parametrize("way", ["attention", "experts"])
def test_refused_by_name(start: Callable[..., Run], release: Release, way: str) -> None:
    """Where the CPU's cache or weights can't be had, the start says so and stops."""
    if can(way, release):
        pytest.skip(f"{release} binds it: test_the_same_text_and_near_logprobs")
    kinds, _, asked = WAYS[way]
    with pytest.raises(child.ChildError, match=r"was asked for (attention|moe) and") as error:
        start("refused", kinds[-1:], False, False, **asked, **HERE)
    assert next(iter(asked.values())) in str(error.value)


FAILING = """
from infera_compat.kernels.attention.reference import ReferenceAttention
class Fails(ReferenceAttention):
    name = "fails"
    def {method}(self, *args):
        raise ValueError("a mistake in it")
KERNEL = Fails()
"""


@pytest.mark.parametrize("method", ["workspace", "warm_up"])
def test_a_named_kernel_that_can_t_be_prepared_stops_the_start(
    start: Callable[..., Run], release: Release, tmp_path: Path, method: str
) -> None:
    if not owns_the_cache(release):
        pytest.skip(f"{release} refuses it before: test_refused_by_name")
    (tmp_path / "fails.py").write_text(FAILING.format(method=method), "utf-8")
    about = tmp_path / "fails-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fails\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text(
        "[infera_compat.kernels]\nfails = fails:KERNEL\n", "utf-8"
    )
    with pytest.raises(child.ChildError, match=f"fails.{method} failed.*a mistake in it"):
        start(
            "fails", (DENSE,), False, False,
            INFERA_ATTENTION="fails", PYTHONPATH=str(tmp_path), **HERE,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"INFERA_ATTENTION": "nobodys_kernel"}, "INFERA_ATTENTION is not known"),
        ({"INFERA_MOE": ATTENTION}, "it is no kernel for moe"),
    ],
)
def test_a_name_that_can_t_be_meant_stops_the_start(
    start: Callable[..., Run], asked: dict[str, str], said: str
) -> None:
    with pytest.raises(child.ChildError, match=said):
        start("unmeant", (DENSE,), False, False, **asked, **HERE)
