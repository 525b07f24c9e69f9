"""Cases of a MoE layer's experts: shapes of ranks, ids without an expert, maps, activations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from infera_compat.kernels.conformance import buffers, expected
from infera_compat.kernels.conformance.cases import DTYPES, TP, Case, Cases, Part
from infera_compat.kernels.experts.contract import (
    ACTIVATIONS,
    ExpertsCall,
    ExpertsSizes,
    ExpertsSpec,
)
from infera_compat.kernels.kernel import EXPERTS

TOKENS: Mapping[bool, tuple[int, ...]] = {False: (1, 3, 17, 64, 129), True: (1, 3, 64, 257, 2048)}
"""Odd, tiny and large, by whether it runs on a GPU."""
USUAL_TOKENS = 33

Layer = tuple[int, int, int, int]
"""Experts, top_k, hidden, intermediate of a whole layer."""
LAYERS: Mapping[bool, tuple[Layer, ...]] = {
    False: ((8, 2, 128, 512), (16, 8, 64, 256)),
    True: ((8, 2, 4096, 14336), (128, 8, 2048, 768), (64, 6, 2048, 1408)),
}
"""On a GPU: of Mixtral 8x7B, Qwen3 30B A3B and DeepSeek V2 Lite."""
USUAL: Mapping[str, int] = {
    "experts": 8,
    "global_experts": 8,
    "hidden": 128,
    "intermediate": 96,
    "top_k": 2,
}


@dataclass(frozen=True)
class ExpertsPlan:
    """What a call is made from.

    ids: element type of topk_ids. without: one id in so many is -1; 0: none is. shared: whether
    workspace13 is the memory of out. padding: tokens of NaN at the end, all their ids -1.
    marked: NaN in the weights of experts that nobody chose. number: tells plans apart that are
    otherwise alike.
    """

    spec: ExpertsSpec
    tokens: int
    ids: torch.dtype = torch.int32
    without: int = 0
    shared: bool = False
    padding: int = 0
    marked: bool = False
    number: int = 0


class ExpertsCases(Cases[ExpertsPlan]):
    """Cases of experts."""

    op = EXPERTS

    @property
    def sizes(self) -> ExpertsSizes:
        """As many tokens as the largest case has."""
        return ExpertsSizes(max(TOKENS[self.large]), self.captured_sizes)

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens that graphs are captured for."""
        return (1, 2, 4, 8, 16, 32, 64, 128, 256) if self.large else (1, 2, 5)

    def _plan(self, tokens: int = USUAL_TOKENS, spec: Any = None, **values: Any) -> ExpertsPlan:
        given = {**USUAL, "dtype": torch.bfloat16, **(spec or {})}
        capability = None
        if self.device.type == "cuda" and torch.version.cuda:
            capability = torch.cuda.get_device_capability(self.device)
        made = ExpertsSpec(device=self.device.type, capability=capability, **given)
        return ExpertsPlan(made, tokens, **values)

    def numerics(self) -> Iterator[ExpertsPlan]:
        """Element types by numbers of tokens, activations, ids, maps and places of weights."""
        for dtype in DTYPES:
            of = {"dtype": dtype}
            for tokens in TOKENS[self.large]:
                yield self._plan(tokens, of)
            for activation in ACTIVATIONS:
                yield self._plan(spec=of | {"activation": activation})
            for ids in (torch.int32, torch.int64):
                yield self._plan(spec=of, ids=ids, without=3)
                mapped = of | {"global_experts": 16, "mapped": True}
                yield self._plan(spec=mapped, ids=ids)
                yield self._plan(spec=mapped, ids=ids, without=3)
            yield self._plan(spec=of | {"top_k": 1, "weights_on_input": True})
            yield self._plan(spec=of | {"top_k": 1})
            yield self._plan(spec=of | {"hidden": 96, "intermediate": 40})
            yield self._plan(spec=of, shared=True)

    def ranks(self) -> Iterator[ExpertsPlan]:
        """An expert's inner size is split under TP; the experts themselves under EP."""
        for experts, top_k, hidden, intermediate in LAYERS[self.large]:
            for tp in TP:
                layer = {"top_k": top_k, "hidden": hidden, "global_experts": experts}
                split = {"experts": experts, "intermediate": intermediate // tp}
                yield self._plan(spec=layer | split)
                if tp > 1:
                    some = {"experts": experts // tp, "intermediate": intermediate, "mapped": True}
                    yield self._plan(spec=layer | some)

    def simple(self) -> Iterator[ExpertsPlan]:
        """With and without a map and ids of -1."""
        yield self._plan()
        yield self._plan(spec={"dtype": torch.float16}, ids=torch.int64, without=3)
        yield self._plan(spec={"global_experts": 16, "mapped": True}, shared=True)

    def padded(self) -> Iterator[ExpertsPlan]:
        """Tokens of NaN that go to no expert: zeros must come of them."""
        yield self._plan(padding=7)
        yield self._plan(spec={"global_experts": 16, "mapped": True}, padding=5)
        yield self._plan(spec={"top_k": 1, "weights_on_input": True}, padding=3)

    def canaries(self) -> Iterator[ExpertsPlan]:
        """Few tokens, so that some experts are nobody's."""
        for tokens in (1, 2):
            yield self._plan(tokens, marked=True)
            yield self._plan(tokens, {"global_experts": 16, "mapped": True}, marked=True)

    def captured(self) -> Iterator[tuple[ExpertsPlan, tuple[ExpertsPlan, ...]]]:
        """Other tokens and ids; in the padded ones some tokens have no expert."""
        for size in self.captured_sizes:
            for spec in ({}, {"global_experts": 16, "mapped": True}):
                plan = self._plan(size, spec)
                others = (replace(plan, number=1), replace(plan, number=2, without=2))
                yield plan, others

    def refusal(self, plan: ExpertsPlan) -> str | None:
        """None: a kernel takes what it supports."""
        return None

    def name(self, plan: ExpertsPlan) -> str:
        """The number of tokens and the shape, and what is not usual."""
        spec = plan.spec
        parts = [
            f"{plan.tokens} tokens",
            str(spec.dtype).removeprefix("torch."),
            f"top {spec.top_k} of {spec.experts} experts",
            f"{spec.hidden} by {spec.intermediate}",
            spec.activation,
        ]
        parts += [f"mapped from {spec.global_experts}"] * spec.mapped
        parts += ["weights on input"] * spec.weights_on_input
        parts += ["int64 ids"] * (plan.ids == torch.int64) + ["ids of -1"] * bool(plan.without)
        parts += ["workspace13 is out"] * plan.shared
        return ", ".join(parts + [f"{plan.padding} tokens of padding"] * bool(plan.padding))

    def make(self, plan: ExpertsPlan) -> Case:
        """Each token chooses distinct experts of the layer."""
        spec, generator = plan.spec, self.generator(plan)
        tokens, dtype, device = plan.tokens + plan.padding, spec.dtype, self.device
        hidden = buffers.guarded((tokens, spec.hidden), dtype, device)
        hidden[: plan.tokens] = self.random(generator, plan.tokens, spec.hidden, dtype=dtype)
        w13 = self.random(
            generator, spec.experts, 2 * spec.intermediate, spec.hidden,
            dtype=dtype, scale=spec.hidden**-0.5,
        )  # fmt: skip
        w2 = self.random(
            generator, spec.experts, spec.hidden, spec.intermediate,
            dtype=dtype, scale=spec.intermediate**-0.5,
        )  # fmt: skip
        shape = (tokens, spec.global_experts)
        chance = torch.rand(shape, generator=generator, device=device)
        weights, ids = chance.topk(spec.top_k)
        # A token's sum to something up to one, as a router's do.
        sums = 1 - torch.rand((tokens, 1), generator=generator, device=device) / 2
        weights *= sums / weights.sum(-1, keepdim=True)
        if plan.without:
            none = torch.rand(ids.shape, generator=generator, device=device) < 1 / plan.without
            ids[none] = -1
        ids[plan.tokens :] = -1
        expert_map = self._map(spec, generator)
        if plan.marked:
            chosen = ids if expert_map is None else expert_map[ids].long()
            nobody = torch.ones(spec.experts, dtype=torch.bool, device=device)
            nobody[chosen[chosen >= 0]] = False
            w13[nobody], w2[nobody] = math.nan, math.nan
        pairs = tokens * spec.top_k
        first = buffers.guarded((pairs, max(spec.intermediate, spec.hidden)), dtype, device)
        out = first.flatten()[: tokens * spec.hidden].view(tokens, spec.hidden)
        if not plan.shared:
            out = buffers.guarded((tokens, spec.hidden), dtype, device)
        call = ExpertsCall(
            spec=spec,
            hidden_states=hidden,
            w13=w13,
            w2=w2,
            topk_weights=weights,
            topk_ids=ids.to(plan.ids),
            out=out,
            workspace13=first,
            workspace2=buffers.guarded(
                (pairs, max(2 * spec.intermediate, spec.hidden)), dtype, device
            ),
            expert_map=expert_map,
        )
        used = torch.ones(tokens, dtype=torch.bool, device=device)
        return Case(self.name(plan), call, used, plan)

    def _map(self, spec: ExpertsSpec, generator: torch.Generator) -> torch.Tensor | None:
        if not spec.mapped:
            return None
        here = torch.randperm(spec.global_experts, generator=generator, device=self.device)
        found = torch.full_like(here, -1, dtype=torch.int32)
        local = torch.arange(spec.experts, device=self.device, dtype=torch.int32)
        found[here[: spec.experts]] = local
        return found

    def expected(self, call: ExpertsCall) -> dict[str, torch.Tensor]:
        """By the naive one in float64."""
        return {"out": expected.experts(call)}

    def parts(self, case: Case) -> Iterator[tuple[str, list[Part]]]:
        """Some tokens at a time: no token's result depends on another's."""
        for step in (1, 7):
            starts = range(0, case.call.hidden_states.shape[0], step)
            yield f"{step} tokens at a time", [self._part(case.call, at, step) for at in starts]

    def _part(self, call: ExpertsCall, begin: int, step: int) -> tuple[ExpertsCall, slice]:
        rows = slice(begin, min(begin + step, call.hidden_states.shape[0]))
        part = replace(
            call,
            hidden_states=call.hidden_states[rows],
            topk_weights=call.topk_weights[rows],
            topk_ids=call.topk_ids[rows],
            out=buffers.guarded(
                (rows.stop - begin, call.out.shape[1]), call.out.dtype, self.device
            ),
        )
        return part, rows

    def isolated(self, case: Case) -> Iterator[tuple[str, ExpertsCall, torch.Tensor]]:
        """Every other token is NaN."""
        for odd in (0, 1):
            rows = torch.arange(case.used.shape[0], device=self.device) % 2 == odd
            if bool(rows.any()):
                again = self.make(case.plan).call
                again.hidden_states[~rows] = math.nan
                yield "every other token is NaN", again, rows

    def reaching(self) -> Iterator[ExpertsPlan]:
        """On a GPU of large experts, so that no layer of thousands of them is needed."""
        if not self.large:
            yield from self.simple()
            return
        yield self._plan(
            spec={"hidden": 4096, "intermediate": 14336, "experts": 2, "global_experts": 2}
        )

    def far(self, case: Case, elements: int) -> ExpertsCall | None:
        """The last local expert lies at the end of more of them, whose weights nobody reads."""
        call, spec = case.call, case.call.spec
        if spec.mapped:
            return None
        each = call.w2[0].numel()
        more = math.ceil(elements / each) + spec.experts
        w2 = torch.empty((more, *call.w2.shape[1:]), dtype=spec.dtype, device=self.device)
        w13 = torch.empty((more, *call.w13.shape[1:]), dtype=spec.dtype, device=self.device)
        last, shift = spec.experts - 1, more - spec.experts
        for new, old in ((w2, call.w2), (w13, call.w13)):
            new[:last], new[-1] = old[:last], old[last]
        ids = torch.where(call.topk_ids == last, last + shift, call.topk_ids)
        large = replace(spec, experts=more, global_experts=more)
        moved: ExpertsCall = replace(
            call, spec=large, w13=w13, w2=w2, topk_ids=ids.to(call.topk_ids.dtype)
        )
        return moved

    def far_bytes(self, case: Case, elements: int) -> int:
        """w13 is twice as large as w2, and there are those that they were made from."""
        return 8 * elements
