"""The tables of KV cache regimes agree with themselves, and cover every release that we know."""

from __future__ import annotations

from typing import Any

import pytest

from infera_shims.seams.kv_views import regimes
from infera_shims.seams.kv_views.regimes import CANDIDATES, EXPECTED, PACKED, expected, name_of

MINORS = [(0, minor) for minor in range(22, 34)]
FIRST = {
    backend: min(e.first for e in EXPECTED if e.backend == backend)
    for backend in {e.backend for e in EXPECTED}
}


@pytest.mark.parametrize("backend", sorted(CANDIDATES))
def test_each_release_that_has_a_backend_has_one_expectation(backend: str) -> None:
    for minor in MINORS:
        found = [e for e in EXPECTED if e.backend == backend and e.covers(minor)]
        assert len(found) == (1 if minor >= FIRST[backend] else 0), (backend, minor, found)


def test_what_is_expected_is_what_the_probe_would_try_or_is_packed() -> None:
    for e in EXPECTED:
        assert e.backend in CANDIDATES
        if e.regime is None:
            assert e.backend in PACKED
        else:
            assert e.backend not in PACKED
            assert e.regime in CANDIDATES[e.backend]


def test_each_expectation_says_where_it_stands_and_when_it_goes() -> None:
    for e in EXPECTED:
        assert e.upstream.startswith("v1/"), e
        assert ".py:" in e.upstream, e
        assert (e.last is None) == (e.goes == regimes.STAYS), e


@pytest.mark.parametrize(
    ("backend", "release", "name"),
    [
        ("FLASH_ATTN", (0, 22), "(2, B, N, H, D)"),
        ("FLASH_ATTN", (0, 23), "(B, 2, N, H, D)"),
        ("FLASH_ATTN", (0, 25), "(B, 2, N, H, D)"),
        ("FLASH_ATTN", (0, 26), "(B, H, N, 2D)"),
        ("FLASH_ATTN", (0, 40), "(B, H, N, 2D)"),
        ("TRITON_ATTN", (0, 22), "(B, 2, N, H, D)"),
        ("TRITON_MLA", (0, 22), "(B, N, C)"),
        ("CPU_MLA", (0, 28), "(B, N, C)"),
    ],
)
def test_a_few_by_heart(backend: str, release: tuple[int, int], name: str) -> None:
    found = expected(backend, release)
    assert found is not None
    assert found.regime is not None
    assert found.regime.name == name


def test_a_backend_before_it_came_and_an_unknown_one_have_no_expectation() -> None:
    assert expected("CPU_MLA", (0, 27)) is None
    assert expected("NEW_ATTN", (0, 33)) is None


def test_regimes_are_known_by_one_name_each() -> None:
    tried = {regime for group in CANDIDATES.values() for regime in group}
    assert tried == set(regimes.REGIMES.values())
    assert len({regime.name for regime in tried}) == len(tried)


def backend(module: str, name: str, *bases: type) -> Any:
    body = {"__module__": module, "get_name": staticmethod(lambda: name)}
    return type("Backend", bases, body)


def test_a_backend_under_another_ones_name_is_told_apart_and_so_is_our_subclass_of_it() -> None:
    flash = backend("vllm.v1.attention.backends.flash_attn", "FLASH_ATTN")
    aiter = backend("vllm.v1.attention.backends.rocm_aiter_fa", "FLASH_ATTN")
    assert name_of(flash) == "FLASH_ATTN"
    assert name_of(aiter) == "ROCM_AITER_FA"
    assert name_of(type("Ours", (aiter,), {})) == "ROCM_AITER_FA"
