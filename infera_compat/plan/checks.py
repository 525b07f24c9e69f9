"""Which check of `infera-compat verify` proves what a plan says, by the names in its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infera_compat.kernels import kernel as kernels


@dataclass(frozen=True)
class Point:
    """Something that a plan says of a kernel, and the check that proves it."""

    what: str
    check: str


EAGER = (
    Point("right numbers in each element type, for odd, tiny and large shapes", "numerics"),
    Point("used rows are written whole, and nothing around them", "poison"),
    Point("nothing of padding reaches a used row", "padding"),
)
"""What holds without graphs, of every op."""

PAGED = (
    Point("paged reads equal an unpaged reference, by any block table", "paged"),
    Point("other requests' slots are left alone", "canaries"),
)
CHUNKED: Mapping[str, tuple[Point, ...]] = {
    kernels.ATTENTION: (Point("prefill, chunked prefill and decode mixed in one call", "mixed"),),
    kernels.MLA_DECODE: (Point("requests of other lengths, padded rows among them", "mixed"),),
    kernels.EXPERTS: (Point("a step's tokens give the same as the parts it is cut into", "mixed"),),
}
"""By op: what a batch of vLLM's scheduler needs of it."""

SHARDS = (Point("the shapes that a rank sees under TP 1, 2, 4, 8", "ranks"),)

CAPTURE = (
    Point("captured at every size class, replayed with other contents and lengths", "graphs"),
    Point("no allocation outside the graph's pool", "allocations"),
    Point("no synchronisation with the host", "synchronisations"),
    Point("nothing is compiled after warm-up", "compilations"),
    Point("workspace at the same address in each replay", "workspace addresses"),
)
"""The CUDA-graph audit. Only a GPU can prove these."""

COMPILER = (
    Point("registered so that torch.library.opcheck holds", "opcheck"),
    Point("a fake implementation whose shapes agree", "fake"),
    Point("torch.compile without a graph break", "compile"),
)
REST = (
    Point("any strides that the contract allows", "strides"),
    Point("no input is changed", "inputs"),
    Point("tensors of more than 2**31 elements", "offsets"),
    Point("two threads at once", "threads"),
    Point("the same bits in each repeat", "determinism"),
    Point("the workspace is as large as asked for, and no more is touched", "workspace"),
    Point("warm-up time", "warm-up"),
    Point("no access outside its memory (compute-sanitizer)", "sanitizer"),
    Point("compiles for sm_80, sm_90, sm_100, gfx942, gfx950", "targets"),
)

EVERY = (
    *EAGER,
    *PAGED,
    *(point for points in CHUNKED.values() for point in points),
    *SHARDS,
    *CAPTURE,
    *COMPILER,
    *REST,
)
"""All of them; several may have the same check."""
