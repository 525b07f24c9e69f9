"""What stands in an attention layer looks to vLLM like the stock backend that it chose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import Fake

BOUND = {"INFERA_ATTENTION": "passthrough"}
CUDA = "vllm__v1__attention__backends__flash_attn__FlashAttentionBackend"


def test_a_layers_backend_is_an_importable_subclass_that_keeps_its_name(
    make_fake: Callable[..., Fake],
) -> None:
    ran = make_fake(device="cuda").run(
        """
        from vllm.utils.import_utils import resolve_obj_by_qualname as resolve
        from vllm.fake_engine import Engine
        layers = Engine("attention", "attention").worker.model.layers
        backend, impl = layers[0].attn_backend, type(layers[0].impl)
        answer(
            same=backend is layers[1].attn_backend and impl is type(layers[1].impl),
            name=backend.get_name(),
            module=backend.__module__,
            qualname=backend.__qualname__,
            importable=resolve(f"{backend.__module__}.{backend.__qualname__}") is backend,
            bases=[backend.__mro__[1].__qualname__, impl.__mro__[1].__qualname__],
            impl=impl.__name__,
            own=sorted(vars(layers[0].impl)),
        )
        """,
        **BOUND,
    )
    assert ran.answer == {
        "same": True,
        "name": "FLASH_ATTN",
        "module": "infera_shims.seams.backends",
        "qualname": CUDA,
        "importable": True,
        "bases": ["FlashAttentionBackend", "CPUAttentionImpl"],
        "impl": "CPUAttentionImpl",
        "own": ["num_heads"],
    }


def test_an_answer_that_the_selector_kept_from_before_is_forgotten(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.v1.attention.selector import get_attn_backend
        with set_current_vllm_config(VllmConfig(())):
            before = get_attn_backend(64)
        from vllm.fake_engine import Engine
        engine = Engine("attention")
        engine.step()
        answer(before=before.__module__, layers=engine.layers())
        """,
        **BOUND,
    )
    assert ran.answer["before"].startswith("vllm.")
    (layer,) = ran.answer["layers"].values()
    assert (layer["bound"], layer["calls"]["serving"]) == (True, 1)


ASK = """
    from vllm.fake_engine import Engine
    Engine("attention")
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import AttentionSelectorConfig
    config, mla = AttentionSelectorConfig(64), AttentionSelectorConfig(64, True)
    answer(paths=[{calls}])
    """


@pytest.mark.parametrize(
    "call",
    [
        "get_attn_backend_cls(None, config)",
        "get_attn_backend_cls(None, config, 4)",
        "get_attn_backend_cls(None, config, num_heads=None)",
        "get_attn_backend_cls(None, attn_selector_config=config, num_heads=4)",
        "get_attn_backend_cls(selected_backend=None, attn_selector_config=config)",
    ],
)
def test_it_answers_however_it_is_called(fake: Fake, call: str) -> None:
    code = ASK.replace("{calls}", f"current_platform.{call}, type(current_platform).{call}")
    (by_instance, by_class) = fake.run(code, **BOUND).answer["paths"]
    assert by_instance == by_class
    assert by_class.startswith("infera_shims.seams.backends.vllm__")


@pytest.mark.parametrize("answer", ["None", "''", "int"])
def test_an_answer_that_is_no_path_is_vllms_own_affair(fake: Fake, answer: str) -> None:
    answers = f"return {answer} if num_heads == 77 else selected_backend or"
    fake.edit("platforms/cpu.py", "return selected_backend or", answers)
    call = "repr(current_platform.get_attn_backend_cls(None, config, 77))"
    ran = fake.run(ASK.replace("{calls}", call), **BOUND)
    assert ran.answer["paths"] == [repr(eval(answer))]


def test_standing_back_the_selector_forgets_our_answers(fake: Fake) -> None:
    ran = fake.run(
        """
        from infera_compat import plugin
        from vllm.fake_engine import Engine
        Engine("attention")
        plugin.current().stand_back("enough")
        answer(impl=type(Engine("attention").worker.model.layers[0].impl).__module__)
        """,
        **BOUND,
    )
    assert ran.answer["impl"].startswith("vllm.")


def test_an_argument_of_tomorrow_reaches_the_platform(fake: Fake) -> None:
    fake.edit("platforms/cpu.py", "num_heads=None)", "num_heads=None, *, path=None)")
    fake.edit("platforms/cpu.py", "return selected_backend or", "return path or")
    call = "current_platform.get_attn_backend_cls(None, config, 4, path='vllm.v1.Other')"
    ran = fake.run(ASK.replace("{calls}", call), **BOUND)
    assert ran.answer["paths"] == ["infera_shims.seams.backends.vllm__v1__Other"]


@pytest.mark.parametrize("extra", ["", ", tomorrow=7"], ids=["today's", "tomorrow's"])
def test_what_is_passed_to_an_impl_reaches_stock(fake: Fake, extra: str) -> None:
    ran = fake.run(
        f"""
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionImpl
        from vllm.fake_engine import Engine
        layer = Engine("attention").worker.model.layers[0]
        given = []
        CPUAttentionImpl.forward = lambda self, *args, **named: given.append([args[1:], named])
        layer.impl.forward(layer, 1, 2, 3, 4, 5, output=6{extra})
        answer(given=given)
        """,
        **BOUND,
    )
    named = {"tomorrow": 7} if extra else {}
    assert ran.answer["given"] == [[[1, 2, 3, 4, 5, 6, None, None], named]]


def test_what_another_plugin_registered_over_a_stock_backend_is_told(fake: Fake) -> None:
    fake.write(
        "vllm/v1/attention/backends/registry.py",
        """
        from enum import Enum

        class AttentionBackendEnum(Enum):
            CPU_ATTN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"

        _ATTN_OVERRIDES = {AttentionBackendEnum.CPU_ATTN: "theirs.Backend"}
        """,
    )
    ran = fake.serve("attention", first="import vllm.v1.attention.backends.registry", **BOUND)
    assert "; backend CPU_ATTN is overridden by theirs.Backend;" in ran.said("INFO")[0]


def test_a_platforms_method_that_another_plugin_wraps_too_is_told(fake: Fake) -> None:
    fake.write(
        "their_plugin.py",
        """
        import functools

        def register():
            from vllm.platforms.cpu import CpuPlatform

            stock = CpuPlatform.get_attn_backend_cls.__func__

            @classmethod
            @functools.wraps(stock)
            def wrapped(cls, *args, **kwargs):
                return stock(cls, *args, **kwargs)

            CpuPlatform.get_attn_backend_cls = wrapped
        """,
    )
    fake.entry_point("theirs", "vllm.general_plugins", "theirs", "their_plugin:register")
    ran = fake.serve("attention", **BOUND)
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("get_attn_backend_cls", 1)
    note = "get_attn_backend_cls is wrapped by their_plugin too, ours stands before it"
    assert note in ran.said("INFO")[0]


@pytest.mark.parametrize(
    "path",
    ["other_plugin.backend.Backend", "vllm.v1.attention.backends.my__own.Backend", ""],
)
def test_a_backend_that_is_not_stocks_or_cannot_be_named_stays_what_it_is(
    fake: Fake, path: str
) -> None:
    fake.edit(
        "platforms/cpu.py", "return selected_backend or", f"return {path!r} if num_heads == 7 else"
    )
    code = ASK.replace("{calls}", "current_platform.get_attn_backend_cls(None, config, 7)")
    assert fake.run(code, **BOUND).answer["paths"] == [path]


def test_an_unknown_name_of_the_module_of_backends_is_no_backend(fake: Fake) -> None:
    ran = fake.run(
        "from infera_shims.seams import backends\nanswer(has=hasattr(backends, 'Backend'))"
    )
    assert ran.answer == {"has": False}
