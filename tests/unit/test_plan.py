"""Which seams an op is to be bound by, and why it is not by each of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import FUSED_MOE, RECORDED, Fake

from infera_compat import install, release
from infera_compat.install import Installation
from infera_compat.ledger import Choice
from infera_compat.settings import SEAMS, Settings

Judged = Callable[..., Installation]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judged:
    """An installation that has judged this vLLM under these settings; nothing is bound."""

    def judge(fake: Fake, **settings: str) -> Installation:
        monkeypatch.setattr(install, "installed", lambda: release.at(fake.root))
        installation = Installation(Settings(**settings))  # type: ignore[arg-type]
        installation.judge()
        return installation

    return judge


def choices(installation: Installation) -> list[Choice]:
    return list(installation.ledger.choices.values())


def automatic(line: str, op: str, device: str) -> tuple[str, ...]:
    if op == "attention":
        return ("get_attn_backend_cls", "layer")
    return ("register_oot",) if device == "cpu" and line != "main" else ("modular_kernel",)


@pytest.mark.parametrize("line", RECORDED)
def test_automatically_an_op_is_bound_by_its_best_seams(
    make_fake: Callable[..., Fake], judged: Judged, line: str
) -> None:
    installation = judged(make_fake(line), attention="passthrough", moe="passthrough")
    for choice in choices(installation):
        for device in ("cpu", "cuda", "rocm", "xpu"):
            plan = installation.plan(choice, device)
            assert plan == automatic(line, choice.op, device)
            others = [seam for seam in SEAMS[choice.op] if seam not in plan]
            variable = f"INFERA_{choice.op.upper()}_SEAM"
            assert choice.not_taken == {seam: f"only by {variable}={seam}" for seam in others}


def asking(op: str, asked: str, forced: str) -> Choice:
    return Choice(op, asked, forced, asked if asked == "passthrough" else None, why_not="unasked")


@pytest.mark.parametrize("line", RECORDED)
def test_a_forced_seam_is_taken_alone_on_every_device(
    make_fake: Callable[..., Fake], judged: Judged, line: str
) -> None:
    installation = judged(make_fake(line))
    for op, seams in SEAMS.items():
        for seam in seams:
            choice = asking(op, "passthrough", seam)
            reason = f"INFERA_{op.upper()}_SEAM={seam}"
            for device in ("cpu", "cuda"):
                assert installation.plan(choice, device) == (seam,)
                assert choice.not_taken == {other: reason for other in seams if other != seam}


@pytest.mark.parametrize(
    ("asked", "seam", "why"),
    [
        ("auto", "auto", "nothing to bind (auto: not known without a GPU)"),
        ("auto", "model", "nothing to bind (auto: not known without a GPU)"),
        ("off", "auto", "nothing to bind (INFERA_{OP}=off)"),
        ("off", "model", "nothing to bind (INFERA_{OP}=off)"),
    ],
)
def test_without_a_kernel_no_seam_is_taken_and_each_says_why(
    fake: Fake, judged: Judged, asked: str, seam: str, why: str
) -> None:
    settings = {"attention": asked, "moe": asked, "attention_seam": seam, "moe_seam": seam}
    installation = judged(fake, **settings)
    for choice in choices(installation):
        assert installation.plan(choice, "cuda") == ()
        reason = why.replace("{OP}", choice.op.upper())
        assert choice.not_taken == dict.fromkeys(SEAMS[choice.op], reason)


def test_every_seam_has_a_fate_whatever_is_asked_and_whatever_moved(
    fake: Fake, judged: Judged
) -> None:
    fake.edit("v1/attention/backend.py", "def forward(", "def forward_(")
    installation = judged(fake)
    for asked in ("auto", "passthrough", "off"):
        for forced in ("auto", *SEAMS["attention"]):
            choice = asking("attention", asked, forced)
            plan = installation.plan(choice, "cpu")
            assert {*plan, *choice.not_taken} == set(SEAMS["attention"])
            assert not set(plan) & set(choice.not_taken)
            assert all(choice.not_taken.values())


# By what moves: the file, what stands there, what stands there then, and the seams that need it.
MOVES = {
    "Attention.__init__": (
        "model_executor/layers/attention/attention.py",
        "self, num_heads, head_size, scale,",
        "self, head_size, num_heads, scale,",
        {"layer", "model"},
    ),
    "PluggableLayer.register_oot": (
        "model_executor/custom_op.py",
        "_decorated_layer_cls=None",
        "layer_cls=None",
        {"pluggable_layer"},
    ),
    "ModelRegistry": (
        "model_executor/models/registry.py",
        "ModelRegistry = _ModelRegistry",
        "Registry = _ModelRegistry",
        {"model"},
    ),
    "builtin_platform_plugins": (
        "platforms/__init__.py",
        "builtin_platform_plugins = ",
        "builtin_plugins = ",
        {"platform"},
    ),
    "AttentionImpl.forward": (
        "v1/attention/backend.py",
        "output_scale=None, output_block_scale=None",
        "output_block_scale=None, output_scale=None",
        {"get_attn_backend_cls", "platform", "layer", "model"},
    ),
    "WorkerBase.execute_model": (
        "v1/worker/worker_base.py",
        "def execute_model(self, scheduler_output)",
        "def execute_model(self, batch)",
        set(SEAMS["attention"]),
    ),
}


@pytest.mark.parametrize("what", MOVES)
def test_what_moved_takes_only_the_seams_that_stand_on_it(
    fake: Fake, judged: Judged, what: str
) -> None:
    file, before, after, hit = MOVES[what]
    installation = judged(fake.edit(file, before, after), attention="passthrough")
    choice = installation.ledger.choices["attention"]
    plan = installation.plan(choice, "cuda")
    moved = {seam for seam, why in choice.not_taken.items() if why.startswith("moved: ")}
    assert moved == hit
    assert all(what in choice.not_taken[seam] for seam in moved)
    assert plan == tuple(x for x in ("get_attn_backend_cls", "layer") if x not in hit)
    assert choice.kernel == ("passthrough" if plan else None)


@pytest.mark.parametrize("seam", SEAMS["moe"])
def test_a_forced_seam_that_moved_leaves_the_op_stock_and_no_other_is_taken(
    fake: Fake, judged: Judged, seam: str
) -> None:
    fake.edit("v1/core/sched/output.py", "total_num_scheduled_tokens: int", "tokens: int")
    installation = judged(fake, moe="passthrough", moe_seam=seam)
    choice = installation.ledger.choices["moe"]
    assert installation.plan(choice, "cuda") == ()
    assert choice.kernel is None
    assert choice.why_not == (
        "moved: vllm.v1.core.sched.output:SchedulerOutput.total_num_scheduled_tokens"
    )


def test_what_tells_a_cpus_moe_seam_counts_on_a_cpu_alone(fake: Fake, judged: Judged) -> None:
    fake.edit(f"{FUSED_MOE}/experts/cpu_moe.py", "class CPUUnquantizedExperts", "class Others")
    installation = judged(fake, moe="passthrough")
    plans = {}
    for device in ("cpu", "cuda"):
        choice = installation.choose("moe")
        plans[device] = installation.plan(choice, device)
    assert plans == {"cpu": (), "cuda": ("modular_kernel",)}


def test_a_forced_seam_does_not_ask_what_a_cpu_has(fake: Fake, judged: Judged) -> None:
    fake.edit(f"{FUSED_MOE}/experts/cpu_moe.py", "class CPUUnquantizedExperts", "class Others")
    installation = judged(fake, moe="passthrough", moe_seam="model")
    assert installation.plan(installation.ledger.choices["moe"], "cpu") == ("model",)
