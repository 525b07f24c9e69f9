"""Each check of `infera-compat verify` catches a kernel that is broken in its way."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recorder
import torch

from infera_compat.cli.app import app
from infera_compat.errors import CompatError
from infera_compat.kernels import ops
from infera_compat.kernels import sources as kernel_sources
from infera_compat.kernels.attention.contract import AttentionCall, AttentionKernel
from infera_compat.kernels.attention.reference import ReferenceAttention
from infera_compat.kernels.conformance import buffers, check, lines, outcome, record
from infera_compat.kernels.conformance.checks import graphs, memory, sanitizer
from infera_compat.kernels.conformance.outcome import FAIL, NOT_RUN, PASS, Outcome, Trial, judge
from infera_compat.kernels.conformance.subject import Subject
from infera_compat.kernels.experts.contract import ExpertsCall
from infera_compat.kernels.experts.reference import ReferenceExperts
from infera_compat.kernels.kernel import Kernel, Reason
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall
from infera_compat.kernels.mla_decode.reference import ReferenceMlaDecode
from infera_compat.plan import checks as plan_checks

CPU = torch.device("cpu")
RIGHT = (ReferenceAttention, ReferenceMlaDecode, ReferenceExperts)
ON_GPU = torch.cuda.is_available()
NEEDS_GPU = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


def run(name: str, kernel: Kernel[Any, Any, Any], **values: Any) -> Outcome:
    """A check on this machine's CPU, those too that the command runs on a GPU alone."""
    (found,) = check.chosen([name])
    return judge(name, found.trials(Subject(kernel, CPU, **values)))


def on_gpu(name: str, kernel: Kernel[Any, Any, Any]) -> Outcome:
    (found,) = check.chosen([name])
    return check.run(found, Subject(kernel, torch.device("cuda", 0)))


def attention(
    change: Callable[[AttentionCall], AttentionCall] | None = None,
    after: Callable[[AttentionCall], None] | None = None,
    **members: Any,
) -> Kernel[Any, Any, Any]:
    """The reference, which sees `change` of a call, and does `after` when it has run."""
    return _broken(ReferenceAttention, change, after, members)


def _broken(base: Any, change: Any, after: Any, members: Any) -> Kernel[Any, Any, Any]:
    def run(self: Any, call: Any) -> None:
        base.run(self, call if change is None else change(call))
        if after is not None:
            after(call)

    name = f"broken_{random.getrandbits(48):x}"  # an op's name is taken once a process
    kernel: Kernel[Any, Any, Any] = type(name, (base,), {"name": name, "run": run, **members})()
    return kernel


def mla(change: Any = None, after: Any = None, **members: Any) -> Kernel[Any, Any, Any]:
    return _broken(ReferenceMlaDecode, change, after, members)


def experts(change: Any = None, after: Any = None, **members: Any) -> Kernel[Any, Any, Any]:
    return _broken(ReferenceExperts, change, after, members)


def with_spec(call: Any, **values: Any) -> Any:
    return dataclasses.replace(call, spec=dataclasses.replace(call.spec, **values))


replace = dataclasses.replace


def without_minus_one(call: ExpertsCall) -> ExpertsCall:
    """Reads the map's last entry for -1, as an index does."""
    if call.expert_map is None:
        return call
    local = call.expert_map.long()[call.topk_ids.long()]
    return with_spec(replace(call, topk_ids=local, expert_map=None), mapped=False)


def swapped(call: ExpertsCall) -> ExpertsCall:
    gate, up = call.w13.chunk(2, 1)
    return replace(call, w13=torch.cat([up, gate], 1))


def other_group(call: AttentionCall) -> AttentionCall:
    """Query head h reads KV head h % kv_heads."""
    heads = torch.arange(call.spec.heads) % call.spec.kv_heads
    return with_spec(
        replace(
            call, key_cache=call.key_cache[:, :, heads], value_cache=call.value_cache[:, :, heads]
        ),
        kv_heads=call.spec.heads,
    )


def off_by_one(call: AttentionCall) -> AttentionCall:
    window = call.spec.window
    return call if window is None else with_spec(call, window=window + 1)


def no_sinks(call: AttentionCall) -> AttentionCall:
    return with_spec(replace(call, sinks=None), sinks=False)


def no_slopes(call: AttentionCall) -> AttentionCall:
    return with_spec(replace(call, alibi_slopes=None), alibi=False)


def shorter(call: Any) -> Any:
    """Misses the last block of long requests."""
    return replace(call, max_seq_len=min(call.max_seq_len, 128))


def last_of_long(call: Any) -> Any:
    """Sees nothing of the last token, of requests longer than 600."""
    lengths = call.seq_lens - (call.seq_lens > 600).int()
    return replace(call, max_seq_len=int(lengths.max()))


def own_slopes(call: Any) -> Any:
    heads = call.spec.heads
    slopes = [2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)]
    return replace(call, alibi_slopes=torch.tensor(slopes)) if call.spec.alibi else call


def narrow_window(call: Any) -> Any:
    window = call.spec.window
    return call if window is None else with_spec(call, window=min(window, 48))


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, taken for contiguous."""
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim())]
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def scaled(of: str, factor: float, when: Callable[[Any], bool]) -> Callable[[Any], None]:
    def after(call: Any) -> None:
        if when(call):
            getattr(call, of).mul_(factor)

    return after


def overflow(call: Any) -> None:
    """As exp does in float32 where no maximum is taken off: infinite, and divided so no number."""
    keys = call.key_cache if isinstance(call, AttentionCall) else call.cache
    scores = call.query.float().mean(0) @ keys.float().flatten(0, -2).T * call.scale
    if scores.median() > math.log(torch.finfo(torch.float32).max):
        call.out.fill_(math.nan)


WRONG_NUMBERS = {
    "query heads in another order": attention(other_group),
    "window off by one": attention(off_by_one),
    "no soft cap": attention(lambda call: with_spec(call, soft_cap=None)),
    "no sinks": attention(no_sinks),
    "no ALiBi": attention(no_slopes),
    "always causal": attention(lambda call: with_spec(call, causal=True)),
    "keys beyond 128 missed": attention(shorter),
    "the last key missed": attention(lambda call: replace(call, seq_lens=call.seq_lens - 1)),
    "one long request's last key missed": attention(last_of_long),
    "MLA, one long request's last key missed": mla(last_of_long),
    "no maximum in the softmax": attention(after=overflow),
    "MLA, no maximum in the softmax": mla(after=overflow),
    "wrong when it decodes with head size 80": attention(
        after=scaled("out", 1.1, lambda call: call.max_query_len == 1 and call.spec.head_size == 80)
    ),
    "wrong in float32 alone": attention(
        after=scaled("out", 1.01, lambda call: call.spec.dtype == torch.float32)
    ),
    "a scale of its own": attention(lambda call: replace(call, scale=call.spec.head_size**-0.5)),
    "MLA, a scale of its own": mla(
        lambda call: replace(call, scale=(call.spec.latent + call.spec.rope) ** -0.5)
    ),
    "ALiBi slopes of its own": attention(own_slopes),
    "no window past 48 tokens": attention(narrow_window),
    "wrong where the cache has another type": attention(
        after=scaled("out", 1.1, lambda call: call.spec.kv_dtype != call.spec.dtype)
    ),
    "wrong for head size 80": attention(
        after=scaled("out", 1.1, lambda call: call.spec.head_size == 80)
    ),
    "MLA, keys beyond 128 missed": mla(shorter),
    "MLA, logarithm to the base of 2": mla(after=scaled("lse", 1.4427, lambda call: call.spec.lse)),
    "MLA, wrong with several query tokens": mla(
        after=scaled("out", 1.1, lambda call: len(call.query) > len(call.seq_lens))
    ),
    "experts, gate and up swapped": experts(swapped),
    "experts, -1 read from the map": experts(without_minus_one),
    "experts, one activation for all": experts(lambda call: with_spec(call, activation="silu")),
    "experts, weights applied twice": experts(lambda call: with_spec(call, weights_on_input=False)),
    "experts, wrong with int64 ids": experts(
        after=scaled("out", 1.1, lambda call: call.topk_ids.dtype == torch.int64)
    ),
    "experts, wrong for one token": experts(
        after=scaled("out", 1.1, lambda call: len(call.out) == 1)
    ),
}


def test_ranks_catch_groups_that_are_no_power_of_two() -> None:
    def odd(call: Any) -> bool:
        return bin(call.spec.heads // call.spec.kv_heads).count("1") > 1

    assert run("ranks", attention(after=scaled("out", 1.1, odd))).status == FAIL


def test_paged_catches_large_blocks() -> None:
    wrong = scaled("out", 1.1, lambda call: call.key_cache.shape[1] > 64)
    assert run("paged", attention(after=wrong)).status == FAIL


def test_a_kernel_that_ends_the_process_fails() -> None:
    def end(call: Any) -> Any:
        raise SystemExit(0)

    assert run("numerics", attention(end)).status == FAIL


@pytest.mark.parametrize("what", WRONG_NUMBERS)
def test_numerics_catches(what: str) -> None:
    assert run("numerics", WRONG_NUMBERS[what]).status == FAIL


def add_all(call: Any) -> None:
    """Zero times everything in the cache, which is nothing unless something there is no number."""
    call.out.add_(call.value_cache.sum() * 0)


def clear_unused(call: AttentionCall) -> None:
    call.key_cache[call.key_cache.isnan()] = 0


def one_more_row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided(
        (tensor.shape[0] + 1, *tensor.shape[1:]), tensor.stride(), tensor.storage_offset()
    )


def write_past_the_end(call: Any) -> None:
    one_more_row(call.out)[-1] = 1.0


def leave_last_row(call: Any) -> None:
    call.out[-1] = math.nan


def add_to_what_is_there(self: Any, call: Any) -> None:
    before = call.out.clone()
    type(self).__mro__[1].run(self, call)
    call.out.add_(before)


def read_padding(call: Any) -> None:
    call.out.add_(call.query.sum() * 0)


def read_padded_token(call: ExpertsCall) -> None:
    call.out.add_(call.hidden_states.sum() * 0)


def dense(call: ExpertsCall) -> None:
    call.out.add_(call.w2.sum() * 0)


def through_contiguous_out(call: AttentionCall) -> None:
    contiguous(call.out).copy_(call.out.clone())


def packed_cache(call: AttentionCall) -> AttentionCall:
    return replace(
        call, key_cache=contiguous(call.key_cache), value_cache=contiguous(call.value_cache)
    )


def alone_in_chunks(call: AttentionCall) -> bool:
    return len(call.seq_lens) == 1 and len(call.query) < int(call.seq_lens[0])


def noise(call: Any) -> None:
    call.out.add_(torch.rand(()) * 1e-2)


class Workspaces(ReferenceAttention):
    """Uses a workspace, and rightly."""

    name = "workspaces"
    BYTES = 1024

    def workspace(self, spec: Any, sizes: Any) -> int:
        return self.BYTES

    def run(self, call: AttentionCall) -> None:
        super().run(call)
        self.use(call)

    def use(self, call: AttentionCall) -> None:
        assert call.workspace is not None
        scratch = call.workspace[: self.BYTES].view(torch.float32)
        scratch.fill_(1.0)
        call.out.mul_(scratch[-1].to(call.out.dtype))


class PastItsWorkspace(Workspaces):
    def use(self, call: AttentionCall) -> None:
        assert call.workspace is not None
        one_more_row(call.workspace).fill_(1)


class ClearWorkspace(Workspaces):
    """Thinks that a workspace comes full of zeros."""

    def use(self, call: AttentionCall) -> None:
        assert call.workspace is not None
        call.out.add_(call.workspace[:4].sum().to(call.out.dtype))


class FirstWorkspace(Workspaces):
    """Keeps the first workspace that it gets."""

    def __init__(self) -> None:
        self.kept: torch.Tensor | None = None

    def use(self, call: AttentionCall) -> None:
        self.kept = call.workspace if self.kept is None else self.kept
        assert self.kept is not None
        assert call.workspace is not None
        self.kept.fill_(0)
        call.workspace.add_(1)  # theirs, which is the same only in the first call
        call.out.mul_(self.kept[0].to(call.out.dtype))


class MoreEachTime(Workspaces):
    asked = 0

    def workspace(self, spec: Any, sizes: Any) -> int:
        self.asked += 1
        return 1024 * self.asked


class LessForMore(Workspaces):
    def workspace(self, spec: Any, sizes: Any) -> int:
        return 2 * self.BYTES if sizes.tokens == 1 else self.BYTES


class Counters(ReferenceAttention):
    """Counts up and down again, as programs do that look for the last of them."""

    name = "counters"
    LEFT = 0

    def counters(self, spec: Any, sizes: Any) -> int:
        return 3

    def run(self, call: AttentionCall) -> None:
        assert call.counters is not None
        call.counters.add_(1)
        super().run(call)
        call.out.mul_(call.counters[0].to(call.out.dtype))
        call.counters.fill_(self.LEFT)


class LeavesCounters(Counters):
    LEFT = 1


class FewerCountersForMore(Counters):
    def counters(self, spec: Any, sizes: Any) -> int:
        return 4 if sizes.tokens == 1 else 3


class SharedState(ReferenceAttention):
    """Keeps something of a call in itself while it runs."""

    name = "shared_state"
    call: AttentionCall

    def run(self, call: AttentionCall) -> None:
        self.call = call
        time.sleep(0.002)
        super().run(self.call)


class FailsInThreads(ReferenceAttention):
    name = "fails_in_threads"
    inside = 0

    def run(self, call: AttentionCall) -> None:
        self.inside += 1
        time.sleep(0.002)
        if self.inside > 1:
            raise RuntimeError("not from two threads")
        super().run(call)
        self.inside -= 1


class NoWarmUp(ReferenceAttention):
    name = "no_warm_up"

    def warm_up(self, spec: Any, sizes: Any, device: torch.device, store: Any) -> None:
        raise RuntimeError("no compiler here")


CAUGHT = {
    "ranks: few heads": (
        "ranks",
        attention(after=scaled("out", 1.1, lambda call: call.spec.heads < 8)),
    ),
    "ranks: one KV head": (
        "ranks",
        attention(after=scaled("out", 1.1, lambda call: call.spec.kv_heads == 1)),
    ),
    "ranks: MLA, few heads": (
        "ranks",
        mla(after=scaled("out", 1.1, lambda call: call.spec.heads < 8)),
    ),
    "ranks: a share of the experts": (
        "ranks",
        experts(after=scaled("out", 1.1, lambda call: call.spec.experts < 4)),
    ),
    "paged: blocks of a power of two": (
        "paged",
        attention(after=scaled("out", 1.1, lambda call: call.spec.block_size == 48)),
    ),
    "paged: one layout": ("paged", attention(packed_cache)),
    "paged: writes the cache": (
        "paged",
        attention(after=lambda call: call.key_cache[0].zero_()),
    ),
    "paged: MLA, one layout": (
        "paged",
        mla(lambda call: replace(call, cache=contiguous(call.cache))),
    ),
    "strides: of the query": (
        "strides",
        attention(lambda call: replace(call, query=contiguous(call.query))),
    ),
    "strides: of out": ("strides", attention(after=through_contiguous_out)),
    "mixed: chunks alone": ("mixed", attention(after=scaled("out", 1.1, alone_in_chunks))),
    "mixed: MLA, one request": (
        "mixed",
        mla(after=scaled("out", 1.1, lambda call: len(call.seq_lens) == 1)),
    ),
    "mixed: experts, seven tokens": (
        "mixed",
        experts(after=scaled("out", 1.1, lambda call: len(call.out) == 7)),
    ),
    "canaries: reads all": ("canaries", attention(after=add_all)),
    "canaries: writes unused slots": ("canaries", attention(after=clear_unused)),
    "canaries: MLA reads all": (
        "canaries",
        mla(after=lambda call: call.out.add_(call.cache.sum() * 0)),
    ),
    "canaries: experts, all weights": ("canaries", experts(after=dense)),
    "poison: past the end": ("poison", attention(after=write_past_the_end)),
    "poison: a row left": ("poison", attention(after=leave_last_row)),
    "poison: added to": ("poison", attention(run=add_to_what_is_there)),
    "poison: experts, past the end": ("poison", experts(after=write_past_the_end)),
    "poison: experts, added to": ("poison", experts(run=add_to_what_is_there)),
    "padding: read": ("padding", attention(after=read_padding)),
    "padding: MLA, read": ("padding", mla(after=read_padding)),
    "padding: experts, read": ("padding", experts(after=read_padded_token)),
    "inputs: query": ("inputs", attention(after=lambda call: call.query.mul_(2))),
    "inputs: lengths": ("inputs", mla(after=lambda call: call.seq_lens.add_(1))),
    "inputs: ids": ("inputs", experts(after=lambda call: call.topk_ids.add_(1))),
    "workspace: past its end": ("workspace", PastItsWorkspace()),
    "workspace: of zeros": ("workspace", ClearWorkspace()),
    "workspace: kept": ("workspace", FirstWorkspace()),
    "workspace: more each time": ("workspace", MoreEachTime()),
    "workspace: less for more": ("workspace", LessForMore()),
    "workspace: no number": ("workspace", attention(workspace=lambda *_: "1 KiB")),
    "counters: left": ("numerics", LeavesCounters()),
    "counters: left, as an input": ("inputs", LeavesCounters()),
    "counters: less for more": ("workspace", FewerCountersForMore()),
    "counters: no number": ("workspace", attention(counters=lambda *_: None)),
    "opcheck: an undeclared write": ("opcheck", attention(after=lambda call: call.query.mul_(2))),
    "compile: the kernel raises": ("compile", attention(after=lambda call: 1 // 0)),
    "determinism": ("determinism", attention(after=noise)),
    "determinism: MLA": ("determinism", mla(after=noise)),
    "determinism: experts": ("determinism", experts(after=noise)),
    "threads: shared state": ("threads", SharedState()),
    "threads: raises": ("threads", FailsInThreads()),
    "warm-up": ("warm-up", NoWarmUp()),
}


@pytest.mark.parametrize("what", CAUGHT)
def test_a_broken_kernel_is_caught(what: str) -> None:
    name, kernel = CAUGHT[what]
    found = run(name, kernel)
    assert found.status == FAIL, found
    assert found.detail
    assert found.cases


COUNTERS = Counters()  # an op's name belongs to one object
CPU_CHECKS = [each.name for each in check.CHECKS if not each.gpu and each.name != "targets"]


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.op)
@pytest.mark.parametrize("name", CPU_CHECKS)
def test_a_right_kernel_passes(name: str, kernel: Any) -> None:
    from infera_compat.kernels import registry

    found = run(name, registry.find().load(kernel.name))  # an op's name belongs to one object
    if found.status == NOT_RUN:
        assert (kernel.op, name) in {("experts", "paged"), ("experts", "strides")}, found
    else:
        assert found.status == PASS, found


def test_a_right_workspace_passes() -> None:
    found = run("workspace", Workspaces())
    assert found.status == PASS, found
    assert "1024 bytes" in found.detail


@pytest.mark.parametrize("name", CPU_CHECKS)
def test_right_counters_pass(name: str) -> None:
    found = run(name, COUNTERS)
    assert found.status == PASS, found


def test_fake_catches_one_that_returns_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "as_op", lambda kernel: lambda call: call.out)
    assert "returns" in run("fake", ReferenceAttention()).detail


def test_fake_catches_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(call: Any) -> None:
        call.out.resize_(1, 8, 64)

    monkeypatch.setattr(ops, "as_op", lambda kernel: step)
    assert "shape of out" in run("fake", ReferenceAttention()).detail


def test_fake_catches_one_that_touches_real_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.zeros(3)

    def step(call: Any) -> None:
        real.add_(1)

    monkeypatch.setattr(ops, "as_op", lambda kernel: step)
    assert run("fake", ReferenceAttention()).status == FAIL


def test_fake_catches_one_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(call: Any) -> None:
        call.seq_lens.tolist()

    monkeypatch.setattr(ops, "as_op", lambda kernel: step)
    assert run("fake", ReferenceAttention()).status == FAIL


def test_compile_catches_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(call: Any) -> None:
        torch._dynamo.graph_break()

    monkeypatch.setattr(ops, "as_op", lambda kernel: step)
    found = run("compile", ReferenceAttention())
    assert found.status == FAIL
    assert "Unsupported" in found.detail


def test_compile_catches_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(call: Any) -> None:
        call.out.zero_()

    monkeypatch.setattr(ops, "as_op", lambda kernel: step)
    assert "differs" in run("compile", ReferenceAttention()).detail


def read_lengths(call: Any) -> Any:
    """Lengths as they were when it was captured."""
    return replace(call, seq_lens=torch.tensor(call.seq_lens.tolist(), dtype=torch.int32))


def longest_on_host(call: Any) -> Any:
    return replace(call, max_seq_len=max(call.seq_lens.tolist()))


def chosen_on_host(call: ExpertsCall) -> ExpertsCall:
    return replace(call, topk_ids=torch.tensor(call.topk_ids.tolist()))


CAPTURED_WRONG = {
    "lengths read on the host": attention(read_lengths),
    "the longest read on the host": attention(longest_on_host),
    "MLA, lengths read on the host": mla(read_lengths),
    "MLA, the longest read on the host": mla(longest_on_host),
    "experts, ids read on the host": experts(chosen_on_host),
}


@pytest.mark.parametrize("what", CAPTURED_WRONG)
def test_graphs_catches(what: str) -> None:
    assert run("graphs", CAPTURED_WRONG[what], record=recorder.record).status == FAIL


@pytest.mark.parametrize("name", ["graphs", "workspace addresses"])
@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.op)
def test_graphs_of_a_right_kernel_pass(
    name: str, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "CLOBBERED", 1024)
    found = run(name, kernel(), record=recorder.record)
    assert found.status == PASS, found


class OwnScratch(ReferenceAttention):
    """Scratch of its own, made anew for a larger call: what was captured goes on with the old."""

    name = "own_scratch"
    lengths: torch.Tensor | None = None

    def run(self, call: AttentionCall) -> None:
        if self.lengths is None or len(self.lengths) < len(call.seq_lens):
            if self.lengths is not None:
                self.lengths.untyped_storage().fill_(0)  # freed, and somebody else's by now
            self.lengths = torch.ones_like(call.out.flatten(1)[:, 0])
        rows = self.lengths[: len(call.out)].view(-1, 1, 1)
        super().run(call)
        call.out.mul_(rows)


def test_workspace_addresses_catches_scratch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "CLOBBERED", 1024)
    found = run("workspace addresses", OwnScratch(), record=recorder.record)
    assert found.status == FAIL, found


def test_workspace_addresses_catches_another_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "CLOBBERED", 1024)
    found = run("workspace addresses", MoreEachTime(), record=recorder.record)
    assert "asks for" in found.detail


def test_a_kernel_that_is_never_captured_has_no_graphs() -> None:
    found = run("graphs", attention(captures=False), record=recorder.record)
    assert (found.status, found.cases) == (NOT_RUN, 0)


def test_a_decode_kernel_is_asked_to_decode_alone() -> None:
    def only_decode(call: AttentionCall) -> AttentionCall:
        assert call.max_query_len == 1
        return call

    kernel = attention(only_decode, max_query_len=1)
    for name in ("numerics", "ranks", "paged", "mixed", "padding", "canaries", "strides"):
        found = run(name, kernel)
        assert found.status == PASS, found
    found = run("graphs", kernel, record=recorder.record)
    assert found.status == PASS, found


def wrapped(call: AttentionCall) -> AttentionCall:
    return replace(call, block_table=call.block_table % 61)


def wrapped_cache(call: MlaDecodeCall) -> MlaDecodeCall:
    return replace(call, block_table=call.block_table % 61)


def wrapped_ids(call: ExpertsCall) -> ExpertsCall:
    return replace(call, topk_ids=call.topk_ids % 61)


FAR = {
    "attention": (attention(wrapped), ReferenceAttention()),
    "MLA": (mla(wrapped_cache), ReferenceMlaDecode()),
    "experts": (experts(wrapped_ids), ReferenceExperts()),
}


@pytest.mark.parametrize("op", FAR)
def test_offsets_catches_what_wraps(op: str) -> None:
    wrong, right = FAR[op]
    assert run("offsets", wrong, far=2_000_000).status == FAIL
    found = run("offsets", right, far=2_000_000)
    assert found.status == PASS, found


def triton_hook(name: str) -> None:
    """What Triton does when it has compiled a function."""
    from triton import knobs

    if knobs.runtime.jit_post_compile_hook is not None:
        knobs.runtime.jit_post_compile_hook(repr=f"{name}[warps=4]")


def test_compilations_catches_what_is_compiled_late() -> None:
    pytest.importorskip("triton.knobs")
    kernel = attention(after=lambda call: triton_hook("late"))
    found = run("compilations", kernel)
    assert found.status == FAIL
    assert "late" in found.detail


def test_compilations_passes_what_is_compiled_in_time() -> None:
    pytest.importorskip("triton.knobs")
    found = run("compilations", attention(warm_up=lambda *_: triton_hook("in_time")))
    assert found.status == PASS, found


def test_compilations_is_not_run_without_triton_functions() -> None:
    assert run("compilations", ReferenceAttention()).status == NOT_RUN


def test_the_hook_is_put_back() -> None:
    knobs = pytest.importorskip("triton.knobs")
    run("poison", ReferenceAttention())
    assert knobs.runtime.jit_post_compile_hook is None


def sources(*functions: Any) -> Callable[[Any], Iterator[Any]]:
    def compiles_for(self: Any) -> Iterator[Any]:
        for function in functions:
            signature = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
            yield function, signature, {"BLOCK": 128}

    return compiles_for


@pytest.fixture
def triton_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("triton_cache")
def test_targets_passes_what_compiles() -> None:
    import triton_functions

    found = run("targets", attention(compiles_for=sources(triton_functions.double)))
    assert (found.status, found.cases) == (PASS, 5), found


@pytest.mark.usefixtures("triton_cache")
@pytest.mark.parametrize("name", ["undefined", "too_large"])
def test_targets_catches(name: str) -> None:
    import triton_functions

    function = getattr(triton_functions, name)
    found = run("targets", attention(compiles_for=sources(function)))
    assert found.status == FAIL, found
    assert "sm_80" in found.detail


def test_targets_is_not_run_for_plain_torch() -> None:
    assert run("targets", ReferenceAttention()).status == NOT_RUN


def put_tool(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / sanitizer.TOOL
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


TOOLS = {
    "finds something": ("echo '========= Invalid __global__ write of size 4'; exit 86", FAIL),
    "the process fails": ("echo 'a check failed'; exit 1", FAIL),
    "finds nothing": ("exit 0", PASS),
    "the process can't begin": ("echo 'no GPU' >&2; exit 2", NOT_RUN),
}


@pytest.mark.parametrize("what", TOOLS)
def test_sanitizer(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, status = TOOLS[what]
    put_tool(tmp_path, script, monkeypatch)
    found = run("sanitizer", ReferenceAttention(), asked="reference_attention")
    assert found.status == status, found


def test_sanitizer_is_not_run_without_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: None)
    found = run("sanitizer", ReferenceAttention(), asked="reference_attention")
    assert (found.status, found.cases) == (NOT_RUN, 0)


class Keeps(ReferenceAttention):
    name = "keeps"

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def run(self, call: AttentionCall) -> None:
        super().run(call)
        self.kept.append(call.out.clone())


@NEEDS_GPU
def test_allocations_catches_memory_that_is_kept() -> None:
    assert on_gpu("allocations", Keeps()).status == FAIL


@NEEDS_GPU
def test_synchronisations_catches_a_value_read_on_the_host() -> None:
    kernel = attention(after=lambda call: call.out.flatten()[0].item())
    assert on_gpu("synchronisations", kernel).status == FAIL


@NEEDS_GPU
@pytest.mark.parametrize("name", [each.name for each in check.CHECKS if each.gpu])
def test_the_reference_passes_on_a_gpu(name: str) -> None:
    assert on_gpu(name, ReferenceAttention()).status in (PASS, NOT_RUN)


def test_gpu_checks_are_not_run_without_one() -> None:
    for each in check.CHECKS:
        if each.gpu:
            found = check.run(each, Subject(ReferenceAttention(), CPU))
            assert (found.status, found.detail, found.cases) == (NOT_RUN, "no GPU", 0)


def test_no_case_is_never_a_pass() -> None:
    kernel = attention(supports=lambda self, spec: Reason("anything", "nothing"))
    for each in check.CHECKS:
        if each.name not in ("targets", "sanitizer"):
            subject = Subject(kernel, CPU, record=recorder.record)
            found = judge(each.name, each.trials(subject))
            assert (found.status, found.cases) == (NOT_RUN, 0), found


def test_what_supports_refuses_is_told_and_not_counted() -> None:
    def supports(self: Any, spec: Any) -> Reason | None:
        return Reason("a window", "none") if spec.window is not None else None

    subject = Subject(attention(supports=supports), CPU)
    (numerics,) = check.chosen(["numerics"])
    found = check.run(numerics, subject)
    every = len(list(subject.cases.numerics()))
    assert found.status == PASS
    assert found.cases == every - len(subject.refused)
    assert subject.refused
    assert set(subject.refused.values()) == {"refused by supports: found a window, expected none"}


def test_an_exception_is_a_failure_with_its_text() -> None:
    found = run("numerics", attention(lambda call: 1 // 0))
    assert (found.status, found.cases) == (FAIL, 1)
    assert "ZeroDivisionError" in found.detail


def test_a_check_that_fails_everywhere_is_given_up() -> None:
    trials = (Trial(str(number), "wrong") for number in range(1000))
    assert judge("any", trials).cases == outcome.MOST_PROBLEMS


def test_checks_have_names_and_tell_what_holds() -> None:
    names = [each.name for each in check.CHECKS]
    assert len(set(names)) == len(names)
    assert all(each.about for each in check.CHECKS)
    with pytest.raises(CompatError, match="there is no check nothing"):
        check.chosen(["nothing"])


def test_a_plan_asks_for_checks_that_there_are() -> None:
    asked = {point.check for point in plan_checks.EVERY}
    assert asked <= {each.name for each in check.CHECKS}


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, same, other = (Subject(ReferenceAttention(), CPU, seed) for seed in (1, 1, 2))
    queries = [next(it.made(it.cases.simple())).call.query for it in (one, same, other)]
    assert torch.equal(queries[0], queries[1])
    assert not torch.equal(queries[0], queries[2])


class Quick(AttentionKernel):
    """Refuses all but one small spec, so that a run of all checks is short."""

    name = "quick"

    def supports(self, spec: Any) -> Reason | None:
        return None if spec.head_size == 80 else Reason("another head size", "80")

    def run(self, call: AttentionCall) -> None:
        ReferenceAttention().run(call)


QUICK = Quick()
WRONG = attention(lambda call: 1 // 0)


def command(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_a_record_has_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    status, text = command(f"{__name__}:QUICK", "--device", "cpu", "--out", str(file), "--json")
    body = json.loads(file.read_text())
    assert status == 0
    assert json.loads(text) == body
    assert (body["kernel"], body["op"], body["gpu"], body["seed"]) == (
        "quick",
        "attention",
        None,
        0,
    )
    assert [each["check"] for each in body["outcomes"]] == [each.name for each in check.CHECKS]
    assert body["passed"] is True
    assert body["refused"]
    assert {"device", "distribution", "torch", "triton", "python", "infera_compat", "commit"} < set(
        body
    )


def test_a_failure_is_status_1(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    arguments = ("--device", "cpu", "--only", "poison", "--out", str(file))
    status, text = command(f"{__name__}:WRONG", *arguments)
    assert status == 1
    assert "does not hold" in text
    assert json.loads(file.read_text())["passed"] is False


def test_part_of_the_checks_takes_no_records_place(tmp_path: Path) -> None:
    status, text = command(f"{__name__}:QUICK", "--device", "cpu", "--only", "numerics")
    assert status == 0
    assert "Record:" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no_such_kernel",), "reference_attention"),
        (("reference_attention", "--device", "abacus"), "cpu"),
        (("reference_attention", "--only", "nothing"), "numerics"),
        (("no_such_module:KERNEL",), "no_such_module"),
        ((f"{__name__}:CPU",), "no kernel"),
    ],
)
def test_what_can_not_begin_is_status_2(arguments: tuple[str, ...], said: str) -> None:
    status, text = command(*arguments)
    assert status == 2
    assert said in text


def test_a_record_is_named_after_the_kernel_and_the_machine() -> None:
    def name(gpu: str | None) -> str:
        return record.file_name(record.Record({"kernel": "mine", "gpu": gpu}, (), {}))

    assert name(None) == "verify-mine-cpu.json"
    assert name("NVIDIA H200") == "verify-mine-h200.json"
    assert name("AMD Instinct MI300X") == "verify-mine-instinct-mi300x.json"


def test_a_record_says_which_sources_ran() -> None:
    made = record.make(record.named(f"{__name__}:QUICK"), CPU, 0, ["graphs"])
    assert made.body["sources"] == {"quick": kernel_sources.of(__name__)}


def test_where_the_sources_cannot_be_found_the_record_speaks_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(QUICK), "__module__", "made_by_hand")
    named = record.Named("by hand", QUICK, "(not installed)")
    assert record.make(named, CPU, 0, ["graphs"]).body["sources"] is None


def test_nothing_checked_is_no_pass() -> None:
    made = record.make(record.named(f"{__name__}:QUICK"), CPU, 0, ["graphs"])
    assert not made.passed
    assert "was not checked" in lines.closing(made)


def test_without_the_command_line(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    import sys

    from infera_compat.kernels.conformance import __main__

    file = tmp_path / "record.json"
    arguments = [f"{__name__}:QUICK", "--device", "cpu", "--only", "numerics", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    assert __main__.main() == 0
    assert "numerics             pass" in capsys.readouterr().out
    assert json.loads(file.read_text())["passed"] is True
    monkeypatch.setattr(sys, "argv", ["conformance", "no_such_kernel"])
    assert __main__.main() == 2


def test_guards_notice_a_write_beside_a_tensor() -> None:
    tensor = buffers.guarded((3, 4), torch.float16, CPU, strided=True)
    written = {"out": tensor}
    before = buffers.copies(written)
    tensor.fill_(1.0)
    assert not buffers.spilled(written, before)
    one_more_row(tensor)[-1, 0] = 1.0
    assert buffers.spilled(written, before) == ["out"]


def test_memory_that_is_shared_is_written_by_either() -> None:
    whole = buffers.guarded((4, 4), torch.float32, CPU)
    written = {"out": whole[:2], "workspace13": whole}
    before = buffers.copies(written)
    whole[3] = 1.0
    assert not buffers.spilled(written, before)
    assert memory.inputs(Subject(ReferenceAttention(), CPU))
