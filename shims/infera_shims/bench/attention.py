"""Attention of one layer: a stock backend's own objects, and a kernel bound over them.

Upstream: vllm/model_executor/layers/attention/attention.py `Attention`, whose `impl.forward` both
sides are: stock's as it is, ours behind the seam's stand-in and the adapter, whose cost on the host
is in. The metadata is the backend's builder's on both sides, as the engine pays it once a step.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.attention.attention import Attention
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from infera_compat.bench import floors, timing
from infera_compat.bench.cells import COLD, EAGER, GRAPH, AttentionCell, Heads
from infera_compat.errors import Refused
from infera_compat.kernels import replays
from infera_compat.kernels.attention.contract import AttentionKernel
from infera_compat.ledger import SERVING, Calls, Choice, Layer, Ledger
from infera_compat.settings import ALL, Settings
from infera_shims.adapters.attention import AttentionAdapter
from infera_shims.bench import caches, compared, configured
from infera_shims.bench.compared import Different
from infera_shims.bench.configured import Limits
from infera_shims.bench.step import Step
from infera_shims.engines import weights
from infera_shims.seams import layer as layer_seam
from infera_shims.seams.kv_views.regimes import name_of

NAME = "model.layers.0.self_attn.attn"
OP = "attention"
LAYERS = 32
"""A step's metadata is built once for so many layers: Llama-3-8B's."""
BEYOND_L2 = 4
"""Caches that calls rotate over are so many times as large as L2."""
MOST_BYTES = 40 << 30
SPREAD = 5.0
"""Standard deviation of queries, keys being uniform between -1 and 1: scores that let a few keys
stand out, so that a key which is left out shows in the output."""
BUILDS = 20
LAUNCH_US = 5.0


@dataclass(frozen=True)
class Group:
    """What a rig is built for: cells that differ in their requests alone."""

    heads: Heads
    block: int
    baseline: str
    mode: str

    @classmethod
    def of(cls, cell: AttentionCell) -> Group:
        """The group of a cell."""
        return cls(cell.heads, cell.block, cell.baseline, cell.mode)


class Bound:
    """What the seam's stand-in is told of a binding: the book to count in, and the adapter."""

    def __init__(self, ledger: Ledger, adapter: AttentionAdapter) -> None:
        """Keep both."""
        self.ledger, self.adapter = ledger, adapter


class Rig:
    """One stock layer, and a kernel over it."""

    def __init__(
        self,
        group: Group,
        kernel: AttentionKernel,
        source: str,
        settings: Settings,
        folder: Path,
        limits: Limits,
    ) -> None:
        """Build the layer as a worker does, and bind the kernel as one that is asked for by name.

        source: the kernel's distribution with its version. settings: of which the folder of tuned
        settings counts. folder: for the model's config.json.
        Raises Refused where the kernel does not take the layer.
        """
        self.group, self.limits, self.device = group, limits, configured.here()
        member = AttentionBackendEnum[group.baseline]
        # A CPU's platform takes no other backend than its own, so that the layer is told.
        told = {} if configured.on_cpu() else {"attention_backend": member}
        shape = weights.Shape(
            layers=1,
            hidden=group.heads.heads * group.heads.head_size,
            heads=group.heads.heads,
            kv_heads=group.heads.kv_heads,
            head_size=group.heads.head_size,
            vocab=weights.TINY.vocab,
            intermediate=weights.TINY.intermediate,
            max_position=limits.seq_len,
        )
        name = f"{group.heads.heads}-{group.heads.kv_heads}-{group.heads.head_size}"
        self.config = configured.configured(
            "llama",
            shape,
            folder / name,
            limits,
            block_size=group.block,
            enforce_eager=group.mode == EAGER,
            **told,
        )
        with configured.building(self.config, self.device):
            self.layer = Attention(
                group.heads.heads,
                group.heads.head_size,
                group.heads.head_size**-0.5,
                num_kv_heads=group.heads.kv_heads,
                cache_config=self.config.cache_config,
                prefix=NAME,
                **({"attn_backend": member.get_class()} if configured.on_cpu() else {}),
            )
            self.layer.process_weights_after_loading(self.config.model_config.dtype)
            backend = self.layer.attn_backend
            if name_of(backend) != group.baseline:
                raise Refused(f"vLLM took {name_of(backend)}, not {group.baseline}")
            caches.resolve(self.config, backend)
            spec = self.layer.get_kv_cache_spec(self.config)
            self.builder = backend.get_builder_cls()(spec, [NAME], self.config, self.device)
        # Tensors are float32 again by default, as where a worker warms up.
        self.layer.kv_cache = self.cache(caches.PROBED)
        with configured.current(self.config):
            self._bind(kernel, source, settings)

    def _bind(self, kernel: AttentionKernel, source: str, settings: Settings) -> None:
        """In the order in which a worker does (infera_compat/install.py)."""
        self.ledger = Ledger()
        self.ledger.phase = SERVING
        if self.device.type == "cuda":
            self.ledger.capturing = torch.cuda.is_current_stream_capturing
        self.ledger.choices[OP] = Choice(OP, kernel.name, kernel=kernel.name)
        self.ledger.survey(
            [Layer(OP, NAME, self.group.baseline, seam=layer_seam.NAME, kernel=kernel.name)]
        )
        self.adapter = AttentionAdapter(kernel, self.ledger)
        self.adapter.begin(self.config)
        self.adapter.decide(NAME, self.layer)
        self.adapter.choose(
            Settings(attention=kernel.name, kernel_table=ALL, cache_dir=settings.cache_dir), source
        )
        self.adapter.reserve()
        self.adapter.look_at_caches()
        if NAME not in self.adapter.specs:
            raise Refused(str(self.ledger.layers[OP, NAME].why_not))
        began = time.monotonic()
        self.adapter.warm_up()
        self._wait()
        self.warm_up_s = time.monotonic() - began
        bound: Any = Bound(self.ledger, self.adapter)
        self.ours = layer_seam.Shadow(
            self.layer.impl.forward, layer_seam.NAME, NAME, "forward", bound
        )

    def cache(self, blocks: int) -> Any:
        """A cache of the layer with that many blocks."""
        # Until 0.28 the order of its axes is asked of the current config.
        with configured.current(self.config):
            return caches.cache(self.layer, self.config, self.group.block, blocks, self.device)

    @property
    def scratch(self) -> int:
        """Bytes that the kernel had set aside."""
        reserved = (self.adapter.workspace, self.adapter.counters)
        return sum(each.numel() * each.element_size() for each in reserved if each is not None)

    def run(self, cell: AttentionCell, timed: bool) -> dict[str, Any]:
        """Compare the two sides on a cell, and time them if that is asked for.

        Returns what the record has of it. Raises Different where they do not the same.
        """
        with torch.inference_mode():
            work = Work(self, cell)
            found: dict[str, Any] = {"worst_difference": work.compare()}
            if timed:
                found |= work.timed()
            elif cell.mode == GRAPH:
                # Without a GPU there are no graphs: what they would be captured with runs.
                work.compare_for_capture()
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Work:
    """The inputs of a cell, and the two sides as functions of the number of a call."""

    def __init__(self, rig: Rig, cell: AttentionCell) -> None:
        """Fill the caches and the step's queries, keys and values with fresh random numbers."""
        self._rig, self._cell = rig, cell
        heads, device, dtype = cell.heads, rig.device, rig.config.model_config.dtype
        draw = torch.Generator(device=device).manual_seed(zlib.crc32(cell.name.encode()) + 1)
        count = _regions(cell, device)
        whole = rig.cache(count * (cell.blocks + 1))
        whole.uniform_(-1, 1, generator=draw)
        self._regions = caches.regions(whole, rig.adapter.regimes[NAME], count)
        # As the model has them: a step's queries, keys and values side by side.
        widths = [n * heads.head_size for n in (heads.heads, heads.kv_heads, heads.kv_heads)]
        packed = torch.empty(cell.tokens, sum(widths), dtype=dtype, device=device)
        packed.normal_(0, SPREAD, generator=draw)
        self._new = [x.unflatten(1, (-1, heads.head_size)) for x in packed.split(widths, dim=1)]
        shape = (cell.tokens, heads.heads, heads.head_size)
        self._outputs = [torch.empty(shape, dtype=dtype, device=device) for _ in range(2)]
        self._step = Step(cell, rig.builder, rig.limits.seq_len, device)
        self._metadata = self._step.built()

    def compare(self) -> float:
        """The largest difference of the two sides' outputs over some regions."""
        stock, ours = self._sides().values()
        worst = 0.0
        for number in range(min(2, len(self._regions))):
            compared.poison(*self._outputs)
            stock(number)
            self._must_be_the_kernels(partial(ours, number))
            worst = max(worst, self._difference(self._cell.name))
        return worst

    def compare_for_capture(self) -> None:
        """Compare the sides under the metadata that a graph is captured with."""
        self._metadata = self._step.for_capture()
        self.compare()

    def timed(self) -> dict[str, Any]:
        """The times of both sides, and what was timed."""
        cell, rig = self._cell, self._rig
        work = floors.of_attention(cell)
        guess = LAUNCH_US + work.bytes / 5e6
        calls = timing.calls_for(len(self._regions), guess)
        metadata_us = self._metadata_us()
        sides = self._sides()
        stretches: dict[str, Callable[[], None]] = {}
        if cell.mode == GRAPH:
            self._metadata = self._step.for_capture()
            # A side is captured while it is seen that the kernel runs.
            stretches["stock"] = timing.captured(sides["stock"], calls)
            self._must_be_the_kernels(
                lambda: stretches.update(ours=timing.captured(sides["ours"], calls))
            )
            self._metadata = self._step.built()
            compared.poison(*self._outputs)
            for replay in stretches.values():
                replay()
            self._difference(f"{cell.name}, replayed")
        else:
            stretches = {name: timing.repeated(side, calls) for name, side in sides.items()}
        times = timing.paired(stretches, calls)
        # Inside a graph there is what the engine captures; outside, a layer pays its share.
        share = metadata_us / LAYERS if cell.mode == EAGER else 0.0
        return {
            "stock_us": times["stock"].median + share,
            "ours_us": times["ours"].median + share,
            "stock_quartiles": times["stock"].quartiles,
            "ours_quartiles": times["ours"].quartiles,
            "metadata_us": metadata_us,
            "metadata_share_us": share,
            "calls": calls,
            "regions": len(self._regions),
            "rounds": timing.ROUNDS,
            "scratch_bytes": rig.scratch,
            "warm_up_s": rig.warm_up_s,
        }

    def _sides(self) -> Mapping[str, Callable[[int], Any]]:
        impl, layer, regions = self._rig.layer.impl, self._rig.layer, self._regions
        query, key, value = self._new
        count = len(regions)

        def stock(number: int) -> None:
            cache = regions[number % count]
            impl.forward(layer, query, key, value, cache, self._metadata, output=self._outputs[0])

        def ours(number: int) -> None:
            cache = regions[number % count]
            self._rig.ours(layer, query, key, value, cache, self._metadata, output=self._outputs[1])

        return {"stock": stock, "ours": ours}

    def _difference(self, what: str) -> float:
        stock, ours = self._outputs
        return compared.difference(stock, ours, what)

    def _must_be_the_kernels(self, run: Callable[[], Any]) -> None:
        """Run calls of our side; Different where one of them was left to stock."""
        before = self._handed()
        run()
        if self._handed() > before:
            rig = self._rig
            why = rig.adapter._against(rig.layer, self._new[0], self._metadata, None, None)
            raise Different(f"{self._cell.name}: the step was left to stock: {why}")

    def _handed(self) -> int:
        return self._rig.ledger._calls.get((OP, NAME), Calls()).handed

    def _metadata_us(self) -> float:
        """What it takes to build a step's metadata, on whichever of host and GPU takes longer."""
        self._step.built()

        def several() -> None:
            for _ in range(BUILDS):
                self._step.built()

        with timing.no_garbage():
            return statistics.median(replays.events_us(several) for _ in range(5)) / BUILDS


def _regions(cell: AttentionCell, device: torch.device) -> int:
    """How many caches the calls of a cell rotate over."""
    if cell.cache != COLD:
        return 1
    if device.type != "cuda":
        return 2
    wanted = BEYOND_L2 * int(torch.cuda.get_device_properties(device).L2_cache_size)
    read = floors.kv_bytes(cell)
    return max(1, min(max(2, -(-wanted // read)), MOST_BYTES // read))


class Bench:
    """The rigs of a run, one at a time: cells of a group come one after the other."""

    def __init__(self, settings: Settings, folder: Path, limits: Limits) -> None:
        """See Rig."""
        self._settings, self._folder, self._limits = settings, folder, limits
        self._key: tuple[str, Group] | None = None
        self._rig: Rig | None = None

    def measure(
        self, kernel: AttentionKernel, source: str, cell: AttentionCell, timed: bool
    ) -> dict[str, Any]:
        """What the record has of a cell; raises Refused and Different."""
        key = kernel.name, Group.of(cell)
        if self._rig is None or self._key != key:
            self.close()
            self._rig = Rig(key[1], kernel, source, self._settings, self._folder, self._limits)
            self._key = key
        return self._rig.run(cell, timed)

    def close(self) -> None:
        """Give the rig's memory back."""
        self._rig = self._key = None
        if not configured.on_cpu():
            torch.cuda.empty_cache()
