"""InferaPlatform: only where it is asked for, only alone, and never an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import Fake

PATH = "infera_shims.seams.platform.InferaPlatform"
SEAM = {"INFERA_ATTENTION_SEAM": "platform"}
ASKED = {**SEAM, "INFERA_ATTENTION": "passthrough"}
SERVE = """
    {first}
    from vllm.fake_engine import Engine
    engine = Engine("attention")
    from vllm.platforms import current_platform
    active = type(current_platform)
    answer(
        results=engine.step(2),
        layers=engine.layers(),
        platform=active.__qualname__,
        bases=[base.__qualname__ for base in active.__mro__[1:-1]],
        enum=current_platform._enum,
        wrapped=[base.__qualname__ for base in active.__mro__
                 if hasattr(vars(base).get("get_attn_backend_cls"), "__wrapped__")
                 and hasattr(vars(base)["get_attn_backend_cls"].__func__, "__wrapped__")],
    )
    """
IMPORTS = ["", "import infera_compat.plugin", "import vllm", "import vllm.platforms.interface"]


@pytest.mark.parametrize(
    ("device", "half_imported", "first"),
    [*(("cpu", True, first) for first in IMPORTS), ("cpu", False, ""), ("cuda", True, "")],
)
def test_it_stands_on_the_stock_platform_whatever_is_imported_first(
    make_fake: Callable[..., Fake], device: str, half_imported: bool, first: str
) -> None:
    fake = make_fake(device=device, half_imported=half_imported)
    got = fake.run(SERVE.format(first=first), **ASKED).answer
    stock = {"cpu": "CpuPlatform", "cuda": "NvmlCudaPlatform"}[device]
    assert (got["platform"], got["bases"][0], got["enum"]) == ("InferaPlatform", stock, device)
    assert got["wrapped"] == ["InferaPlatform"]
    (layer,) = got["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("platform", 1)
    assert got["results"] == [4, 6]


def test_it_is_not_offered_where_it_is_not_asked_for(fake: Fake) -> None:
    got = fake.run(SERVE.format(first=""), INFERA_ATTENTION="passthrough").answer
    assert (got["platform"], got["wrapped"]) == ("CpuPlatform", ["CpuPlatform"])
    assert next(iter(got["layers"].values()))["seam"] == "get_attn_backend_cls"


def test_asked_for_without_a_kernel_it_binds_nothing(fake: Fake) -> None:
    got = fake.run(SERVE.format(first=""), **SEAM).answer
    assert (got["platform"], got["wrapped"]) == ("InferaPlatform", [])
    assert not next(iter(got["layers"].values()))["bound"]


@pytest.fixture
def other(fake: Fake) -> Fake:
    """A vLLM beside which somebody else's platform is installed."""
    fake.write(
        "other.py",
        """
        def register():
            return "other_platform.OtherPlatform"

        def register_nothing():
            return None

        def register_badly():
            raise RuntimeError("no device")
        """,
    )
    fake.write(
        "other_platform.py",
        """
        from vllm.platforms.cpu import CpuPlatform

        class OtherPlatform(CpuPlatform):
            pass
        """,
    )
    return fake


TAKEN = (
    "InferaPlatform is not the active platform: platform plugin other is active, and vLLM allows "
    "one"
)


def test_beside_another_platform_attention_stays_stock_and_the_warning_says_why(
    other: Fake,
) -> None:
    other.entry_point("other", "vllm.platform_plugins", "other", "other:register")
    ran = other.run(SERVE.format(first=""), **ASKED)
    assert (ran.answer["platform"], ran.answer["wrapped"]) == ("OtherPlatform", [])
    (layer,) = ran.answer["layers"].values()
    assert (layer["bound"], layer["why_not"]) == (False, TAKEN)
    assert ran.answer["results"] == [4, 6]
    (warning,) = ran.said("WARNING")
    assert TAKEN in warning


def test_beside_another_platform_strict_stops_the_start(other: Fake) -> None:
    other.entry_point("other", "vllm.platform_plugins", "other", "other:register")
    ran = other.run(SERVE.format(first=""), INFERA_STRICT="1", **ASKED)
    assert ran.status != 0
    assert TAKEN in ran.err.strip().splitlines()[-1]


def test_beside_another_platform_the_wrap_is_taken_where_no_seam_is_forced(other: Fake) -> None:
    other.entry_point("other", "vllm.platform_plugins", "other", "other:register")
    got = other.run(SERVE.format(first=""), INFERA_ATTENTION="passthrough").answer
    assert (got["platform"], got["wrapped"]) == ("OtherPlatform", ["OtherPlatform"])
    (layer,) = got["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("get_attn_backend_cls", 1)


@pytest.mark.parametrize("register", ["register_nothing", "register_badly", "gone"])
def test_another_platform_that_does_not_answer_is_no_obstacle(other: Fake, register: str) -> None:
    other.entry_point("other", "vllm.platform_plugins", "other", f"other:{register}")
    if register == "gone":
        # vLLM's own loading of a broken entry point is not what this is about.
        other.edit("plugins/__init__.py", "entry.name: entry.load()", "entry.name: load(entry)")
        other.edit("plugins/__init__.py", "loaded = False", "loaded = False\n\n" + LENIENT)
    got = other.run(SERVE.format(first=""), **ASKED).answer
    assert got["platform"] == "InferaPlatform"


LENIENT = """def load(entry):
    try:
        return entry.load()
    except Exception:
        return lambda: None
"""


@pytest.mark.parametrize(
    ("allowed", "platform"),
    [("infera_compat", "InferaPlatform"), ("infera_compat,other", "OtherPlatform")],
)
def test_a_platform_that_vllm_plugins_leaves_out_is_no_obstacle(
    other: Fake, allowed: str, platform: str
) -> None:
    other.entry_point("other", "vllm.platform_plugins", "other", "other:register")
    got = other.run(SERVE.format(first=""), VLLM_PLUGINS=allowed, **ASKED).answer
    assert got["platform"] == platform


def test_left_out_by_vllm_plugins_ourselves_all_is_stock(fake: Fake) -> None:
    ran = fake.run(
        "from vllm.fake_engine import Engine\nanswer(own=sorted(vars(Engine('attention').worker)))",
        VLLM_PLUGINS="other",
        **ASKED,
    )
    assert "infera_report" not in ran.answer["own"]
    assert ran.log == []


ASK = """
    from infera_compat.plugin import register_platform
    answer(path=register_platform(), again=register_platform())
    """


@pytest.mark.parametrize(
    "environ",
    [
        {"INFERA_ATTENTION": "nonsense", **SEAM},
        {"INFERA_ATTENTION": "off", **SEAM},
        {"INFERA_ATTENTION_SEAM": "nonsense"},
        {"INFERA_VLLM_OPS_DISABLE": "nonsense", **SEAM},
        {"INFERA_VLLM_OPS_DISABLE": "1", **SEAM},
        {},
    ],
)
def test_it_answers_none_and_raises_nothing(fake: Fake, environ: dict[str, str]) -> None:
    assert fake.run(ASK, **environ).answer == {"path": None, "again": None}


def test_asked_twice_it_answers_the_same(fake: Fake) -> None:
    assert fake.run(ASK, **ASKED).answer == {"path": PATH, "again": PATH}


def test_a_builtin_detector_that_raises_counts_as_no_as_it_does_for_vllm(fake: Fake) -> None:
    fake.edit(
        "platforms/__init__.py",
        "def cuda_platform_plugin():",
        "def cuda_platform_plugin():\n    1 / 0",
    )
    assert fake.run(ASK, **ASKED).answer["path"] == PATH


def test_where_vllm_cannot_be_imported_it_answers_none(fake: Fake) -> None:
    fake.edit("envs.py", "import os", "import os\nraise ImportError('half installed')")
    assert fake.run(ASK, **ASKED).answer["path"] is None


def test_where_no_platform_is_detected_the_line_says_so(fake: Fake) -> None:
    fake.edit("platforms/__init__.py", "return 'vllm.platforms.cpu.CpuPlatform'", "return None")
    ran = fake.run(
        """
        from infera_compat import plugin
        answer(path=plugin.register_platform(), note=plugin.current().platform_note)
        """,
        **ASKED,
    )
    assert ran.answer == {"path": None, "note": "no single stock platform was detected"}


def test_where_vllm_never_asked_the_line_says_so(fake: Fake) -> None:
    fake.edit(
        "platforms/__init__.py",
        "def _resolve():",
        "def _resolve():\n    return resolve_obj_by_qualname('vllm.platforms.cpu.CpuPlatform')()",
    )
    ran = fake.run(SERVE.format(first=""), **ASKED)
    (warning,) = ran.said("WARNING")
    assert "InferaPlatform is not the active platform: vLLM never asked for it" in warning
    assert not next(iter(ran.answer["layers"].values()))["bound"]
