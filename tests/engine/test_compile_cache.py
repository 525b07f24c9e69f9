"""A compiled graph does not outlive the choice that it was traced with: one cache root for all."""

from __future__ import annotations

from pathlib import Path

from conftest import MOE, Starts


def keys(cache_root: Path) -> set[str]:
    compiled = cache_root / "torch_compile_cache"
    assert compiled.is_dir(), "nothing was compiled, so nothing is shown"
    return {
        folder.name
        for folder in compiled.rglob("*")
        if folder.is_dir()
        and len(folder.name) >= 10
        and folder.parent.name != "modelinfos"
        # AOT artifacts by key, and the directory of the JIT layer where a release writes that.
        and folder.parent.name in ("torch_aot_compile", "torch_compile_cache")
    } - {"torch_aot_compile"}


def test_stock_on_off_on_one_cache_root(run: Starts, cache_root: Path) -> None:
    stock = run("off compiled")
    of_stock = keys(cache_root)
    run("passthrough compiled")
    with_ours = keys(cache_root)
    again = run("off again compiled")
    assert with_ours > of_stock, "our run found stock's graph, or stored none"
    assert keys(cache_root) == with_ours, "switched off, stock did not find its own graphs again"
    assert again.requests(MOE) == stock.requests(MOE)
    assert run("passthrough compiled").requests(MOE) == stock.requests(MOE)
