"""The twelve questions of a review: each has an answer with its evidence, or a named gap.

An answer is a machine's: it comes from the records, and from the author's file only where the
question asks for a reason (a tolerance, a target, a mitigation, a justification).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from infera_compat.kernels import kernel as kernels
from infera_compat.plan import benches, caches, checks, engines, points, probing, proofs, risks
from infera_compat.plan.facts import Facts
from infera_shims.seams.kv_views import regimes

RIVALS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    kernels.ATTENTION: ("FlashAttention 3", ("FLASH_ATTN",)),
    kernels.MLA_DECODE: ("stock's MLA backends", regimes.MLA),
    kernels.EXPERTS: ("stock's experts", ()),
}
"""By op: what the kernel has to be better than, and the baselines that are it (none: all are)."""

BASELINES = 2
"""The fewest batch sizes at which stock is to be measured."""


@dataclass(frozen=True)
class Found:
    """What a question finds. do: what would close the gap; None where it is answered."""

    told: str
    do: str | None = None

    @property
    def answered(self) -> bool:
        """Whether nothing is missing."""
        return self.do is None


@dataclass(frozen=True)
class Answer:
    """A question, by its number from 1 on, and what it finds."""

    number: int
    question: str
    found: Found


def answers(facts: Facts) -> tuple[Answer, ...]:
    """All twelve, in their order."""
    return tuple(
        Answer(number, question, ask(facts))
        for number, (question, ask) in enumerate(QUESTIONS, start=1)
    )


def _plug_in_point(facts: Facts) -> Found:
    if bad := [x for x in facts.points if not x.named]:
        told = "; ".join(
            f"{x.release}: {', '.join(x.against) or 'its shim has no such symbol'}" for x in bad
        )
        return Found(told, "`make matrix`, and mend what it says")
    seam = points.POINTS[facts.identity.op]
    on_gpu = [x.release for x in facts.points if x.equal(points.GPU_MODES)]
    if not on_gpu:
        return Found(f"{seam.name}: equal to stock on a GPU in no release", points.DO)
    return Found(
        f"{seam.name} in {len(facts.points)} releases, equal to stock on a GPU in "
        f"{', '.join(on_gpu)}, elsewhere by contract or on a CPU alone; justified in section 2"
    )


def _engine_version(facts: Facts) -> Found:
    unlike = [f"{x.release} {x.model} {x.mode}" for x in facts.engines if not x.equal]
    if unlike:
        return Found(f"unlike stock in an engine: {', '.join(unlike)}", engines.DO)
    told = [f"{x.where}, torch {x.told['torch']}" for x in facts.benches.served]
    told += dict.fromkeys(f"{x.release} on {x.gpu}, torch {x.torch}" for x in facts.engines)
    if not told:
        return Found("no record of this kernel in an engine of any vLLM release", engines.DO)
    return Found("; ".join(told))


def _block_table(facts: Facts) -> Found:
    if facts.identity.op == kernels.EXPERTS:
        return Found(f"{caches.NO_CACHE}: its call has neither")
    readable = [x.backend for x in facts.layouts if x.why_not is None]
    found = _proved(facts, checks.PAGED)
    if not found.answered:
        return found
    return Found(
        f"{found.told}; slot_mapping: the cache is written before the kernel runs; read over "
        f"{', '.join(dict.fromkeys(readable))}"
    )


def _chunked_prefill(facts: Facts) -> Found:
    found = _proved(facts, checks.CHUNKED[facts.identity.op])
    if facts.identity.op == kernels.MLA_DECODE and found.answered:
        return Found(f"decode tokens alone come here, prefill is stock's; {found.told}")
    return found


def _capture(facts: Facts) -> Found:
    if not facts.identity.captures:
        return Found("never captured: the kernel says so (captures = False), see 10")
    return _proved(facts, checks.CAPTURE, on_gpu=True)


def _sharding(facts: Facts) -> Found:
    refused = [
        f"{x.shown}: {x.why_not}"
        for x in facts.support.of(probing.TENSOR_PARALLEL)
        if x.why_not is not None
    ]
    if facts.support.around is None:
        return Found("the kernel takes no layer that it was asked about", "mend `supports`")
    if refused:
        return Found(f"not taken: {'; '.join(refused)}", "mend `supports`, or what it refuses")
    return _proved(facts, checks.SHARDS)


def _eager_and_graphs(facts: Facts) -> Found:
    if facts.proofs.failed:
        return Found(f"failed: {', '.join(facts.proofs.failed)}", facts.proofs.do())
    eager = _proved(facts, checks.EAGER)
    if not eager.answered or not facts.identity.captures:
        return eager
    graphs = _proved(facts, checks.CAPTURE[:1], on_gpu=True)
    return graphs if not graphs.answered else Found(f"{eager.told}; {graphs.told}")


def _tolerance(facts: Facts) -> Found:
    found = _proved(facts, checks.EAGER[:1])
    if not found.answered:
        return found
    if facts.author.tolerance is None:
        return Found("measured, but nothing says why the tolerance is right", _write("tolerance"))
    return Found(f"{found.told}; why: section 7")


def _baseline(facts: Facts) -> Found:
    counted = facts.benches.counted
    if not counted:
        refused = "; ".join(facts.benches.refused)
        told = "stock vLLM was not measured beside it"
        return Found(f"{told} ({refused})" if refused else told, facts.benches.do)
    best = max(counted, key=lambda bench: len(bench.batches))
    if len(best.batches) < BASELINES:
        sizes = ", ".join(map(str, best.batches))
        return Found(f"one batch size alone ({sizes}), {BASELINES} are needed", facts.benches.do)
    if not facts.author.targets:
        return Found("measured, but no target is set", _write("[[target]]"))
    return Found(
        "; ".join(f"{x.where}: {len(x.batches)} batch sizes" for x in counted)
        + f"; {len(facts.author.targets)} targets"
    )


def _eager_only(facts: Facts) -> Found:
    if not facts.identity.captures:
        return Found("flagged: eager only (captures = False)")
    graphs = facts.proofs.outcome(checks.CAPTURE[0].check, on_gpu=True)
    if graphs.passed:
        return Found(f"not eager only: captured and replayed on {graphs.where}")
    return Found(
        f"it says that it can be captured, and no capture is proved ({graphs.status})",
        f"{facts.proofs.do(on_gpu=True)}, or `captures = False`",
    )


def _risks(facts: Facts) -> Found:
    found = risks.register(facts)
    if left := [risk.name for risk in found if not risk.mitigated]:
        return Found(f"open: {', '.join(left)}", f"close them, or {_write('[[risk]]')}")
    return Found(f"{len(found)} risks, each with a mitigation")


def _justified(facts: Facts) -> Found:
    against, rivals = RIVALS[facts.identity.op]
    groups = [x for x in facts.benches.groups if not rivals or x.baseline in rivals]
    if not groups:
        return Found(f"not measured against {against}", facts.benches.do)
    if facts.author.justification is None:
        return Found(
            f"measured against {against}, but nothing says why it is needed",
            _write("justification"),
        )
    chosen = [benches.ratio(cell) for group in groups for cell in group.chosen]
    mean = benches.geomean(chosen)
    if mean is None:
        return Found(f"chosen in no cell against {against}", "make it faster, or leave it out")
    if mean <= 1:
        return Found(
            f"{mean:.2f}x {against} where it is chosen: no gain", "make it faster, or leave it out"
        )
    return Found(f"{mean:.2f}x {against} over {len(chosen)} cells; why: section 8")


QUESTIONS: tuple[tuple[str, Callable[[Facts], Found]], ...] = (
    ("Is the plug-in point named and justified?", _plug_in_point),
    ("Is the engine's version stated?", _engine_version),
    ("Are block_table and slot_mapping handled?", _block_table),
    ("Does it hold under chunked prefill?", _chunked_prefill),
    ("Is every constraint of graph capture met?", _capture),
    ("Are the TP class and the sharding named?", _sharding),
    ("Are there tests eager and in graphs?", _eager_and_graphs),
    ("Is the tolerance justified?", _tolerance),
    ("Is there a baseline of stock vLLM at two batch sizes?", _baseline),
    ("Is it flagged if it is eager only?", _eager_only),
    ("Is each risk mitigated?", _risks),
    ("Is it justified against FlashAttention 3 and stock's kernels?", _justified),
)


def _proved(facts: Facts, of: Iterable[checks.Point], on_gpu: bool = False) -> Found:
    """Whether every one of these checks passed; which did not, and why."""
    found = [facts.proofs.outcome(point.check, on_gpu) for point in of]
    if left := [x for x in found if not x.passed]:
        told = "; ".join(
            f"{x.check}: {x.status if x.status == proofs.FAIL else 'not measured'}" for x in left
        )
        return Found(told, facts.proofs.do(on_gpu))
    where = dict.fromkeys(x.where for x in found)
    return Found(f"{', '.join(x.check for x in found)} pass on {'; '.join(where)}")


def _write(name: str) -> str:
    return f"write `{name}` into the plan's .toml"
