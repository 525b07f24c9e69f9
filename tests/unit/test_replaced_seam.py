"""Classes replaced by name: a name that is there and free, and what is made is like stock's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import FUSED_MOE, Fake

METHOD = "UnquantizedFusedMoEMethod"
WRAPPER = "MultiHeadLatentAttentionWrapper"
# By op and seam: the class, its module, the name that vLLM registers it under, and a layer's kind.
REPLACED = {
    ("attention", "pluggable_layer"): (
        WRAPPER,
        "model_executor/layers/mla.py",
        "multi_head_latent_attention",
        "mla",
    ),
    ("moe", "pluggable_layer"): (
        "RoutedExperts",
        f"{FUSED_MOE}/routed_experts.py",
        "routed_experts",
        "modular-moe",
    ),
    ("moe", "register_oot"): (
        METHOD,
        f"{FUSED_MOE}/unquantized_fused_moe_method.py",
        "unquantized_fused_moe",
        "modular-moe",
    ),
}
EACH = pytest.mark.parametrize(("op", "seam"), REPLACED)


def forced(op: str, seam: str) -> dict[str, str]:
    return {f"INFERA_{op.upper()}": "passthrough", f"INFERA_{op.upper()}_SEAM": seam}


def importable(file: str) -> str:
    return f"vllm.{file.removesuffix('.py').replace('/', '.')}"


@EACH
def test_a_name_that_another_plugin_holds_is_left_to_it(fake: Fake, op: str, seam: str) -> None:
    cls, file, _, kind = REPLACED[op, seam]
    fake.write(
        "their_plugin.py",
        f"""
        def register():
            from {importable(file)} import {cls}

            @{cls}.register_oot
            class Theirs({cls}):
                pass
        """,
    )
    fake.entry_point("theirs", "vllm.general_plugins", "theirs", "their_plugin:register")
    ran = fake.serve(kind, **forced(op, seam))
    (layer,) = ran.answer["layers"].values()
    why = f"{cls} is replaced already, by their_plugin"
    assert (layer["bound"], layer["why_not"]) == (False, why)
    assert ran.answer["report"]["ops"][op]["not_taken"][seam] == why
    (warning,) = ran.said("WARNING")
    assert why in warning


@EACH
def test_a_class_that_the_registry_does_not_have_is_refused(fake: Fake, op: str, seam: str) -> None:
    """Registered under a name that no class has, a replacement would never come to effect."""
    cls, file, registered, kind = REPLACED[op, seam]
    with (fake.root / file).open("a") as text:
        text.write(
            "\n\nfrom vllm.model_executor.custom_op import op_registry\n"
            f"del op_registry[{registered!r}]\n"
        )
    ran = fake.serve(
        kind, more="from vllm.model_executor.custom_op import op_registry_oot", **forced(op, seam)
    )
    (layer,) = ran.answer["layers"].values()
    why = f"{cls} is not what vLLM registers as {registered!r}"
    assert (layer["bound"], layer["why_not"]) == (False, why)


@EACH
def test_a_class_of_another_name_is_seen_before_anything_is_registered(
    fake: Fake, op: str, seam: str
) -> None:
    cls, _, _, kind = REPLACED[op, seam]
    for file in fake.root.rglob("*.py"):
        file.write_text(file.read_text("utf-8").replace(cls, f"New{cls}"), "utf-8")
    ran = fake.run(
        f"""
        from vllm.fake_engine import Engine
        engine = Engine({kind!r})
        from vllm.model_executor.custom_op import op_registry_oot
        answer(ops=engine.report()["ops"], registered=list(op_registry_oot))
        """,
        **forced(op, seam),
    )
    assert ran.answer["registered"] == []
    why = ran.answer["ops"][op]["not_taken"][seam]
    assert why.startswith("moved: ")
    assert cls in why
    (warning,) = ran.said("WARNING")
    assert f"{op} stays stock" in warning


@EACH
def test_what_is_made_has_stocks_names(fake: Fake, op: str, seam: str) -> None:
    cls, file, registered, kind = REPLACED[op, seam]
    ran = fake.run(
        f"""
        from vllm.fake_engine import Engine
        layer = Engine({kind!r}).worker.model.layers[0]
        made = next(part for part in layer.modules() if type(part).__name__ == {cls!r})
        import {importable(file)} as module
        stock = module.{cls}
        answer(
            ours=type(made).__module__,
            subclass=issubclass(type(made), stock) and type(made) is not stock,
            names=[type(made).__name__, type(made).__qualname__, type(made).name],
            stock=[stock.__name__, stock.__qualname__, stock.name],
        )
        """,
        **forced(op, seam),
    )
    assert (ran.answer["ours"], ran.answer["subclass"]) == ("infera_shims.seams.replaced", True)
    assert ran.answer["names"] == ran.answer["stock"] == [cls, cls, registered]


@EACH
def test_what_is_made_has_every_attribute_of_stocks(fake: Fake, op: str, seam: str) -> None:
    """A constructor that were skipped would be missed much later, in the middle of a step."""
    cls, _, _, kind = REPLACED[op, seam]
    code = f"""
        from vllm.fake_engine import Engine
        layer = Engine({kind!r}).worker.model.layers[0]
        made = next(part for part in layer.modules() if type(part).__name__ == {cls!r})
        answer(own=sorted(vars(made)))
        """
    ours, stock = (
        fake.run(code, **environ).answer["own"]
        for environ in (forced(op, seam), {"INFERA_VLLM_OPS_DISABLE": "1"})
    )
    assert len(stock) >= 2
    assert set(stock) <= set(ours)
    assert set(ours) - set(stock) == ({"infera_layer"} if seam == "pluggable_layer" else set())


@EACH
def test_its_class_can_be_imported_before(fake: Fake, op: str, seam: str) -> None:
    cls, file, _, kind = REPLACED[op, seam]
    ran = fake.serve(kind, first=f"from {importable(file)} import {cls}", **forced(op, seam))
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == (seam, 1)


@pytest.mark.parametrize(
    "call",
    [
        'Layer("a", "modular")',
        'Layer("a", kind="modular")',
        'Layer(layer_name="a", kind="modular")',
    ],
)
def test_a_constructors_arguments_go_through_however_they_are_passed(fake: Fake, call: str) -> None:
    ran = fake.run(
        f"""
        from vllm.fake_engine import Engine
        Engine("modular-moe")
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts as Layer
        made = {call}
        answer(name=made.layer_name, kind=made.quant_method.moe, ours=type(made).__module__)
        """,
        **forced("moe", "pluggable_layer"),
    )
    assert ran.answer == {
        "name": "a",
        "kind": "modular",
        "ours": "infera_shims.seams.replaced",
    }


@EACH
def test_an_argument_of_tomorrow_goes_through(fake: Fake, op: str, seam: str) -> None:
    cls, file, _, kind = REPLACED[op, seam]
    method = {"mla": "forward", "RoutedExperts": "forward_modular", METHOD: "apply"}
    name = method.get(cls, "forward")
    ran = fake.run(
        f"""
        from {importable(file)} import {cls} as stock
        given = []
        stock.{name} = lambda self, *args, **kwargs: given.append([len(args), sorted(kwargs)])
        from vllm.fake_engine import Engine
        layer = Engine({kind!r}).worker.model.layers[0]
        made = next(part for part in layer.modules() if type(part).__name__ == {cls!r})
        given.clear()
        made.{name}(layer, [1], new=7)
        answer(given=given)
        """,
        **forced(op, seam),
    )
    assert ran.answer["given"] == [[2, ["new"]]]


def test_a_layer_of_a_class_of_its_own_is_reported(fake: Fake) -> None:
    """vLLM looks for a replacement by the very class that is made; a subclass has its own name."""
    fake.edit(
        f"{FUSED_MOE}/layer.py",
        "RoutedExperts(prefix, kind)",
        "type('SpecialExperts', (RoutedExperts,), {})(prefix, kind)",
    )
    ran = fake.serve("modular-moe", **forced("moe", "pluggable_layer"))
    (layer,) = ran.answer["layers"].values()
    assert (layer["bound"], layer["why_not"]) == (
        False,
        "its class is none that this seam replaces by name",
    )


def test_an_mla_layer_without_the_wrapper_is_reported(fake: Fake) -> None:
    ran = fake.serve("bare-mla", "mla", "attention", **forced("attention", "pluggable_layer"))
    bare, wrapped, other = ran.answer["layers"].values()
    why = "its class is none that this seam replaces by name"
    assert (bare["why_not"], wrapped["seam"], other["why_not"]) == (why, "pluggable_layer", why)


def test_a_name_that_another_took_after_us_is_left_to_it(fake: Fake) -> None:
    ran = fake.run(
        f"""
        from infera_compat import plugin
        from vllm.fake_engine import Engine
        Engine("modular-moe")
        from vllm.model_executor.custom_op import op_registry_oot

        class Theirs:
            pass

        op_registry_oot[{METHOD!r}] = Theirs
        plugin.current().stand_back("enough")
        answer(held=op_registry_oot[{METHOD!r}] is Theirs)
        """,
        **forced("moe", "register_oot"),
    )
    assert ran.answer["held"]


@pytest.mark.parametrize("line", ["v0_22", "v0_23"])
def test_until_0_23_the_moe_layers_class_is_fusedmoe(
    make_fake: Callable[..., Fake], line: str
) -> None:
    ran = make_fake(line).run(
        """
        from vllm.fake_engine import Engine
        Engine("modular-moe")
        from vllm.model_executor.custom_op import op_registry_oot
        answer(names=[(key, cls.name) for key, cls in op_registry_oot.items()])
        """,
        **forced("moe", "pluggable_layer"),
    )
    assert ran.answer["names"] == [["FusedMoE", "fused_moe"]]


def test_a_call_that_dynamo_traces_is_counted_by_an_op_of_its_own(fake: Fake) -> None:
    ran = fake.run(
        """
        import torch
        from vllm.fake_engine import Engine
        engine = Engine("modular-moe")
        torch.compiler.is_compiling = lambda: True
        fired = torch.library.made["infera_compat::fired"]
        engine.step()
        answer(layers=engine.layers(), fired=fired.calls)
        """,
        **forced("moe", "register_oot"),
    )
    ((name, layer),) = ran.answer["layers"].items()
    assert ran.answer["fired"] == [["moe", name]]
    assert layer["calls"]["serving"] == 1
