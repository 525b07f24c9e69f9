from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infera_compat.errors import OFF_SWITCH, CompatError
from infera_compat.settings import MODES, NO, SEAMS, YES, Settings, disabled

NO_KERNELS: dict[str, tuple[str, ...]] = {"attention": (), "moe": ()}
KERNELS = {"attention": ("decode",), "moe": ("experts",)}


def test_nothing_set_asks_for_nothing() -> None:
    assert Settings.read({}, NO_KERNELS) == Settings(
        "auto", "auto", False, None, attention_seam="auto", moe_seam="auto", misspelt=()
    )


@pytest.mark.parametrize("op", ["attention", "moe"])
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_of_each_op_is_read(op: str, mode: str) -> None:
    settings = Settings.read({f"INFERA_{op.upper()}": mode}, NO_KERNELS)
    assert settings.asked(op) == mode
    assert {settings.attention, settings.moe} <= {mode, "auto"}


@pytest.mark.parametrize("op", ["attention", "moe"])
def test_a_kernel_is_asked_for_by_its_name_and_for_its_own_op_alone(op: str) -> None:
    own, other = KERNELS[op][0], KERNELS["moe" if op == "attention" else "attention"][0]
    assert Settings.read({f"INFERA_{op.upper()}": own}, KERNELS).asked(op) == own
    with pytest.raises(CompatError, match=f"a kernel: {own}"):
        Settings.read({f"INFERA_{op.upper()}": other}, KERNELS)


@pytest.mark.parametrize("name", ["INFERA_ATTENTION", "INFERA_MOE"])
@pytest.mark.parametrize("value", ["passthru", "1", "PASSTHROUGH", "off,passthrough"])
def test_an_unknown_mode_stops_and_lists_the_known_ones(name: str, value: str) -> None:
    with pytest.raises(CompatError) as caught:
        Settings.read({name: value}, NO_KERNELS)
    text = str(caught.value)
    assert all(
        part in text for part in (name, value, *MODES, OFF_SWITCH, "no kernel is registered")
    )


@pytest.mark.parametrize(("values", "meaning"), [(YES, True), (NO, False)])
def test_each_word_for_yes_and_no_is_read(values: tuple[str, ...], meaning: bool) -> None:
    for value in values:
        for written in (value, value.upper(), f" {value}\t"):
            assert Settings.read({"INFERA_STRICT": written}, NO_KERNELS).strict is meaning


def test_a_flag_that_is_neither_yes_nor_no_stops_and_lists_both() -> None:
    with pytest.raises(CompatError) as caught:
        Settings.read({"INFERA_STRICT": "2"}, NO_KERNELS)
    words = ("INFERA_STRICT", "'2'", *filter(None, (*YES, *NO)))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("op", SEAMS)
def test_each_seam_of_each_op_is_read(op: str) -> None:
    other = "moe" if op == "attention" else "attention"
    for seam in ("auto", *SEAMS[op]):
        settings = Settings.read({f"INFERA_{op.upper()}_SEAM": f" {seam} "}, NO_KERNELS)
        assert (settings.seam(op), settings.seam(other)) == (seam, "auto")


@pytest.mark.parametrize(
    ("op", "value"),
    [("attention", "modular_kernel"), ("moe", "layer"), ("moe", "Model"), ("attention", "1")],
)
def test_a_seam_that_is_none_of_the_ops_stops_and_lists_them(op: str, value: str) -> None:
    name = f"INFERA_{op.upper()}_SEAM"
    with pytest.raises(CompatError) as caught:
        Settings.read({name: value}, NO_KERNELS)
    words = (name, repr(value), "auto", *SEAMS[op], OFF_SWITCH)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("attention", "seam", "asked"),
    [
        ("passthrough", "platform", True),
        ("auto", "platform", True),
        ("off", "platform", False),
        ("passthrough", "layer", False),
        ("passthrough", "auto", False),
    ],
)
def test_inferaplatform_is_asked_for_by_its_seam_and_not_where_attention_is_off(
    attention: str, seam: str, asked: bool
) -> None:
    environ = {"INFERA_ATTENTION": attention, "INFERA_ATTENTION_SEAM": seam}
    assert Settings.read(environ, NO_KERNELS).platform is asked


def test_the_kill_switch_is_read_without_the_rest() -> None:
    assert disabled({"INFERA_VLLM_OPS_DISABLE": "1", "INFERA_MOE": "nonsense"})
    assert not disabled({"INFERA_VLLM_OPS_DISABLE": "0"})
    with pytest.raises(CompatError, match="INFERA_VLLM_OPS_DISABLE"):
        disabled({"INFERA_VLLM_OPS_DISABLE": "please"})


def test_blanks_around_values_mean_nothing_and_an_empty_value_is_unset() -> None:
    read = Settings.read(
        {"INFERA_ATTENTION": " passthrough ", "INFERA_MOE": " ", "INFERA_REPORT": " a b.jsonl "},
        NO_KERNELS,
    )
    assert (read.attention, read.moe, read.report) == ("passthrough", "auto", Path("a b.jsonl"))
    assert Settings.read({"INFERA_REPORT": " "}, NO_KERNELS).report is None


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("INFERA_VLLM_OPS_DISABLED", "INFERA_VLLM_OPS_DISABLE"),
        ("INFERA_VLLM_OP_DISABLE", "INFERA_VLLM_OPS_DISABLE"),
        ("INFERA_ATENTION", "INFERA_ATTENTION"),
        ("INFERA_REPORTS", "INFERA_REPORT"),
        ("INFERA_STRICKT", "INFERA_STRICT"),
        ("INFERA_MOE_SEAMS", "INFERA_MOE_SEAM"),
        ("INFERA_ATENTION_SEAM", "INFERA_ATTENTION_SEAM"),
    ],
)
def test_a_variable_one_slip_away_is_noticed(name: str, likely: str) -> None:
    assert Settings.read({name: "1"}, NO_KERNELS).misspelt == ((name, likely),)


@pytest.mark.parametrize("name", ["INFERA_KUBERNETES_NAMESPACE", "VLLM_PLUGINS", "PATH"])
def test_a_variable_of_somebody_else_is_left_alone(name: str) -> None:
    assert Settings.read({name: "1"}, NO_KERNELS).misspelt == ()


@given(
    name=st.sampled_from(["INFERA_ATTENTION", "INFERA_MOE_SEAM", "INFERA_STRICT"]), value=st.text()
)
def test_any_value_is_read_or_stops_with_the_way_out(name: str, value: str) -> None:
    stopped: CompatError | None = None
    try:
        Settings.read({name: value}, NO_KERNELS)
    except CompatError as error:
        stopped = error
    assert stopped is None or (name in str(stopped) and OFF_SWITCH in str(stopped))


def test_a_variable_that_was_renamed_is_told() -> None:
    settings = Settings.read({"INFERA_PLATFORM": "1"}, NO_KERNELS)
    assert settings.misspelt == (("INFERA_PLATFORM", "INFERA_ATTENTION_SEAM"),)
