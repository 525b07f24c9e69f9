"""The seams on the real vLLM, without an engine: platform, backend and registry."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from infera_shims.engines import child


def asked(code: str, **environ: str) -> Any:
    """What `code` prints last, as JSON, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child.environment(**environ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PLATFORM = """
import json
{first}
{second}
from vllm.platforms import current_platform
active = type(current_platform)
print(json.dumps([active.__name__, active.__mro__[1].__name__, current_platform._enum.name,
                  current_platform.is_cpu(), current_platform.is_out_of_tree()]))
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_the_platform_is_ours_whichever_is_imported_first(ours_first: bool) -> None:
    """A platform plugin that fails inside a half-imported vllm is dropped in silence by vLLM."""
    lines = ["import infera_compat.plugin, infera_shims.seams.platform", "import vllm"]
    first, second = lines if ours_first else reversed(lines)
    code = PLATFORM.format(first=first, second=second)
    ours = asked(code, INFERA_ATTENTION_SEAM="platform")
    stock = asked(code)
    assert ours == ["InferaPlatform", stock[0], "CPU", True, False]
    assert stock[0] != "InferaPlatform"


PARITY = """
import importlib, json
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from types import SimpleNamespace
from infera_compat.ledger import Ledger
from infera_shims.seams import backends
backends.open_book(SimpleNamespace(ledger=Ledger(), adapter=None))
stock = AttentionBackendEnum.CPU_ATTN.get_class()
path = backends.path_over(AttentionBackendEnum.CPU_ATTN.get_path())
module, _, name = path.rpartition(".")
ours = getattr(importlib.import_module(module), name)
differ = [n for n in dir(stock) if not n.startswith("__") and n != "_abc_impl"
          and getattr(getattr(ours, n), "__func__", getattr(ours, n))
          is not getattr(getattr(stock, n), "__func__", getattr(stock, n))]
impl, stock_impl = ours.get_impl_cls(), stock.get_impl_cls()
own = sorted(set(vars(impl)) - {"__module__", "__doc__", "__abstractmethods__", "_abc_impl",
                                "__parameters__", "__orig_bases__"})
print(json.dumps({"name": ours.get_name(), "subclass": issubclass(ours, stock),
  "differ": differ, "impl_subclass": issubclass(impl, stock_impl), "impl_own": own,
  "same_impl_each_time": ours.get_impl_cls() is impl,
  "path_back": ".".join(ours.full_cls_name()) == path,
  "members": {m.name: AttentionBackendEnum[m.name].name for m in AttentionBackendEnum},
  "abstract": sorted(impl.__abstractmethods__) == sorted(stock_impl.__abstractmethods__)}))
"""


def test_the_backend_is_stocks_but_for_its_impl() -> None:
    """Whatever vLLM calls on a backend answers as stock's, so it can't be missed in a release."""
    found = asked(PARITY)
    assert found["name"] == "CPU_ATTN"
    assert found["subclass"] is True
    assert found["differ"] == ["get_impl_cls"]
    assert found["impl_subclass"] is True
    assert found["impl_own"] == ["forward"]
    assert found["same_impl_each_time"] is True
    assert found["path_back"] is True
    assert found["abstract"] is True
    assert all(name == member for name, member in found["members"].items())


REGISTER = """
import json, sys, time
import vllm.plugins  # vLLM has begun to import by itself
before = set(sys.modules)
began = time.process_time()  # what is ours, on a busy machine too
from infera_compat.plugin import register_ops
register_ops()
took = time.process_time() - began
new = sorted(m for m in set(sys.modules) - before if m.split(".")[0] in ("vllm", "torch", "triton"))
print(json.dumps([took, new]))
"""


def test_registering_imports_nothing_of_vllm_and_takes_no_time() -> None:
    times = []
    for _ in range(3):
        took, new = asked(REGISTER, INFERA_ATTENTION="passthrough", INFERA_MOE="passthrough")
        assert new == []
        times.append(took)
    assert min(times) <= 0.020, times


WHOLE_PLATFORM = """
import json
from vllm.platforms import current_platform
active, stock = type(current_platform), type(current_platform).__mro__[1]
print(json.dumps({"own": sorted(set(vars(active)) - {"__module__", "__doc__"}),
  "base": stock.__module__.split(".")[0],
  "vit": str(active.get_vit_attn_backend(64, __import__("torch").bfloat16)),
  "stock_vit": str(stock.get_vit_attn_backend(64, __import__("torch").bfloat16))}))
"""


def test_the_platform_overrides_nothing_until_attention_is_bound() -> None:
    """Encoders' attention, memory, devices: all of it is the stock platform's own."""
    found = asked(WHOLE_PLATFORM, INFERA_ATTENTION_SEAM="platform")
    assert found["own"] == []
    assert found["base"] == "vllm"
    assert found["vit"] == found["stock_vit"]


CARRIED = """
import json
from infera_compat.plugin import register_ops
register_ops()
from vllm import envs
from vllm.ray.ray_env import get_env_vars_to_copy
keys = [key for key in envs.compile_factors() if "INFERA" in key.upper()]
print(json.dumps([sorted(n for n in get_env_vars_to_copy() if n.startswith("INFERA")), keys]))
"""


@pytest.mark.parametrize("variable", ["INFERA_VLLM_OPS_DISABLE", "INFERA_STRICT"])
def test_ray_workers_get_the_switches_and_the_compile_key_does_not(variable: str) -> None:
    carried, keys = asked(CARRIED, **{variable: "1"})
    assert carried == [variable]
    assert keys == []
