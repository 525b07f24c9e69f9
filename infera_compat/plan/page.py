"""The page of a plan: Markdown in numbered sections; the same facts give the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from infera_compat.kernels import kernel as kernels
from infera_compat.plan import (
    benches,
    caches,
    checks,
    engines,
    points,
    probing,
    proofs,
    questions,
    risks,
)
from infera_compat.plan.facts import Facts
from infera_compat.plan.markdown import code, items, joined, table

NOT_MEASURED = "not measured"


def page(facts: Facts) -> str:
    """The whole page."""
    parts = [_head(facts)]
    parts += [
        f"## {number}. {title}\n\n{write(facts).strip()}"
        for number, (title, write) in enumerate(SECTIONS, start=1)
    ]
    return "\n\n".join(parts) + "\n"


def missing(do: str) -> str:
    """What stands where a number would: that there is none, and what would measure it."""
    return f"**{NOT_MEASURED}**; {do} would."


def _head(facts: Facts) -> str:
    name = facts.identity.name
    found = questions.answers(facts)
    gaps = [answer for answer in found if not answer.found.answered]
    rows = (
        (
            answer.number,
            answer.question,
            "yes" if answer.found.answered else "**gap**",
            answer.found.told,
            answer.found.do or "",
        )
        for answer in found
    )
    return (
        f"# The integration plan of {name}\n\n"
        f"Made by `infera-compat plan {name}` from the kernel's own answers, `matrix/results` and "
        f"{code(f'{name}.toml')} beside this page; nothing here is written by hand.\n\n"
        f"The review: {len(found) - len(gaps)} of {len(found)} questions answered.\n\n"
        + table(("", "question", "", "what is known", "what would close it"), rows)
    )


def _summary(facts: Facts) -> str:
    kernel = facts.identity
    contract = f"version {kernel.own_contract}"
    if kernel.own_contract != kernel.contract:
        contract += f" (this infera-compat speaks {kernel.contract})"
    rows = (
        ("name", code(kernel.name)),
        ("op", f"{kernel.op}, asked for by {code(_variable(kernel.op))}"),
        ("contract", f"{contract}, {code(f'infera_compat/kernels/{kernel.op}/contract.py')}"),
        ("from", kernel.distribution),
        ("CUDA graphs", "may be captured" if kernel.captures else "eager only"),
    )
    said = kernel.summary or "Its module has no docstring."
    return f"{said}\n\n{table(('', ''), rows)}\n\n{_takes(facts.support)}"


def _variable(op: str) -> str:
    return {"attention": "INFERA_ATTENTION", "moe": "INFERA_MOE"}[kernels.OPS[op]]


def _takes(support: probing.Support) -> str:
    """What the kernel takes; what it does not take stays stock, and says so."""
    refused = items(f"{base}: {why}" for base, why in support.refused.items())
    if support.around is None:
        return f"It takes no layer that it was asked about:\n\n{refused}"
    aspects = [a for a in support.aspects if a not in (probing.TENSOR_PARALLEL,
                                                       probing.EXPERT_PARALLEL)]  # fmt: skip
    rows = [_answers(support, aspect) for aspect in aspects]
    told = (
        f"What it takes, as `supports` answers, one thing changed at a time (around: "
        f"{support.around}); what it does not take stays stock.\n\n"
        + table(("", "takes", "does not take"), rows)
    )
    return f"{told}\n\nNot taken as a base:\n\n{refused}" if refused else told


def _answers(support: probing.Support, aspect: str) -> tuple[str, str, str]:
    found = support.of(aspect)
    takes = (answer.shown for answer in found if answer.why_not is None)
    refuses = (f"{answer.shown}: {answer.why_not}" for answer in found if answer.why_not)
    return aspect, "; ".join(takes), "; ".join(refuses)


def _plug_in(facts: Facts) -> str:
    seam = points.POINTS[facts.identity.op]
    rows = [
        (
            point.release,
            point.shim,
            point.symbols,
            *(known.status for known in point.modes.values()),
            joined(point.others),
        )
        for point in facts.points
    ]
    reasons = dict.fromkeys(
        f"{point.release}, {title}: {known.status}: {reason}"
        for point in facts.points
        for title, known in point.modes.items()
        for reason in known.reasons
        if known.status not in ("equal", "by contract only")
    )
    by_author = f"\n\n{facts.author.plug_in_point}" if facts.author.plug_in_point else ""
    text = (
        f"The seam {code(seam.name)}: {seam.why}.{by_author}\n\n"
        "The statuses are of the seam itself, bound with the kernel `passthrough` (what they mean: "
        "[SUPPORT.md](../../matrix/SUPPORT.md)); this kernel's own runs are in section 8. "
        '"By contract only" is not measured: '
        f"`make matrix` would on a CPU; on a GPU, {points.DO}.\n\n"
    )
    symbols = dict.fromkeys(point.symbol or "(no such symbol)" for point in facts.points)
    where = (
        f"{code(symbol)} in "
        + (
            "each"
            if len(symbols) == 1
            else joined(x.release for x in facts.points if x.symbol == symbol)
        )
        for symbol in symbols
    )
    text += f"Upstream it is {'; '.join(where)}.\n\n"
    heads = ("release", "shim", "symbols it stands on", *points.MODES)
    text += table((*heads, "can be forced instead"), rows)
    return f"{text}\n\n{items(reasons)}" if reasons else text


def _caches(facts: Facts) -> str:
    if not facts.layouts:
        return f"Not applicable: {caches.NO_CACHE}."
    rows = [
        (
            layout.backend,
            layout.releases,
            code(layout.regime) if layout.regime else "packed by stock",
            _bound(layout),
            joined(f"{release}: {said}" for release, said in layout.probed.items()) or NOT_MEASURED,
        )
        for layout in facts.layouts
    ]
    takes = facts.support.of(probing.KV_DTYPE)
    said = "; ".join(
        f"{answer.shown}: {'taken' if answer.why_not is None else f'not taken, {answer.why_not}'}"
        for answer in takes
    )
    return (
        "How a backend's cache lies, as its impl's methods are given it (B blocks, N slots, H "
        "heads, D channels, C a token's channels of MLA). The kernel takes strides, the shim makes "
        "the views. The last column is what the probe of the views said on a GPU, over all layouts "
        f"of the cache; {caches.DO} measures it.\n\n"
        + table(("backend", "releases", "lies as", "a kernel is bound", "probed"), rows)
        + f"\n\nQuantised caches: {said or NOT_MEASURED}."
    )


def _bound(layout: caches.Layout) -> str:
    if layout.why_not is not None:
        return f"no: {layout.why_not}"
    return "yes, its layers write the cache themselves" if layout.own else "yes, by strided views"


def _batching(facts: Facts) -> str:
    op = facts.identity.op
    told = {
        kernels.ATTENTION: "Requests come and go in each step: `block_table`, `seq_lens` and "
        "`query_start_loc` say which tokens are whose. The step's keys and values are in the "
        "cache before the kernel runs, put there by `slot_mapping`: by stock, or by the adapter "
        "where section 3 says that the layers write it.",
        kernels.MLA_DECODE: "Only the decode tokens of a step come here, by `block_table` and "
        "`seq_lens`; prefill and its chunks are stock's `forward_mha`. `slot_mapping` is stock's.",
        kernels.EXPERTS: "The op sees tokens, not requests: no block_table, no slot_mapping. A "
        "step's number of tokens is free; padded rows have expert -1.",
    }[op]
    paged = checks.PAGED if op != kernels.EXPERTS else ()
    return f"{told}\n\n{_proofs(facts, (*paged, *checks.CHUNKED[op]))}"


def _graphs(facts: Facts) -> str:
    if not facts.identity.captures:
        return (
            "**Eager only** (`captures = False`): where vLLM captures full graphs, the layer stays "
            "stock; between piecewise graphs attention runs as Python in each step."
        )
    return "It may be captured. Each point below is proved on a GPU or not at all.\n\n" + _proofs(
        facts, checks.CAPTURE, on_gpu=True
    )


def _parallel(facts: Facts) -> str:
    op = facts.identity.op
    told = {
        kernels.ATTENTION: "TP class: column-parallel by heads. A rank has heads / TP query heads "
        "and as many KV heads, at least one; the sum over ranks is the output projection's.",
        kernels.MLA_DECODE: "TP class: by query heads; the latent cache is whole on each rank. The "
        "sum over ranks is the output projection's.",
        kernels.EXPERTS: "TP class: each expert's inner size N is cut, the output is a partial sum "
        "that stock reduces; under EP a rank holds whole experts, and `expert_map` names them (-1: "
        "another rank's). The kernel reduces nothing.",
    }[op]
    shards = [
        _answers(facts.support, aspect)
        for aspect in (probing.TENSOR_PARALLEL, probing.EXPERT_PARALLEL)
        if facts.support.of(aspect)
    ]
    parts = [f"{told} Sizes are read from tensors, never from a model's config."]
    if shards:
        parts.append(table(("", "takes", "does not take"), shards))
    parts.append(_proofs(facts, checks.SHARDS))
    parts.append(
        "PP: a call is one layer's, and nothing is kept between layers; the workspace is one a "
        f"process. A run over several GPUs: {_over_ranks(facts)}"
    )
    return "\n\n".join(parts)


def _over_ranks(facts: Facts) -> str:
    """The runs of the whole engine in which a model lay on several GPUs."""
    runs = [
        f"{bench.where}, {cell['model']}, TP {cell['tp']}: same text {cell['same_text']}"
        for bench in facts.benches.served
        for cell in bench.cells
        if cell.get("tp", 1) > 1
    ]
    return f"{joined(runs)}." if runs else missing(f"{facts.benches.do_engine} with TP above 1")


def _testing(facts: Facts) -> str:
    parts = []
    if not facts.proofs.records:
        parts.append(missing(facts.proofs.do()))
    else:
        rows = [
            (
                proof.where,
                "passed" if proof.told["passed"] else "**failed**",
                *(sum(x.status == status for x in proof.outcomes) for status in
                  (proofs.PASS, proofs.FAIL, proofs.NOT_RUN)),
                len(proof.refused),
                proof.told["torch"],
                proof.told["triton"] or "",
                proof.told["date"],
                proof.told["commit"] or "",
            )
            for proof in facts.proofs.records
        ]  # fmt: skip
        heads = ("machine", "", "pass", "fail", "not run", "refused specs", "torch", "triton")
        parts.append(table((*heads, "date", "commit"), rows))
        outcomes = (
            (x.check, f"**{x.status}**" if x.status == proofs.FAIL else x.status, x.where,
             x.cases, x.detail)
            for x in (facts.proofs.outcome(check) for check in facts.proofs.checks)
        )  # fmt: skip
        parts.append(table(("check", "", "where", "cases", ""), outcomes))
    if not any(proof.on_gpu for proof in facts.proofs.records):
        parts.append(f"On a GPU: {missing(facts.proofs.do(on_gpu=True))}")
    parts.append("In engines, beside stock's text and logprobs:")
    parts.append(_beside_stock(facts) if facts.engines else missing(engines.DO))
    parts.append("What the plan asks of them:")
    parts.append(_proofs(facts, (*checks.EAGER, *checks.COMPILER, *checks.REST)))
    parts.append(f"The tolerance: {facts.author.tolerance or '**not justified** by the author.'}")
    return "\n\n".join(parts)


def _beside_stock(facts: Facts) -> str:
    rows = (
        (
            ran.release,
            ran.gpu,
            ran.model,
            ran.mode,
            "equal but for rounding" if ran.equal else "**unlike stock**",
            f"{ran.texts[0]} of {ran.texts[1]}",
            f"{ran.worst:.3f}",
            ran.date,
            ran.commit,
        )
        for ran in facts.engines
    )
    heads = ("release", "machine", "model", "mode", "", "same text", "logprob, at most")
    return table((*heads, "date", "commit"), rows)


def _benchmarks(facts: Facts) -> str:
    found = facts.benches
    parts = [_alone(facts) if found.counted else missing(found.do)]
    parts.append("The whole engine:")
    parts.append(_engines(found.served) if found.served else missing(found.do_engine))
    if found.refused:
        parts.append(f"Records that do not count:\n\n{items(found.refused)}")
    parts.append(f"Targets:\n\n{_targets(facts)}" if facts.author.targets else "No target is set.")
    parts.append(
        facts.author.justification
        or "Why this kernel, against FlashAttention 3 and stock's: **not said** by the author."
    )
    return "\n\n".join(parts)


def _alone(facts: Facts) -> str:
    rows = [
        (
            group.bench.told["gpu"],
            group.bench.release,
            *(_each(group.cells, key) for key in ("model", "dtype", "tp")),
            group.baseline,
            group.phase,
            group.mode,
            joined(group.batches),
            f"{len(group.chosen)} of {len(group.cells)}",
            _times(benches.geomean(map(benches.ratio, group.cells))),
            _times(group.worst),
            _times(group.floor("ours")),
            _times(group.floor("stock")),
        )
        for group in facts.benches.groups
    ]
    heads = ("hardware", "vLLM", "model", "dtype", "TP", "baseline", "phase", "mode")
    more = ("batch sizes", "chosen in", "geomean", "worst chosen", "ours / floor", "stock / floor")
    runs = (
        f"{bench.where}: torch {bench.told['torch']}, triton {bench.told['triton']}, "
        f"{bench.told['date']}, at {bench.told['commit']}"
        for bench in facts.benches.counted
    )
    return (
        "The kernel alone: stock's time by the kernel's, both of one run; a cell that is left to "
        f"stock counts as 1.\n\n{table((*heads, *more), rows)}\n\n{items(runs)}"
    )


def _engines(found: Sequence[benches.Bench]) -> str:
    rows = [
        (
            bench.told["gpu"],
            bench.release,
            cell["model"],
            cell.get("load", ""),
            cell.get("dtype", "not recorded"),
            cell.get("tp", "not recorded"),
            cell["batch"],
            cell.get("mode", ""),
            *(f"{_number(cell['stock'][name])} → {_number(cell['ours'][name])}"
              for name in benches.FIGURES),
            cell["same_text"],
        )
        for bench in found
        for cell in bench.cells
    ]  # fmt: skip
    heads = ("hardware", "vLLM", "model", "load", "dtype", "TP", "batch", "mode")
    return table(
        (*heads, *(f"{name}, stock → ours" for name in benches.FIGURES), "same text"), rows
    )


def _targets(facts: Facts) -> str:
    rows = []
    for target in facts.author.targets:
        reached = benches.reached(target, facts.benches)
        for where, value in reached.items():
            met = "met" if value >= target.ratio else "**missed**"
            rows.append((target.what, _times(target.ratio), _times(value), where, met))
        if not reached:
            rows.append((target.what, _times(target.ratio), NOT_MEASURED, "", facts.benches.do))
    return table(("target", "at least", "measured", "where", ""), rows)


def _tried(facts: Facts) -> str:
    rows = ((each.what, each.predicted, each.found) for each in facts.author.tried)
    return table(("", "predicted", "found"), rows) if facts.author.tried else "Nothing is noted."


def _risks(facts: Facts) -> str:
    rows = (
        (risk.name, risk.what, risk.mitigation or "none",
         "mitigated" if risk.mitigated else f"**open**: {risk.open or 'no mitigation'}")
        for risk in risks.register(facts)
    )  # fmt: skip
    return table(("risk", "what", "mitigation", ""), rows)


def _out_of_scope(facts: Facts) -> str:
    refused = [
        f"{answer.aspect} {answer.shown}: stays stock ({answer.why_not})"
        for answer in facts.support.answers
        if answer.why_not is not None
    ]
    unread = dict.fromkeys(
        f"{layout.backend}'s cache: {layout.why_not}"
        for layout in facts.layouts
        if layout.why_not is not None
    )
    found = [*facts.author.out_of_scope, *refused, *unread]
    return items(found) or "Nothing that it was asked about."


def _proofs(facts: Facts, of: Iterable[checks.Point], on_gpu: bool = False) -> str:
    """A table of what is to be proved, and what the records say of it."""
    found = [(point, facts.proofs.outcome(point.check, on_gpu)) for point in of]
    shown = {proofs.NOT_RUN: f"**{NOT_MEASURED}**", proofs.FAIL: "**fail**"}
    rows = (
        (point.what, point.check, shown.get(x.status, x.status), x.where, x.detail)
        for point, x in found
    )
    told = table(("", "check", "", "where", ""), rows)
    if any(x.status == proofs.NOT_RUN for _, x in found):
        told += f"\n\nWhat is not measured: {facts.proofs.do(on_gpu)} would."
    return told


def _each(cells: Iterable[benches.Cell], key: str) -> str:
    return joined(cell[key] for cell in cells if key in cell) or "not recorded"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


SECTIONS: Sequence[tuple[str, Callable[[Facts], str]]] = (
    ("Op summary", _summary),
    ("Plug-in point per release", _plug_in),
    ("KV-cache compatibility", _caches),
    ("Continuous batching", _batching),
    ("CUDA-graph audit", _graphs),
    ("Tensor and pipeline parallelism", _parallel),
    ("Testing", _testing),
    ("Benchmarking", _benchmarks),
    ("Risk register", _risks),
    ("Out of scope", _out_of_scope),
    ("What was tried", _tried),
)
