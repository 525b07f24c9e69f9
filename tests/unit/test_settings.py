from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infera_compat.errors import OFF_SWITCH, CompatError
from infera_compat.settings import MODES, NO, SEAMS, YES, Settings, disabled, names_a_kernel

NO_KERNELS: tuple[str, ...] = ()
KERNELS = ("decode", "experts")


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
def test_a_kernel_is_asked_for_by_its_name(op: str) -> None:
    variable = f"INFERA_{op.upper()}"
    for name in KERNELS:
        assert Settings.read({variable: name}, KERNELS).asked(op) == name
    with pytest.raises(CompatError, match="or a kernel: decode, experts"):
        Settings.read({variable: "decod"}, KERNELS)


@pytest.mark.parametrize("op", ["attention", "moe"])
def test_kernels_are_asked_after_only_where_one_may_be_named(op: str) -> None:
    variable = f"INFERA_{op.upper()}"
    assert not names_a_kernel({})
    assert not any(names_a_kernel({variable: f" {mode} "}) for mode in ("", *MODES))
    assert names_a_kernel({variable: "decode"})


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


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("", "auto"),
        (" auto ", "auto"),
        ("all", "all"),
        (" tables/h200.json", Path("tables/h200.json")),
        ("~/h200.json", Path("~/h200.json").expanduser()),
    ],
)
def test_the_table_of_kernels_is_a_word_or_a_file(value: str, meaning: str | Path) -> None:
    assert Settings.read({"INFERA_KERNEL_TABLE": value}, NO_KERNELS).kernel_table == meaning


@pytest.mark.parametrize("value", ["ALL", "everywhere", "tables/", "h200.toml", ".json"])
def test_a_table_that_is_neither_stops_and_lists_both(value: str) -> None:
    with pytest.raises(CompatError) as caught:
        Settings.read({"INFERA_KERNEL_TABLE": value}, NO_KERNELS)
    words = ("INFERA_KERNEL_TABLE", repr(value), "auto", "all", ".json", OFF_SWITCH)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, None),
        ({"HOME": "/home/a"}, "/home/a/.cache/infera-compat"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/cache"}, "/cache/infera-compat"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "cache"}, "/home/a/.cache/infera-compat"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": ""}, "/home/a/.cache/infera-compat"),
        ({"HOME": "", "INFERA_CACHE_DIR": " /mine "}, "/mine"),
        ({"XDG_CACHE_HOME": "/cache", "INFERA_CACHE_DIR": "mine"}, "mine"),
    ],
)
def test_tuned_settings_lie_where_caches_do(environ: dict[str, str], folder: str | None) -> None:
    found = Settings.read(environ, NO_KERNELS).cache_dir
    assert found == (None if folder is None else Path(folder))


@pytest.mark.parametrize("name", ["INFERA_REPORT", "INFERA_CACHE_DIR", "INFERA_KERNEL_TABLE"])
def test_a_home_that_nobody_has_is_no_path(name: str) -> None:
    with pytest.raises(CompatError, match=f"{name} is no path"):
        Settings.read({name: "~nobody-of-this-name/a.json"}, NO_KERNELS)
