"""The entry point prepares a process, cheaply and once, and imports nothing that it patches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_vllm import Fake

PASSTHROUGH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
# The standard library's modules that `import vllm.plugins` has loaded before any plugin is.
ALREADY_THERE = (
    "ast, contextlib, dataclasses, difflib, email.message, hashlib, importlib.abc, "
    "importlib.metadata, importlib.util, inspect, json, logging, multiprocessing, "
    "multiprocessing.context, pathlib, re, socket, tempfile, typing, packaging.version"
)


@pytest.mark.parametrize("ops", [{}, PASSTHROUGH, {"INFERA_VLLM_OPS_DISABLE": "1"}])
def test_it_imports_nothing_of_vllm_torch_or_triton(fake: Fake, ops: dict[str, str]) -> None:
    ran = fake.run(
        """
        import sys
        from infera_compat.plugin import register_ops, register_platform
        register_platform()
        register_ops()
        heavy = {"vllm", "torch", "triton", "numpy", "infera_shims"}
        answer(heavy=sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
        """,
        **ops,
    )
    assert ran.answer == {"heavy": []}


def test_it_takes_no_longer_than_20_ms_beyond_what_vllm_imports_anyway(fake: Fake) -> None:
    code = f"""
        import time, {ALREADY_THERE}
        start = time.process_time()
        import infera_compat.plugin
        infera_compat.plugin.register_ops()
        answer(took=time.process_time() - start)
        """
    # What a machine does beside it only adds time: the first run within it is enough.
    assert any(fake.run(code, **PASSTHROUGH).answer["took"] <= 0.02 for _ in range(25))


def test_what_counts_as_there_already_is_the_standard_librarys_and_packagings() -> None:
    tops = {name.strip().partition(".")[0] for name in ALREADY_THERE.split(",")}
    assert tops - {"packaging"} <= sys.stdlib_module_names


def test_twice_is_as_once(fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "report.jsonl"
    ran = fake.run(
        """
        from infera_compat.plugin import register_ops
        register_ops()
        register_ops()
        from vllm.fake_engine import Engine
        register_ops()
        engine = Engine("attention", "modular-moe")
        register_ops()
        engine.step()
        from vllm.platforms import current_platform
        wrapped = type(current_platform).get_attn_backend_cls.__func__
        answer(layers=engine.layers(), wraps=hasattr(wrapped.__wrapped__, "__wrapped__"))
        """,
        INFERA_REPORT=str(file),
        **PASSTHROUGH,
    )
    assert [layer["calls"]["serving"] for layer in ran.answer["layers"].values()] == [1, 1]
    assert not ran.answer["wraps"]
    assert len(ran.said("INFO")) == 2
    assert len(file.read_text().splitlines()) == 3


def test_vllm_finds_it_by_its_entry_points(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.plugins import load_plugins_by_group
        answer(found={
            group: load_plugins_by_group(group)["infera_compat"].__qualname__
            for group in ("vllm.general_plugins", "vllm.platform_plugins")
        })
        """
    )
    assert ran.answer["found"] == {
        "vllm.general_plugins": "register_ops",
        "vllm.platform_plugins": "register_platform",
    }


def test_a_misspelt_variable_is_warned_of_with_the_likely_name(fake: Fake) -> None:
    ran = fake.serve("attention", INFERA_VLLM_OPS_DISABLED="1")
    assert ran.said("WARNING") == [
        "infera-compat: INFERA_VLLM_OPS_DISABLED is set and means nothing; "
        "did you mean INFERA_VLLM_OPS_DISABLE?"
    ]


def test_a_misspelt_variable_is_seen_where_vllm_has_no_handler_yet(fake: Fake) -> None:
    ran = fake.run(
        "from infera_compat.plugin import register_ops\nregister_ops()", INFERA_ATENTION="off"
    )
    assert "did you mean INFERA_ATTENTION?" in ran.err


def test_ray_gets_our_prefix_and_no_variable_of_vllms_is_set(fake: Fake) -> None:
    ran = fake.run(
        """
        import os
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        from vllm.ray import ray_env
        answer(
            prefixes=sorted(ray_env.DEFAULT_ENV_VAR_PREFIXES),
            ours=sorted(name for name in os.environ if name.startswith(("VLLM", "INFERA"))),
        )
        """,
        INFERA_VLLM_OPS_DISABLE="1",
    )
    assert ran.answer == {
        "prefixes": ["HF_", "INFERA_", "VLLM_"],
        "ours": ["INFERA_VLLM_OPS_DISABLE"],
    }


def test_ray_gets_our_prefix_where_its_module_was_imported_before(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.ray import ray_env
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        answer(prefixes=sorted(ray_env.DEFAULT_ENV_VAR_PREFIXES))
        """
    )
    assert ran.answer["prefixes"] == ["HF_", "INFERA_", "VLLM_"]


def test_a_ray_module_of_another_kind_is_warned_of_with_what_to_do(fake: Fake) -> None:
    fake.edit("ray/ray_env.py", "DEFAULT_ENV_VAR_PREFIXES: set[str] =", "PREFIXES =")
    ran = fake.run(
        """
        import vllm.logger
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        import vllm.ray.ray_env
        answer()
        """
    )
    (warning,) = ran.said("WARNING")
    assert "DEFAULT_ENV_VAR_PREFIXES" in warning
    assert "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY=INFERA_" in warning
