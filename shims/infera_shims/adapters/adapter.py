"""What every adapter has: the kernel, the layers that it takes, the scratch that they share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from infera_compat.errors import CompatError, Refused, words_of
from infera_compat.kernels.kernel import OPS, Kernel
from infera_compat.kernels.store import Store
from infera_compat.kernels.table import KEYS, Row, Table, slug
from infera_compat.ledger import Ledger
from infera_compat.settings import Settings

try:
    import triton as triton_module
except ImportError:
    triton_module = None


@dataclass
class Adapter:
    """A kernel over the layers of one model.

    kernel: the kernel. ledger: the process's book. config: the worker's VllmConfig, once a model is
    built. specs: by the name of each layer that the kernel takes, what it was told of it.
    workspace, counters: the scratch that all of them share, uint8, and int32 zeros; or None.
    table: where the kernel is chosen at all; rows: of it, a layer's. measured: the table by which
    it was chosen automatically; None: it was asked for by name. store: what the kernel keeps
    between starts.
    """

    kernel: Kernel[Any, Any, Any]
    ledger: Ledger
    config: Any = None
    specs: dict[str, Any] = field(default_factory=dict)
    workspace: torch.Tensor | None = None
    counters: torch.Tensor | None = None
    table: Table = field(default_factory=Table.everywhere)
    rows: dict[str, Row] = field(default_factory=dict)
    measured: Table | None = None
    store: Store | None = None

    def begin(self, config: Any) -> None:
        """Start anew for a model that was just built: an earlier one's layers are forgotten."""
        self.config = config
        self.specs.clear()
        self.rows.clear()
        self.workspace = self.counters = None

    def admit(self, name: str, spec: Any) -> None:
        """Let the kernel take a layer; Refused with the kernel's reason where it does not."""
        self.specs.pop(name, None)
        self.ask(spec)
        self.specs[name] = spec

    def ask(self, spec: Any) -> None:
        """Ask the kernel for a layer; Refused with its reason where it does not take it."""
        with self.in_kernel("supports"):
            reason = self.kernel.supports(spec)
        if reason is not None:
            raise Refused(f"{self.kernel.name} does not take it: {reason}")

    @contextmanager
    def in_kernel(self, method: str) -> Iterator[None]:
        """Stop where the kernel fails; one that was not asked for by name costs no start for it."""
        try:
            yield
        except Exception as error:
            raise CompatError(
                f"{self.kernel.name}.{method} failed",
                found=words_of(error),
                expected="a kernel that is prepared before anything is served",
                do=f"Mend it, or set INFERA_{OPS[self.kernel.op].upper()}=off.",
            ) from error

    def choose(self, settings: Settings, source: str) -> None:
        """Look up where the kernel is faster, and what it kept from an earlier start.

        source: the distribution that it is from, with its version. Raises CompatError for a table
        that says nothing of this kernel here.
        """
        gpu = torch.cuda.get_device_name() if self.device.type == "cuda" else self.device.type
        module = sys.modules[type(self.kernel).__module__]
        self.table = self.measured or Table.chosen(
            settings.kernel_table,
            kernel=self.kernel.name,
            op=self.kernel.op,
            folder=Path(str(module.__file__)).parent,
            gpu=gpu,
        )
        if not self.table.always and slug(self.table.gpu) != slug(gpu):
            # Chosen by the name of the first GPU, and this worker has another one.
            raise CompatError(
                f"{self.kernel.name} was chosen for another GPU",
                found=f"a {gpu}",
                expected=f"a {self.table.gpu}, as the first one",
                do=f"Serve on GPUs of one kind, or set INFERA_{OPS[self.kernel.op].upper()}=off.",
            )
        # A GPU's torch brings Triton; a CPU's may not.
        triton = {"triton": vars(triton_module)["__version__"]} if triton_module else {}
        built_with = {"torch": torch.__version__, **triton}
        self.store = Store(settings.cache_dir, self.kernel.name, source, gpu, built_with)

    def prefers(self, name: str, size: int) -> bool:
        """Whether a step of so many requests, or tokens, is the kernel's by its table."""
        row = self.rows.get(name)
        if row is None:
            over = self.ledger.layers[OPS[self.kernel.op], name].over
            row = self.rows[name] = self.table.row(over, **self._measures(name))
        return row.prefers(size)

    def check_measured(self, name: str, over: str) -> None:
        """Refused for a layer that an automatic choice would leave to stock in every step.

        over: the stock code that it runs on. Named kernels take what they can.
        """
        if self.measured is None or self.measured.ever(over, **self._measures(name)):
            return
        raise Refused(f"{self.kernel.name} did not measure faster than {over} at its sizes")

    def drop_unmeasured(self) -> None:
        """The same once block sizes are known, of the layers that were taken."""
        for name in list(self.specs):
            try:
                self.check_measured(name, self.ledger.layers[OPS[self.kernel.op], name].over)
            except Refused as refusal:
                self.drop(name, str(refusal))

    def _measures(self, name: str) -> dict[str, Any]:
        """A layer's own sizes, as tables have them."""
        return {key: vars(self.specs[name])[key] for key in KEYS[self.kernel.op][1:]}

    def reserve(self) -> None:
        """Set the scratch aside, before vLLM profiles how much memory is left for its KV cache."""
        if not self.specs:
            return
        sizes = self.sizes()
        specs = set(self.specs.values())
        with self.in_kernel("workspace"):
            wanted = max(self.kernel.workspace(spec, sizes) for spec in specs)
        with self.in_kernel("counters"):
            tickets = max(self.kernel.counters(spec, sizes) for spec in specs)
        if (wanted or tickets) and self.config.parallel_config.enable_dbo:
            for name in list(self.specs):
                self.drop(name, "two batches at once (enable_dbo) would share its scratch")
            return
        self.workspace = (
            torch.empty(wanted, dtype=torch.uint8, device=self.device) if wanted else None
        )
        self.counters = (
            torch.zeros(tickets, dtype=torch.int32, device=self.device) if tickets else None
        )

    def look_at_caches(self) -> None:
        """Look at the KV caches that vLLM has made by now, where the op has any."""
        return  # an op without

    def warm_up(self) -> None:
        """Compile all that the layers may need: before graphs are captured, and without graphs."""
        if self.store is None:
            raise AssertionError("choose() comes first")
        for spec in set(self.specs.values()):
            with self.in_kernel("warm_up"):
                self.kernel.warm_up(spec, self.sizes(), self.device, self.store)

    @property
    def device(self) -> torch.device:
        """The device of the worker's layers."""
        return torch.device(self.config.device_config.device)

    def sizes(self) -> Any:
        """The most that a step may hold, as the op's Sizes."""
        raise NotImplementedError

    def step_sizes(self) -> dict[str, Any]:
        """The fields of the Sizes of an op with a KV cache."""
        scheduler = self.config.scheduler_config
        return {
            "tokens": scheduler.max_num_batched_tokens,
            "requests": scheduler.max_num_seqs,
            "seq_len": self.config.model_config.max_model_len,
            "captured": self.captured(),
        }

    def captured(self) -> tuple[int, ...]:
        """The numbers of tokens that CUDA graphs are captured for."""
        if self.config.model_config.enforce_eager:
            return ()
        return tuple(self.config.compilation_config.cudagraph_capture_sizes or ())

    def drop(self, name: str, reason: str) -> None:
        """A layer goes back to stock after all, before anything was served."""
        del self.specs[name]
        layer = self.ledger.layers[OPS[self.kernel.op], name]
        layer.seam, layer.kernel, layer.why_not = None, None, reason

    def may_run(self, device: torch.device) -> bool:
        """Whether a kernel that can't be captured is not being captured now."""
        if self.kernel.captures or device.type != "cuda":
            return True
        return not torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Gate:
    """Something that must hold before a kernel takes a layer."""

    holds: bool
    found: str
    expected: str


def check(gates: Iterator[Gate]) -> None:
    """Raise Refused for the first gate that does not hold."""
    for gate in gates:
        if not gate.holds:
            raise Refused(f"found {gate.found}, expected {gate.expected}")


def has(thing: Any, name: str) -> bool:
    """Whether a feature is there and in use; a release that does not know it has no such name."""
    if not hasattr(thing, name):
        return False
    value = getattr(thing, name)
    return value is not None and value is not False


def may_round_by_batch() -> Gate:
    """Of every op: nobody asked for results that do not depend on the batch."""
    import vllm.envs

    return Gate(
        not vllm.envs.VLLM_BATCH_INVARIANT,
        "VLLM_BATCH_INVARIANT",
        "kernels that may round by the batch",
    )


def everywhere(config: Any) -> Iterator[Gate]:
    """What must hold for every layer that attends."""
    parallel = config.parallel_config
    yield may_round_by_batch()
    yield Gate(
        parallel.decode_context_parallel_size == 1
        and not (
            hasattr(parallel, "prefill_context_parallel_size")
            and parallel.prefill_context_parallel_size > 1
        ),
        "context parallelism",
        "every rank to see the whole context",
    )


def capability(device: str) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU, else None."""
    if device != "cuda" or torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability()
    return major, minor
