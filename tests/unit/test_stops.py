"""A setting that can't be meant stops a start, wherever there is one, and nothing else."""

from __future__ import annotations

import pytest
from fake_vllm import Fake

UNKNOWN = {"INFERA_ATTENTION": "passthru"}


def test_an_unknown_value_stops_the_start_in_the_entry_point(fake: Fake) -> None:
    ran = fake.run("from vllm.fake_engine import Engine\nEngine('attention')", **UNKNOWN)
    assert ran.status != 0
    last = ran.err.strip().splitlines()[-1]
    assert "INFERA_ATTENTION is not known" in last
    assert "auto, passthrough, off" in last
    assert "register_ops" in ran.err


START_AGAIN = """
    {first}
    from infera_compat.errors import CompatError
    from vllm.fake_engine import Engine
    stopped = []
    for _ in range({starts}):
        try:
            Engine("attention")
        except CompatError:
            stopped.append(True)
        else:
            stopped.append(False)
    answer(stopped=stopped)
    """


def test_a_second_start_in_the_same_process_is_stopped_too(fake: Fake) -> None:
    assert fake.run(START_AGAIN.format(first="", starts=2), **UNKNOWN).answer["stopped"] == [
        True,
        True,
    ]


def test_no_later_start_in_the_same_process_goes_on_in_silence(fake: Fake) -> None:
    assert (
        fake.run(START_AGAIN.format(first="", starts=4), **UNKNOWN).answer["stopped"] == [True] * 4
    )


def test_a_start_is_stopped_where_the_worker_was_imported_before(fake: Fake) -> None:
    code = START_AGAIN.format(first="import vllm.v1.worker.gpu_worker", starts=1)
    assert fake.run(code, **UNKNOWN).answer["stopped"] == [True]


def test_the_kill_switch_comes_before_every_other_setting(fake: Fake) -> None:
    ran = fake.run(
        "from vllm.fake_engine import Engine\nanswer(first=Engine('attention').step())",
        INFERA_VLLM_OPS_DISABLE="1",
        INFERA_MOE="nonsense",
        INFERA_STRICT="nonsense",
        INFERA_PLATFORM="nonsense",
        **UNKNOWN,
    )
    assert ran.answer["first"] == [4, 6, 8]


def test_a_kill_switch_that_says_neither_yes_nor_no_stops_the_start(fake: Fake) -> None:
    ran = fake.run(
        "from vllm.fake_engine import Engine\nEngine('attention')", INFERA_VLLM_OPS_DISABLE="please"
    )
    assert ran.status != 0
    assert "INFERA_VLLM_OPS_DISABLE is neither yes nor no" in ran.err


@pytest.fixture
def vllm(fake: Fake) -> str:
    """vLLM's console script."""
    return str(fake.write("bin/vllm", "import vllm.entrypoints.cli\n"))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["-h"],
        ["-v"],
        ["--version"],
        ["serve", "--help"],
        ["bench", "serve", "-h"],
        ["serve", "--help=all"],
    ],
    ids=" ".join,
)
def test_help_and_version_are_never_stopped(fake: Fake, vllm: str, words: list[str]) -> None:
    ran = fake.run(None, *words, command=(vllm,), **UNKNOWN)
    assert (ran.status, ran.out) == (0, "asked\n"), ran.err.splitlines()[-1]


def test_a_module_of_vllms_entry_points_may_be_asked_too(fake: Fake) -> None:
    ran = fake.run(None, "--help", command=("-m", "vllm.entrypoints.cli"), **UNKNOWN)
    assert (ran.status, ran.out) == (0, "asked\n"), ran.err.splitlines()[-1]


@pytest.mark.parametrize("words", [["serve", "model"], ["serve", "--enable-helpers"]])
def test_vllms_own_command_line_is_stopped_where_it_starts(
    fake: Fake, vllm: str, words: list[str]
) -> None:
    assert fake.run(None, *words, command=(vllm,), **UNKNOWN).status != 0


@pytest.mark.parametrize("words", [["-v"], ["--help"], []])
def test_a_script_of_the_users_own_is_not_taken_for_it(fake: Fake, words: list[str]) -> None:
    script = fake.write("serve.py", "import vllm.entrypoints.cli\n")
    ran = fake.run(None, *words, command=(str(script),), **UNKNOWN)
    assert ran.status != 0
    assert "INFERA_ATTENTION is not known" in ran.err


def test_a_question_that_starts_a_model_after_all_is_stopped_there(fake: Fake) -> None:
    script = fake.write("bin/vllm", "from vllm.fake_engine import Engine\nEngine('attention')\n")
    ran = fake.run(None, "--help", command=(str(script),), **UNKNOWN)
    assert ran.status != 0
    assert "load_general_plugins" not in ran.err


def test_the_inspection_of_a_model_class_is_never_stopped_and_registers_nothing(fake: Fake) -> None:
    registry = ("-m", "vllm.model_executor.models.registry")
    ran = fake.run(None, command=registry, INFERA_REPORT=str(fake.site / "report"), **UNKNOWN)
    assert (ran.status, ran.out) == (0, "inspected\n"), ran.err
    ran = fake.run(None, command=registry, INFERA_REPORT=str(fake.site / "report"))
    assert ran.status == 0
    assert not (fake.site / "report").exists()


def test_what_a_script_sets_after_importing_vllm_counts(fake: Fake) -> None:
    code = """
        import os
        from vllm.platforms import current_platform
        current_platform.device_type
        os.environ["INFERA_ATTENTION"] = "passthrough"
        from vllm.fake_engine import Engine
        answer(layers=Engine("attention").layers())
        """
    (layer,) = fake.run(code).answer["layers"].values()
    assert layer["bound"]


@pytest.mark.parametrize("words", [["collect-env"], ["chat"]])
def test_subcommands_that_start_no_model_are_not_stopped(
    fake: Fake, vllm: str, words: list[str]
) -> None:
    assert fake.run(None, *words, command=(vllm,), **UNKNOWN).status == 0
