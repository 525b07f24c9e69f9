"""How K and V lie in a layer's KV cache tensor: regimes by name, and what stock does where.

Data only. The probe (probe.py) decides; EXPECTED says what it should find, for tests and reports.
Axes: B blocks, N slots in a block, H KV heads, D channels of a head, "2" K then V, "2D" a head's K
channels then its V channels, C a token's channels in an MLA cache (there is no V apart from it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Minor = tuple[int, int]


@dataclass(frozen=True)
class Regime:
    """One way in which K and V lie in a cache tensor.

    name: what reports say. seen: the axes of the tensor that `impl.forward` is given.
    read_as: the axes after a `view` of the same memory, where stock itself re-views the tensor.
    """

    name: str
    seen: tuple[str, ...]
    read_as: tuple[str, ...] | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes from which K and V are taken."""
        return self.read_as or self.seen


KV_FIRST = Regime("(2, B, N, H, D)", ("2", "B", "N", "H", "D"))
KV_SECOND = Regime("(B, 2, N, H, D)", ("B", "2", "N", "H", "D"))
KV_LAST = Regime("(B, H, N, 2D)", ("B", "H", "N", "2D"))
KV_FIRST_HEADS = Regime("(2, B, H, N, D)", ("2", "B", "H", "N", "D"))
KV_HALVES = Regime(
    "(B, H, N, 2D) as (B, H, 2, N, D)", ("B", "H", "N", "2D"), ("B", "H", "2", "N", "D")
)
LATENT = Regime("(B, N, C)", ("B", "N", "C"))

REGIMES: Mapping[str, Regime] = {
    regime.name: regime
    for regime in (KV_FIRST, KV_SECOND, KV_LAST, KV_FIRST_HEADS, KV_HALVES, LATENT)
}

PLAIN = (KV_FIRST, KV_SECOND, KV_LAST)
MLA = (
    "TRITON_MLA",
    "FLASH_ATTN_MLA",
    "FLASHMLA",
    "CUTLASS_MLA",
    "FLASHINFER_MLA",
    "TOKENSPEED_MLA",
    "CPU_MLA",
    "AMX_MLA",
    "ROCM_AITER_MLA",
    "AITER_TRITON_MLA",
)

CANDIDATES: Mapping[str, tuple[Regime, ...]] = {
    **dict.fromkeys(
        (
            "FLASH_ATTN",
            "TRITON_ATTN",
            "FLASHINFER",
            "FLEX_ATTENTION",
            "ROCM_AITER_FA",
            "ROCM_AITER_UNIFIED_ATTN",
            "ROCM_ATTN",
        ),
        PLAIN,
    ),
    "CPU_ATTN": (KV_FIRST_HEADS, KV_HALVES, KV_LAST),
    **dict.fromkeys(MLA, (LATENT,)),
}
"""The regimes that the probe tries, by backend. A backend that isn't here has none: refused."""

PACKED: Mapping[str, str] = {
    "CPU_ATTN": "its contents are packed for the CPU's vector instructions "
    "(cpu_attn_reshape_and_cache), in another order on each instruction set",
    "ROCM_ATTN": "its contents are packed as K [B, H, D/x, N, x] and V [B, H, D, N] "
    "(PagedAttention.split_kv_cache)",
}
"""Backends whose caches no kernel of ours may read, and why: refused even if a regime fitted."""

NAMESAKES: Mapping[str, str] = {"vllm.v1.attention.backends.rocm_aiter_fa": "ROCM_AITER_FA"}
"""Modules of backends whose get_name() is another backend's (AITER's says FLASH_ATTN)."""

PLAIN_DTYPES = ("torch.bfloat16", "torch.float16", "torch.float32")
"""Element types of caches that hold K and V as they are; the others are quantised, or bytes."""


@dataclass(frozen=True)
class Expectation:
    """What stock does with a backend's cache in a range of minor releases, as read in its source.

    backend: as `name_of` names it. regime: None where the contents are packed. first, last: the
    first and the last minor release (last None: it still does). upstream: where it stands in vLLM.
    goes: when this entry can be dropped.
    """

    backend: str
    regime: Regime | None
    first: Minor
    last: Minor | None
    upstream: str
    goes: str

    def covers(self, release: Minor) -> bool:
        """Whether the entry speaks of this minor release."""
        return self.first <= release and (self.last is None or release <= self.last)


BACKENDS = "v1/attention/backends"
STAYS = "when stock moves on"
WITH_22 = "with 0.22"
WITH_25 = "with 0.25"
FLASH = f"{BACKENDS}/flash_attn.py:FlashAttentionImpl.do_kv_cache_update"
TRITON = f"{BACKENDS}/triton_attn.py:TritonAttentionImpl.do_kv_cache_update"
FLASHINFER = f"{BACKENDS}/flashinfer.py:FlashInferImpl.do_kv_cache_update"
FLEX = f"{BACKENDS}/flex_attention.py:FlexAttentionImpl.do_kv_cache_update"
AITER_FA = f"{BACKENDS}/rocm_aiter_fa.py:AiterFlashAttentionImpl.do_kv_cache_update"
AITER_UNIFIED = (
    f"{BACKENDS}/rocm_aiter_unified_attn.py:RocmAiterUnifiedAttentionImpl.do_kv_cache_update"
)
ROCM = "v1/attention/ops/paged_attn.py:PagedAttention.split_kv_cache"
CPU_FORWARD = f"{BACKENDS}/cpu_attn.py:CPUAttentionBackendImpl.forward"
CPU_UPDATE = f"{BACKENDS}/cpu_attn.py:CPUAttentionBackendImpl.do_kv_cache_update"
MLA_UPDATE = "v1/attention/backend.py:MLAAttentionImpl.do_kv_cache_update"

# Backends that came after the first release here.
MLA_SINCE: Mapping[str, Minor] = {"CPU_MLA": (0, 28), "AMX_MLA": (0, 29)}

EXPECTED: tuple[Expectation, ...] = (
    # Until 0.22 K and V stand first, but for Triton and FlashInfer; from 0.23 to 0.25 the blocks
    # do; from 0.26 on a slot holds a head's K and V side by side.
    *(
        Expectation(backend, KV_FIRST, (0, 22), (0, 22), upstream, WITH_22)
        for backend, upstream in (
            ("FLASH_ATTN", FLASH),
            ("FLEX_ATTENTION", FLEX),
            ("ROCM_AITER_FA", AITER_FA),
            ("ROCM_AITER_UNIFIED_ATTN", AITER_UNIFIED),
        )
    ),
    *(
        Expectation(backend, KV_SECOND, first, (0, 25), upstream, WITH_25)
        for backend, first, upstream in (
            ("FLASH_ATTN", (0, 23), FLASH),
            ("TRITON_ATTN", (0, 22), TRITON),
            ("FLASHINFER", (0, 22), FLASHINFER),
            ("FLEX_ATTENTION", (0, 23), FLEX),
            ("ROCM_AITER_FA", (0, 23), AITER_FA),
            ("ROCM_AITER_UNIFIED_ATTN", (0, 23), AITER_UNIFIED),
        )
    ),
    *(
        Expectation(backend, KV_LAST, (0, 26), None, upstream, STAYS)
        for backend, upstream in (
            ("FLASH_ATTN", FLASH),
            ("TRITON_ATTN", TRITON),
            ("FLASHINFER", FLASHINFER),
            ("FLEX_ATTENTION", FLEX),
            ("ROCM_AITER_FA", AITER_FA),
            ("ROCM_AITER_UNIFIED_ATTN", AITER_UNIFIED),
        )
    ),
    Expectation("ROCM_ATTN", None, (0, 22), None, ROCM, STAYS),
    # Until 0.23 forward writes the cache (until 0.26 it still does, beside do_kv_cache_update).
    Expectation("CPU_ATTN", None, (0, 22), (0, 23), CPU_FORWARD, "with 0.23"),
    Expectation("CPU_ATTN", None, (0, 24), None, CPU_UPDATE, STAYS),
    # From 0.29 on MLAAttention.bind_kv_cache drops the heads' axis before the impl sees the tensor.
    *(
        Expectation(name, LATENT, MLA_SINCE.get(name, (0, 22)), None, MLA_UPDATE, STAYS)
        for name in MLA
    ),
)


def expected(backend: str, release: Minor) -> Expectation | None:
    """What the table says of a backend (its `name_of`) in a minor release; None: nothing."""
    return next((e for e in EXPECTED if e.backend == backend and e.covers(release)), None)


def name_of(backend: type) -> str:
    """The name by which the tables here know a backend class, or a subclass of one."""
    for base in backend.__mro__:
        if base.__module__ in NAMESAKES:
            return NAMESAKES[base.__module__]
    return str(backend.get_name())  # type: ignore[attr-defined]
