"""`auto` in a process of vLLM's: a kernel with records is bound, and an accident leaves stock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from fake_kernels import GROUP, kernel
from fake_records import GPU, put, ship
from fake_vllm import Fake

KEY = "INFERA_COMPAT_FINGERPRINT"
OURS, STOCK = [100, 101, 102], [4, 6, 8]
"""What an attention layer gives for 0, 1, 2: by the stand-in below, and by stock's code."""

# An adapter without torch: takes what its table has, fails where STAGE says, and adds 100.
STAND_IN = """
    import os
    from infera_compat.errors import CompatError, Refused

    class Panic(BaseException):
        pass

    class Speechless(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def stage(name):
        if os.environ.get("STAGE") == name:
            raise ValueError(f"a mistake in {name}")
        if os.environ.get("STAGE") == f"{name} panics":
            raise Panic(f"a panic in {name}")
        if os.environ.get("STAGE") == f"{name} is lost for words":
            raise Speechless
        if os.environ.get("STAGE") == f"{name} exits":
            raise SystemExit(7)
        if os.environ.get("STAGE") == f"{name} stops":
            raise CompatError(f"{name} failed", found="this", expected="that", do="Mend it.")

    class Adapter:
        def __init__(self, kernel, ledger):
            stage("adapt")
            self.kernel, self.ledger, self.measured, self.config = kernel, ledger, None, None
            self.specs = {}

        def begin(self, config):
            self.config, self.specs = config, {}

        def decide(self, name, *built):
            stage("decide")
            if os.environ.get("STAGE") == "none":
                raise Refused("it takes no layer")
            if os.environ.get("STAGE") == "decide later" and self.specs:
                raise ValueError("a mistake in the second layer")
            self.specs[name] = "spec"
            return "spec"

        def check_measured(self, name, over):
            if self.measured is not None and over not in self.measured.baselines:
                raise Refused(f"not measured over {over}")

        def choose(self, settings, source):
            stage("choose")
            self.source = source

        def reserve(self):
            stage("reserve")

        def look_at_caches(self):
            stage("look_at_caches")

        def drop_unmeasured(self):
            pass

        def warm_up(self):
            stage("warm_up")

        def run(self, layer, query, kv_cache, step, output, *scales):
            if layer.layer_name not in self.specs:
                return False
            output[:] = [100 + x for x in query]
            return True

    class Experts(Adapter):
        def takes(self, name, spec, experts, call):
            return name in self.specs

        def run(self, spec, call):
            call["output"][:] = [100 + x for x in call["hidden_states"]]

    def adapt(kernel, ledger):
        return (Experts if kernel.op == "experts" else Adapter)(kernel, ledger)
    """
FIRST = "import infera_shims, stand_in\ninfera_shims.adapt = stand_in.adapt"


@pytest.fixture
def shipped(make_fake: Callable[..., Fake]) -> Callable[..., Fake]:
    """A vLLM on a GPU, beside kernels that ship all that `auto` asks for."""

    def make(*kernels: tuple[str, dict[str, Any]], line: str = "main") -> Fake:
        fake = make_fake(line, device="cuda")
        fake.write("stand_in.py", STAND_IN)
        for name, given in kernels or (("one", {}),):
            given = {"op": "attention", "release": "0.32.0"} | given
            fake.write(f"of_{name}/__init__.py", kernel(name, given["op"]))
            fake.entry_point(f"dist_{name}", GROUP, name, f"of_{name}:KERNEL")
            digest = fake.run(
                f"from infera_compat.kernels import sources\nanswer(x=sources.of('of_{name}'))"
            ).answer["x"]
            ship(fake.site / f"of_{name}", name, digest, **given)
        return fake

    return make


def serve(fake: Fake, *layers: str, more: str = "", **environ: str) -> Any:
    return fake.serve(*(layers or ("attention",)), first=FIRST, more=more, **environ)


def layers_of(ran: Any) -> list[tuple[bool, str | None]]:
    return [(layer["bound"], layer["kernel"]) for layer in ran.answer["layers"].values()]


def test_a_kernel_with_records_is_bound_and_runs(shipped: Callable[..., Fake]) -> None:
    ran = serve(shipped(), "attention", "attention")
    assert layers_of(ran) == [(True, "one")] * 2
    assert [x["calls"]["serving"] for x in ran.answer["layers"].values()] == [1, 1]
    assert ran.answer["results"] == [[200 + x for x in range(3)]]
    start, built = ran.said("INFO")
    assert "attention: one (auto) by get_attn_backend_cls, layer" in start
    assert f"moe: stock (auto: no eligible kernel (none has a table for {GPU}))" in start
    assert "attention: 2/2 layers by get_attn_backend_cls over FLASH_ATTN, one" in built
    assert ran.said("WARNING") == []


def test_it_is_in_the_compile_key_as_a_named_one_is(shipped: Callable[..., Fake]) -> None:
    fake = shipped()
    more = f"from vllm import envs\nprint('key', envs.compile_factors().get({KEY!r}))"
    keys = [
        [line for line in serve(fake, more=more, **asked).out.splitlines() if "key" in line]
        for asked in ({}, {"INFERA_ATTENTION": "one"}, {"INFERA_ATTENTION": "off"})
    ]
    assert keys[0] == keys[1] != keys[2] == ["key None"]


NOT_BOUND: dict[str, tuple[dict[str, str], Callable[[Fake], Any], str]] = {
    "another GPU": (
        {},
        lambda fake: fake.edit("platforms/cuda.py", '"NVIDIA Fake"', '"NVIDIA L4"'),
        "auto: no eligible kernel (none has a table for NVIDIA L4)",
    ),
    "a CPU": (
        {},
        lambda fake: fake.edit("platforms/cuda.py", 'device_type = "cuda"', 'device_type = "cpu"'),
        "auto: no kernel is chosen on a cpu",
    ),
    "--attention-backend": (
        {},
        lambda fake: fake.edit(
            "config/__init__.py",
            "class AttentionConfig:\n    backend: str | None = None",
            "class AttentionConfig:\n    backend: str | None = 'FLASH_ATTN'",
        ),
        "auto: vLLM was told its attention backend, FLASH_ATTN",
    ),
    "backend_per_kind": (
        {},
        lambda fake: fake.edit(
            "config/__init__.py",
            "backend_per_kind: dict = field(default_factory=dict)",
            "backend_per_kind: dict = field(default_factory=lambda: {'window': 'X'})",
        ),
        "auto: vLLM was told its attention backends, for window",
    ),
    "VLLM_BATCH_INVARIANT": (
        {"VLLM_BATCH_INVARIANT": "1"},
        lambda fake: None,
        "auto: VLLM_BATCH_INVARIANT is set",
    ),
    "no records": (
        {},
        lambda fake: next((fake.site / "of_one/records").glob("verify-*")).unlink(),
        f"auto: no eligible kernel (one: no record of verify on {GPU})",
    ),
    "other sources": (
        {},
        lambda fake: (fake.site / "of_one/__init__.py").write_text(kernel("one") + "A = 1\n"),
        f"auto: no eligible kernel (one: verify on {GPU} ran other sources than those installed)",
    ),
    "other stock code": (
        {},
        lambda fake: fake.edit("v1/attention/backends/flash_attn.py", '"FLASH_ATTN"', '"FLEX"'),
        "auto: one did not measure faster than FLEX",
    ),
    "no layer that it takes": (
        {"STAGE": "none"},
        lambda fake: None,
        "it takes no layer",
    ),
}


@pytest.mark.parametrize("strict", ["", "1"])
@pytest.mark.parametrize("what", NOT_BOUND)
def test_where_it_stands_back_all_is_stock_and_no_key_enters_vllms_cache(
    shipped: Callable[..., Fake], what: str, strict: str
) -> None:
    environ, spoil, why = NOT_BOUND[what]
    fake = shipped()
    spoil(fake)
    more = f"from vllm import envs\nassert {KEY!r} not in envs.environment_variables"
    ran = serve(fake, more=more, INFERA_STRICT=strict, **environ)
    assert layers_of(ran) == [(False, None)]
    (layer,) = ran.answer["layers"].values()
    assert layer["why_not"] == why
    assert ran.answer["results"] == [STOCK]
    assert ran.said("WARNING") == []
    assert ran.answer["report"]["ops"]["attention"]["kernel"] is None


def test_the_book_says_why_each_kernel_is_not_chosen(shipped: Callable[..., Fake]) -> None:
    fake = shipped(("one", {}), ("two", {"gpu": "NVIDIA H200"}))
    next((fake.site / "of_one/records").glob("bench-*")).unlink()
    ran = serve(fake)
    told = ran.answer["report"]["ops"]["attention"]["not_chosen"]
    assert {name: told[name] for name in ("one", "two")} == {
        "one": f"no record of bench on {GPU} with vLLM's line main",
        "two": "no table for this GPU",
    }


def test_a_model_of_mla_is_none_for_a_kernel_for_attention(shipped: Callable[..., Fake]) -> None:
    fake = shipped()
    fake.edit("config/__init__.py", "use_mla: bool = False", "use_mla: bool = True")
    ran = serve(fake, "mla")
    (layer,) = ran.answer["layers"].values()
    said = "auto: no eligible kernel (one: it is for attention, the model has mla_decode)"
    assert (layer["bound"], layer["why_not"]) == (False, said)


BROKEN: dict[str, tuple[Callable[[Fake], Any], str]] = {
    "table": (
        lambda fake: put(next((fake.site / "of_one/tables").iterdir()), "{"),
        "is no table of measurements",
    ),
    "record": (
        lambda fake: put(next((fake.site / "of_one/records").glob("bench-*")), "[]"),
        "is no record",
    ),
    "module": (
        lambda fake: (fake.site / "of_one/__init__.py").write_text("1 / 0"),
        "can't be loaded",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_a_warning_and_stock_and_stops_under_strict(
    shipped: Callable[..., Fake], what: str
) -> None:
    spoil, words = BROKEN[what]
    fake = shipped()
    spoil(fake)
    ran = serve(fake)
    assert (layers_of(ran), ran.answer["results"]) == ([(False, None)], [STOCK])
    (warning,) = ran.said("WARNING")
    assert "one of dist_one 1.0 is not chosen automatically" in warning
    for part in (words, "Found: ", "Expected: ", "INFERA_VLLM_OPS_DISABLE=1"):
        assert part in warning
    stopped = serve(fake, INFERA_STRICT="1")
    assert stopped.status != 0
    assert words in stopped.err.strip().splitlines()[-1]


STAGES = ("adapt", "decide", "decide later", "choose", "reserve")


@pytest.mark.parametrize("stage", [*STAGES, "decide stops", "reserve stops"])
def test_an_accident_on_the_way_leaves_the_op_to_stock_whole(
    shipped: Callable[..., Fake], stage: str
) -> None:
    fake = shipped()
    more = f"from vllm import envs\nassert {KEY!r} not in envs.environment_variables"
    ran = serve(fake, "attention", "explicit", more=more, STAGE=stage)
    assert ran.answer is not None
    assert layers_of(ran) == [(False, None)] * 2
    assert ran.answer["results"] == [[12, 16, 20]]
    (warning,) = ran.said("WARNING")
    for part in ("stays stock", "Found: ", "Expected: ", "INFERA_VLLM_OPS_DISABLE=1"):
        assert part in warning
    stopped = serve(fake, "attention", "explicit", STAGE=stage, INFERA_STRICT="1")
    assert stopped.status != 0
    assert "CompatError" in stopped.err


@pytest.mark.parametrize("stage", ["decide stops", "reserve stops", "choose"])
def test_the_same_of_a_kernel_that_was_asked_for_stops_the_start(
    shipped: Callable[..., Fake], stage: str
) -> None:
    assert serve(shipped(), INFERA_ATTENTION="one", STAGE=stage).status != 0


WARM = """
    from vllm.fake_engine import Engine
    engine = Engine("attention", "explicit")
    before = engine.step()
    engine.worker.compile_or_warm_up_model()
    answer(before=before, after=engine.step(), layers=engine.layers(), report=engine.report())
    """


OTHERS = ("decide panics", "reserve panics", "decide is lost for words", "choose is lost for words")


@pytest.mark.parametrize("stage", OTHERS)
def test_an_accident_of_another_kind_leaves_the_op_to_stock_too(
    shipped: Callable[..., Fake], stage: str
) -> None:
    fake = shipped()
    ran = serve(fake, "attention", "explicit", STAGE=stage)
    assert (layers_of(ran), ran.answer["results"]) == ([(False, None)] * 2, [[12, 16, 20]])
    (warning,) = ran.said("WARNING")
    assert "one of dist_one 1.0, which was chosen automatically" in warning
    assert serve(fake, "attention", "explicit", STAGE=stage, INFERA_STRICT="1").status != 0


def test_an_exit_that_vllm_is_told_meanwhile_is_not_swallowed(shipped: Callable[..., Fake]) -> None:
    """vLLM's engine core takes SIGTERM as a SystemExit, once, wherever it is then."""
    ran = shipped().run(FIRST + dedent(WARM), STAGE="warm_up exits")
    assert ran.status == 7


@pytest.mark.parametrize(
    "stage", ["look_at_caches", "warm_up", "warm_up stops", "warm_up is lost for words"]
)
def test_an_accident_in_warming_up_leaves_the_op_to_stock_whole(
    shipped: Callable[..., Fake], stage: str
) -> None:
    fake = shipped()
    ran = fake.run(FIRST + dedent(WARM), STAGE=stage)
    assert ran.answer["before"] == [200, 201, 202]
    assert ran.answer["after"] == [12, 16, 20]
    assert layers_of(ran) == [(False, None)] * 2
    (warning,) = ran.said("WARNING")
    assert "one of dist_one 1.0, which was chosen automatically" in warning
    stopped = fake.run(FIRST + dedent(WARM), STAGE=stage, INFERA_STRICT="1")
    assert stopped.status != 0


def test_experts_are_chosen_by_themselves(shipped: Callable[..., Fake]) -> None:
    fake = shipped(("two", {"op": "experts"}))
    ran = serve(fake, "attention", "modular-moe")
    assert layers_of(ran) == [(False, None), (True, "two")]
    assert "moe: two (auto) by modular_kernel" in ran.said("INFO")[0]
    stock = serve(fake, "attention", "modular-moe", INFERA_MOE="off").answer["results"]
    assert ran.answer["results"] != stock
    for stage in ("decide", "reserve"):
        failed = serve(fake, "attention", "modular-moe", STAGE=stage)
        assert failed.answer["results"] == stock
        assert len(failed.said("WARNING")) == 1
    fake.edit("config/__init__.py", 'moe_backend: str = "auto"', 'moe_backend: str = "triton"')
    told = serve(fake, "attention", "modular-moe")
    assert told.answer["results"] == stock
    assert "moe: stock (auto: vLLM was told its MoE backend, triton)" in told.said("INFO")[0]


def test_a_dense_model_keeps_no_key_of_experts_that_were_eligible(
    shipped: Callable[..., Fake],
) -> None:
    more = f"from vllm import envs\nassert {KEY!r} not in envs.environment_variables"
    ran = serve(shipped(("two", {"op": "experts"})), "attention", more=more)
    assert ran.answer["results"] == [STOCK]
    assert (
        "takes no layer of this model (there is none)"
        in (ran.answer["report"]["ops"]["moe"]["why_not"])
    )


def test_of_two_kernels_the_layers_own_backend_says_which(shipped: Callable[..., Fake]) -> None:
    two = (("one", {"cells": 2}), ("two", {"over": "TRITON_ATTN", "cells": 5}))
    fake = shipped(*two)
    ran = serve(fake)
    assert layers_of(ran) == [(True, "one")]
    assert "attention: one or two (auto) by" in ran.said("INFO")[0]
    fake.edit("v1/attention/backends/flash_attn.py", '"FLASH_ATTN"', '"TRITON_ATTN"')
    assert layers_of(serve(fake)) == [(True, "two")]


def test_layers_over_other_stock_code_than_most_stay_stock(shipped: Callable[..., Fake]) -> None:
    ran = serve(shipped(), "attention", "attention", "explicit")
    names = {x["over"]: (x["bound"], x["why_not"]) for x in ran.answer["layers"].values()}
    assert names["FLASH_ATTN"] == (True, None)
    others = {over: fate for over, fate in names.items() if over != "FLASH_ATTN"}
    assert all(fate == (False, f"not measured over {over}") for over, fate in others.items())


LATER = """
    from vllm.fake_engine import Engine
    from vllm.config import AttentionConfig
    def built(kind):
        layers = Engine(kind).layers().values()
        return [[layer["kernel"], layer["why_not"]] for layer in layers]
    found = [built("monolithic-moe"), built("attention")]
    real = AttentionConfig.__init__
    AttentionConfig.__init__ = lambda self: real(self, "FLASH_ATTN")
    found.append(built("attention"))
    AttentionConfig.__init__ = real
    found.append(built("attention"))
    answer(found=found)
    """


def test_a_later_model_is_looked_at_anew(shipped: Callable[..., Fake]) -> None:
    ran = shipped().run(FIRST + dedent(LATER))
    moe, first, told, last = ran.answer["found"]
    assert moe[0][0] is None
    assert first == [["one", None]]
    assert told == [[None, "auto: vLLM was told its attention backend, FLASH_ATTN"]]
    assert last == [["one", None]]


def test_off_and_passthrough_look_for_no_kernel(shipped: Callable[..., Fake]) -> None:
    for asked in ("off", "passthrough"):
        ran = serve(shipped(), INFERA_ATTENTION=asked, INFERA_MOE="off")
        assert ran.answer["results"] == [STOCK]


@pytest.mark.parametrize("line", ["v0_22", "v0_23", "v0_24", "main"])
def test_in_every_line_of_releases(shipped: Callable[..., Fake], line: str) -> None:
    release = {"v0_22": "0.22.0", "v0_23": "0.23.0", "v0_24": "0.26.0", "main": "0.33.0"}[line]
    fake = shipped(("one", {"release": release}), line=line)
    assert layers_of(serve(fake)) == [(True, "one")]


def test_a_platform_that_can_t_name_its_gpu_is_an_accident(shipped: Callable[..., Fake]) -> None:
    fake = shipped()
    fake.edit("platforms/cuda.py", 'return "NVIDIA Fake"', "raise OSError('no driver')")
    ran = serve(fake)
    assert ran.answer["results"] == [STOCK]
    assert [text for text in ran.said("WARNING") if "attention stays stock" in text]
    assert serve(fake, INFERA_STRICT="1").status != 0


def test_the_report_says_what_would_be_chosen(shipped: Callable[..., Fake]) -> None:
    fake = shipped(("one", {}), ("two", {"op": "experts", "gpu": "NVIDIA H200"}))
    main = "from infera_compat.cli import main\nmain()"
    gpu = (
        "import torch\n"
        "torch.cuda.is_available = lambda: True\n"
        f"torch.cuda.get_device_name = lambda: {GPU!r}\n"
    )
    path = fake.without_plugin()
    facts = json.loads(fake.run(gpu + main, "report", "--json", path=path).out)
    assert facts["gpu"] == GPU
    attention, moe = facts["ops"]["attention"], facts["ops"]["moe"]
    assert (attention["kernel"], attention["why_not"]) == ("one", None)
    assert attention["seams"]["get_attn_backend_cls"] == "taken on cuda"
    assert moe["why_not"] == f"auto: no eligible kernel (none has a table for {GPU})"
    assert moe["not_chosen"] == {"two": "no table for this GPU"}
    told = fake.run(gpu + main, "report", path=path, COLUMNS="200", TERM="dumb").out
    assert "not chosen: no table for this GPU" in told
    blind = json.loads(fake.run(main, "report", "--json", path=path).out)
    assert blind["gpu"] is None
    assert blind["ops"]["attention"]["why_not"] == "auto: not known without a GPU"


def test_looking_costs_a_process_without_tables_no_module_of_a_kernel(
    make_fake: Callable[..., Fake], tmp_path: Path
) -> None:
    fake = make_fake(device="cuda")
    fake.write("loud.py", "print('noise')\n" + kernel("loud"))
    fake.entry_point("dist_loud", GROUP, "loud", "loud:KERNEL")
    more = "import sys\nassert 'infera_compat.kernels.attention.contract' not in sys.modules"
    ran = fake.serve("attention", more=more)
    assert "noise" not in ran.out
    assert layers_of(ran) == [(False, None)]
