"""Read by tox beside tox.ini: an environment vllm<release> for each line of matrix/releases.toml.

What they have in common is [engines]; from the line comes torch, and by their name
matrix/cpu_wheel.py knows which vLLM to install. Kernels know no vLLM: their tests run once for each
torch of those lines (and the Triton that comes with it), in torch<version>, whose common part is
[kernels].
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tomllib
from tox.config.loader.memory import MemoryLoader
from tox.config.sets import ConfigSet
from tox.plugin import impl
from tox.session.state import State
from tox.tox_env.python.pip.req_file import PythonDeps

ROOT = Path(__file__).parent
RELEASES = tomllib.loads((ROOT / "matrix/releases.toml").read_text("utf-8"))["release"]
TORCHES = {line["torch"].replace("==", ""): line["torch"] for line in RELEASES.values()}


@impl
def tox_extend_envs() -> Iterable[str]:
    """The environments' names."""
    return [f"vllm{release}" for release in RELEASES] + list(TORCHES)


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """What sets each of them apart from [engines] or [kernels]."""

    def add(name: str, base: str, *packages: str) -> None:
        deps = PythonDeps("\n".join(["-r matrix/cpu-deps.txt", *packages]), ROOT)
        loader = MemoryLoader(base=[base, "testenv"], deps=deps)
        state.conf.memory_seed_loaders[name].append(loader)

    for release, line in RELEASES.items():
        # A wheel that is put together comes by pip: uv keeps what it downloads, CUDA code and all.
        add(f"vllm{release}", "engines", line["torch"], *(["pip"] if "operators" in line else []))
    for name, torch in TORCHES.items():
        add(name, "kernels", torch)
