"""The importable home of our subclasses of stock attention backends.

vLLM asks for a backend by a dotted path and imports it, and from 0.24 on CUDA rebuilds that path
from `__module__` and `__qualname__`. So each subclass is an attribute of this module under a name
that says which stock class it stands on ("vllm__v1__attention__backends__flash_attn__Flash…"), made
when it is asked for: no backend module is imported before vLLM would import it
(vllm/v1/attention/backends/flash_attn.py reads the current config while it is imported).
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infera_compat.binding import Binding

OP = "attention"
STOCK = "vllm."
MADE = "vllm__"
CPU = "vllm.v1.attention.backends.cpu_attn"
_binding: Binding | None = None
_impls: dict[type, object] = {}


def open_book(binding: Binding) -> None:
    """Let the subclasses count in a binding's ledger, and hand their steps to its kernel."""
    global _binding
    _binding = binding


def close_book() -> None:
    """Make the subclasses stock's again: a layer that has one runs stock's forward from now on."""
    for impl, forward in _impls.items():
        # Another plugin may have put its own there, on top of ours.
        if vars(impl).get("forward") is forward:
            del impl.forward  # type: ignore[attr-defined]
    _impls.clear()
    for name in [name for name in globals() if name.startswith(MADE)]:
        del globals()[name]


def path_over(stock_path: str) -> str:
    """The dotted path of our subclass of the backend at `stock_path`.

    A backend that is not stock vLLM's (another plugin's) stays what it is, and so does one whose
    path could not be read back from the name.
    """
    if stock_path.startswith(f"{__name__}."):
        return stock_path
    if not stock_path.startswith(STOCK) or "__" in stock_path:
        return stock_path
    return f"{__name__}.{stock_path.replace('.', '__')}"


def packs(stock: type) -> bool:
    """Whether an impl class is the CPU's that packs its KV cache apart from `forward` (0.24 on)."""
    return stock.__module__ == CPU and "do_kv_cache_update" in vars(stock)


def is_ours(impl: object) -> bool:
    """Whether a layer's `impl` is an instance of a subclass made here."""
    return any(cls in _impls for cls in type(impl).__mro__)


def __getattr__(name: str) -> Any:
    if not name.startswith(MADE):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, cls = name.replace("__", ".").rpartition(".")
    backend = _subclass_backend(name, getattr(importlib.import_module(module), cls))
    globals()[name] = backend
    return backend


def _subclass_backend(name: str, stock: Any) -> type:
    """A subclass of a stock backend: all of it inherited, but the impl class is ours."""
    impls: list[type] = []

    def get_impl_cls() -> type:
        if not impls:
            impls.append(_subclass_impl(stock.get_impl_cls()))
        return impls[0]

    body = {
        "__module__": __name__,
        "__doc__": stock.__doc__,
        "get_impl_cls": staticmethod(get_impl_cls),
    }
    return types.new_class(name, (stock,), exec_body=lambda namespace: namespace.update(body))


def _subclass_impl(stock: Any) -> type:
    """A subclass of a stock implementation: its `forward` is a kernel's, or counts and is stock's.

    On the CPU a kernel has the cache written in an order of its own.
    """
    if _binding is None:
        raise AssertionError("open_book() comes first")
    count = _binding.ledger.count
    adapter: Any = _binding.adapter

    def forward(
        self: Any,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Any,
        output: Any,
        output_scale: Any = None,
        output_block_scale: Any = None,
        **more: Any,
    ) -> Any:
        if adapter is None:
            count(OP, layer.layer_name)
        elif not more and adapter.run(
            layer, query, kv_cache, attn_metadata, output, output_scale, output_block_scale
        ):
            count(OP, layer.layer_name)
            return output
        return super(impl, self).forward(
            layer,
            query,
            key,
            value,
            kv_cache,
            attn_metadata,
            output,
            output_scale,
            output_block_scale,
            **more,
        )

    def do_kv_cache_update(
        self: Any, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any
    ) -> None:
        if adapter.writes(layer):
            adapter.write(layer, key, value, kv_cache, slot_mapping)
        else:
            super(impl, self).do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    body = {"__module__": __name__, "__doc__": stock.__doc__, "forward": forward}
    if adapter is not None and packs(stock):
        body["do_kv_cache_update"] = do_kv_cache_update
    impl: Any = types.new_class(
        stock.__name__, (stock,), exec_body=lambda namespace: namespace.update(body)
    )
    _impls[impl] = forward
    return impl  # type: ignore[no-any-return]
