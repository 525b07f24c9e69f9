"""Probes decide which shim a vLLM gets; its version only says which is tried first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import FUSED_MOE, RECORDED, Fake
from packaging.version import Version

import infera_shims
from infera_compat import release
from infera_compat.shims import pick

LINES = tuple(RECORDED)


def names(version: str | None) -> list[str]:
    return [shim.name for shim in infera_shims.order(Version(version) if version else None)]


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("0.11.0", "v0_22"),
        ("0.22.0", "v0_22"),
        ("0.22.1.post2", "v0_22"),
        ("0.23.0rc1", "v0_23"),
        ("0.23.0+cpu", "v0_23"),
        ("0.24.0", "v0_24"),
        ("0.29.1", "v0_24"),
        ("0.30.0", "main"),
        ("0.32.0", "main"),
        ("1.0.0", "main"),
        ("0.22.2.dev4+gabc", "v0_23"),
        ("0.23.1.dev1", "v0_24"),
        ("0.29.1.dev3", "main"),
        ("0.34.0rc1.dev9", "main"),
        (None, "main"),
    ],
)
def test_what_is_tried_first(version: str | None, first: str) -> None:
    assert names(version)[0] == first


@pytest.mark.parametrize(
    ("version", "tried"),
    [
        ("0.22.0", ["v0_22", "v0_23", "v0_24", "main"]),
        ("0.23.0", ["v0_23", "v0_24", "v0_22", "main"]),
        ("0.27.1", ["v0_24", "main", "v0_23", "v0_22"]),
        ("0.32.0", ["main", "v0_24", "v0_23", "v0_22"]),
        ("0.22.2.dev4", ["v0_23", "v0_22", "v0_24", "main"]),
        ("0.23.1.dev1", ["v0_24", "v0_23", "main", "v0_22"]),
        (None, ["main", "v0_24", "v0_23", "v0_22"]),
    ],
)
def test_then_what_lies_nearest_the_newer_first_but_for_a_dev_build(
    version: str | None, tried: list[str]
) -> None:
    assert names(version) == tried


@pytest.mark.parametrize("version", ["0.11.0", "0.22.0", "0.23.0", "0.22.2.dev1", "9.9", None])
def test_every_shim_gets_its_turn_once(version: str | None) -> None:
    assert sorted(names(version)) == sorted(infera_shims.LINES)


@pytest.mark.parametrize(
    "says", [*RECORDED.values(), "0.23.1.dev3+gabc", "dev", "0.1.dev5", "0.99.0", ""]
)
@pytest.mark.parametrize("line", LINES)
def test_the_code_decides_whatever_the_version_says(
    make_fake: Callable[..., Fake], line: str, says: str
) -> None:
    shim, verdict = pick(release.at(make_fake(line, text=says).root))
    assert (shim.name, verdict.moved) == (line, ())
    assert verdict.held == verdict.of == len(shim.needs)


METHOD = "vllm.platforms.interface:Platform.get_attn_backend_cls"


@pytest.mark.parametrize("line", LINES)
def test_where_none_holds_the_nearest_is_named(make_fake: Callable[..., Fake], line: str) -> None:
    fake = make_fake(line)
    fake.edit("platforms/interface.py", "def get_attn_backend_cls", "def attn_backend_cls")
    shim, verdict = pick(release.at(fake.root))
    assert shim.name == line
    assert {moved.need.symbol for moved in verdict.moved} == {METHOD}
    assert verdict.held == verdict.of - 1


def test_one_move_in_the_newest_is_not_taken_for_an_older_line(fake: Fake) -> None:
    fake.edit(f"{FUSED_MOE}/routed_experts.py", '"routed_experts"', '"experts"')
    shim, verdict = pick(release.at(fake.root))
    assert shim.name == "main"
    assert [moved.need.symbol.rpartition(":")[2] for moved in verdict.moved] == ["RoutedExperts"]
