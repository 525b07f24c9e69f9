"""A stand-in for vLLM as a folder of source: what the shims touch, and a worker's life.

Each line of releases has the definitions that matrix/contracts records for it (test_fake_vllm.py
holds the two together), so the plugin's whole way runs on it: entry points, import hooks, worker,
report. The sources are in fake_sources.py; a torch of a few lines stands beside them.

A model is a row of layers by their kind: "attention", "explicit" (brings its own backend), "mla",
"sparse-mla" and "bare-mla" (without the wrapper around it), "cache-only" (an attention layer of
another make), "mamba", "modular-moe", "monolithic-moe".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from fake_sources import COMMON, FUSED_MOE, MOE_LAYER_CLASS, MOE_RUNNER, TORCH, cpu_experts

RECORDED = {"v0_22": "0.22.1", "v0_23": "0.23.0", "v0_24": "0.29.0", "main": "0.32.0"}
PLATFORM_CLASSES = {
    "cpu": "vllm.platforms.cpu.CpuPlatform",
    "cuda": "vllm.platforms.cuda.CudaPlatform",
}
ANSWER = "answer: "

PREAMBLE = f"""
import json

def answer(**facts):
    print({ANSWER!r} + json.dumps(facts))

"""


@dataclass(frozen=True)
class Ran:
    """A process that has ended."""

    status: int
    out: str
    err: str

    @property
    def answer(self) -> Any:
        found = [line for line in self.out.splitlines() if line.startswith(ANSWER)]
        assert found, f"the script gave no answer, status {self.status}:\n{self.out}\n{self.err}"
        return json.loads(found[-1].removeprefix(ANSWER))

    @property
    def log(self) -> list[tuple[str, str]]:
        """Our records by vLLM's handler: level and message, with the message's own lines."""
        records: list[tuple[str, str]] = []
        for line in self.out.splitlines():
            level, bar, text = line.partition("|")
            if bar and level in ("INFO", "WARNING", "ERROR"):
                records.append((level, text))
            elif records and line.startswith("  "):
                level, text = records[-1]
                records[-1] = level, f"{text}\n{line}"
        return [record for record in records if record[1].startswith("infera-compat")]

    def said(self, level: str) -> list[str]:
        return [text for found, text in self.log if found == level]


@dataclass(frozen=True)
class Fake:
    """A fake vLLM below `site`, a folder that a process gets on its path."""

    site: Path

    @property
    def root(self) -> Path:
        return self.site / "vllm"

    def edit(self, file: str, before: str, after: str) -> Fake:
        """Replace the only occurrence of `before` in a file of the package."""
        path = self.root / file
        text = path.read_text("utf-8")
        assert text.count(before) == 1, f"{before!r} occurs {text.count(before)} times in {file}"
        path.write_text(text.replace(before, after), "utf-8")
        return self

    def write(self, file: str, text: str) -> Path:
        """Write a file below `site`."""
        path = self.site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
        return path

    def entry_point(self, distribution: str, group: str, name: str, value: str) -> Fake:
        """Install a plugin of somebody else's."""
        info = f"{distribution}-1.0.dist-info"
        self.write(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        self.write(f"{info}/entry_points.txt", f"[{group}]\n{name} = {value}\n")
        return self

    def without_plugin(self) -> tuple[Path, ...]:
        """What to put on the path so that infera-compat's entry points are not there."""
        folder = self.site.with_name("without-plugin")
        info = folder / "infera_compat-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: infera-compat\nVersion: 0\n")
        return (folder,)

    def run(
        self,
        code: str | None = None,
        *argv: str,
        command: tuple[str, ...] = (),
        path: tuple[Path, ...] = (),
        **environ: str,
    ) -> Ran:
        """Run `code` (or an interpreter `command`) in a process of its own on this vLLM."""
        given = {
            k: v for k, v in os.environ.items() if not k.startswith(("INFERA", "VLLM", "PYTHON"))
        }
        given["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in (*path, self.site))
        words = [*command, *argv] if code is None else ["-c", PREAMBLE + dedent(code), *argv]
        done = subprocess.run(
            [sys.executable, *words],
            env=given | environ,
            cwd=self.site,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def serve(
        self,
        *layers: str,
        architecture: str = "TinyForCausalLM",
        steps: int = 1,
        first: str = "",
        more: str = "",
        **environ: str,
    ) -> Ran:
        """Build a model of these layers, serve `steps` steps, answer with the worker's report."""
        return self.run(
            f"{dedent(first)}\n"
            f"from vllm.fake_engine import Engine\n"
            f"engine = Engine(*{layers!r}, architecture={architecture!r})\n"
            f"results = [engine.step() for _ in range({steps})]\n"
            f"{dedent(more)}\n"
            f"answer(results=results, report=engine.report(), layers=engine.layers())\n",
            **environ,
        )


def build(
    site: Path,
    line: str = "main",
    *,
    text: str | None = None,
    device: str = "cpu",
    half_imported: bool = False,
    configures_logging: bool = True,
) -> Fake:
    """Write a vLLM of this line of releases, and a torch beside it, below `site`.

    text: what `_version.py` says (the recorded release's version if None, no such file if empty).
    device: the platform that detects itself, "cpu" or "cuda".
    half_imported: `import vllm` resolves the platform half-way, as 0.24 to 0.31 do.
    configures_logging: `import vllm.logger` hangs the handler, as all before 0.31 do.
    """
    fake = Fake(site)
    newest, old = line == "main", line == "v0_22"
    packages = f"vllm.{FUSED_MOE.replace('/', '.')}"
    has_cpu_experts = line in ("v0_24", "main")
    blanks = {
        "<CUDA>": repr(PLATFORM_CLASSES["cuda"] if device == "cuda" else None),
        "<CPU>": repr(PLATFORM_CLASSES["cpu"] if device == "cpu" else None),
        "<RUN_DTYPE>": ", *, _run_kv_cache_dtype=None" if newest else "",
        "<INPLACE>": ", inplace" if old else "",
        "<FALSE>": ", False" if old else "",
        "<MODULAR_ON_CPU>": str(newest),
        "<CPU_EXPERTS>": f"from {packages}.experts.cpu_moe import CPUUnquantizedExperts\n\n"
        "        return CPUUnquantizedExperts"
        if has_cpu_experts
        else "return None",
    }
    sources = {**COMMON, **(MOE_RUNNER if has_cpu_experts else MOE_LAYER_CLASS)}
    sources |= cpu_experts("Modular" if newest else "Monolithic", has_cpu_experts)
    for name, source in sources.items():
        source = dedent(source)
        for blank, value in blanks.items():
            source = source.replace(blank, value)
        fake.write(f"vllm/{name}", source)
    text = RECORDED[line] if text is None else text
    if text:
        fake.write("vllm/_version.py", f"__version__ = version = {text!r}\n")
    if half_imported:
        half = "from vllm.platforms import current_platform\n\nCOMPLETE = True"
        fake.edit("__init__.py", "COMPLETE = True", half)
    if configures_logging:
        fake.edit("logger.py", "def init_logger", "configure()\n\ndef init_logger")
    fake.write("torch/__init__.py", TORCH)
    return fake
