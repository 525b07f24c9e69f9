"""The kill switch: this vLLM is as if infera-compat were not there, and one line says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_vllm import Fake

ALL_ON = {
    "INFERA_ATTENTION": "passthrough",
    "INFERA_MOE": "passthrough",
    "INFERA_ATTENTION_SEAM": "platform",
    "INFERA_STRICT": "1",
}
# What every class of every loaded module of vLLM holds, and every instance's own attributes.
PICTURE = """
    import sys
    from vllm.fake_engine import Engine
    engine = Engine("attention", "modular-moe")
    first = engine.step()

    def own(thing):
        return {name: f"{type(value).__name__} {getattr(value, '__qualname__', '')} "
                      f"{getattr(value, '__module__', '')} {hasattr(value, '__wrapped__')}"
                for name, value in sorted(vars(thing).items()) if name != "__dict__"}

    modules = {name: module for name, module in sys.modules.items() if name.startswith("vllm")}
    from vllm import envs
    from vllm.platforms import current_platform
    answer(
        first=first,
        classes={f"{name}:{key}": own(value) for name, module in sorted(modules.items())
                 for key, value in sorted(vars(module).items()) if isinstance(value, type)},
        worker=own(engine.worker),
        layers=[(type(layer).__qualname__, own(layer)) for layer in engine.worker.model.layers],
        platform=type(current_platform).__qualname__,
        compile=envs.compile_factors(),
        ours=sorted(name for name in sys.modules if name.startswith("infera_shims")),
    )
    """


@pytest.mark.parametrize(
    ("line", "device"), [("v0_22", "cuda"), ("v0_23", "cpu"), ("main", "cpu"), ("main", "cuda")]
)
def test_no_class_object_or_compile_key_of_vllm_is_touched(
    make_fake: Callable[..., Fake], line: str, device: str
) -> None:
    fake = make_fake(line, device=device)
    absent = fake.run(PICTURE, path=fake.without_plugin()).answer
    disabled = fake.run(PICTURE, INFERA_VLLM_OPS_DISABLE="1", **ALL_ON).answer
    assert disabled == absent
    enabled = fake.run(PICTURE, **ALL_ON).answer
    assert all(
        enabled[part] != absent[part] for part in ("classes", "worker", "compile", "platform")
    )
    assert enabled["first"] == absent["first"]


def test_bound_to_nothing_leaves_the_compile_key_as_it_was(fake: Fake) -> None:
    absent = fake.run(PICTURE, path=fake.without_plugin()).answer
    auto = fake.run(PICTURE).answer
    assert (auto["compile"], auto["platform"]) == (absent["compile"], absent["platform"])


@pytest.mark.parametrize("configures_logging", [True, False])
def test_one_line_says_so_in_a_process_that_serves(
    make_fake: Callable[..., Fake], configures_logging: bool
) -> None:
    ran = make_fake(configures_logging=configures_logging).run(
        "from vllm.fake_engine import Engine\nEngine('attention').step()",
        INFERA_VLLM_OPS_DISABLE="yes",
    )
    assert ran.log == [
        ("INFO", "infera-compat 0.1.0 is off (INFERA_VLLM_OPS_DISABLE=1): this vLLM is stock.")
    ]


def test_nothing_is_said_in_a_process_that_builds_no_worker(fake: Fake) -> None:
    ran = fake.run(
        "import vllm.logger\nfrom vllm.plugins import load_general_plugins\nload_general_plugins()",
        INFERA_VLLM_OPS_DISABLE="1",
    )
    assert (ran.out, ran.err) == ("", "")


def test_no_report_is_written(fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "report.jsonl"
    fake.run(
        "from vllm.fake_engine import Engine\nEngine('attention').step()",
        INFERA_VLLM_OPS_DISABLE="1",
        INFERA_REPORT=str(file),
    )
    assert not file.exists()
