"""Counting a bound layer's calls where Python may not see them.

On the CPU, Dynamo traces through vLLM's MoE layers: a Python counter there runs once, while it is
traced. So inside a traced graph the count is an op of its own, opaque to the compiler; it declares
that it writes a tensor that the layer is given, so that no pass drops or moves it. One that the
layer is given, not one that it returns: Inductor would round that once more than in stock's graph,
where it is fused with what follows (shared experts and the residual), while the input is kept in
memory anyway, for the matrix products that read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from infera_compat.ledger import Ledger

_ledgers: list[Ledger] = []


@torch.library.custom_op("infera_compat::fired", mutates_args=("given",))  # type: ignore[untyped-decorator]
def _fired(given: torch.Tensor, op: str, layer: str) -> None:
    for ledger in _ledgers:
        ledger.count(op, layer)


@_fired.register_fake  # type: ignore[untyped-decorator]
def _(given: torch.Tensor, op: str, layer: str) -> None:
    return None


@dataclass
class Witness:
    """Counts one layer's calls; `layer` is set when the model is built and the name is known."""

    op: str
    ledger: Ledger
    layer: str = "(no layer of the model)"

    def fired(self, given: Any) -> None:
        """The layer's bound code runs on the tensor `given`."""
        if torch.compiler.is_compiling():
            _fired(given, self.op, self.layer)
        else:
            self.ledger.count(self.op, self.layer)


def open_book(ledger: Ledger) -> None:
    """Let the opaque op count in `ledger`, this process's only one."""
    _ledgers[:] = [ledger]
