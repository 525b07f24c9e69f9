"""`infera-compat plan NAME`: the integration plan of a kernel, and its review."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infera_compat.errors import CompatError
from infera_compat.kernels import registry
from infera_compat.matrix import files
from infera_compat.matrix.checkout import Checkout
from infera_compat.plan import facts, page, questions
from infera_compat.plan.questions import Answer

PLANS = Path("docs/plans")


def plan(
    name: str, output: Path | None, check: bool, as_json: bool, root: Path, console: Console
) -> int:
    """Write the plan of a kernel, or hold the one that is there against what is known now.

    output: the page; by default docs/plans/<name>.md of the checkout at `root`. Its author's part
    is the .toml file beside it.

    Returns:
        0; with `check`, 1 where a question has a gap, or the page is not what would be written now.
    """
    checkout = Checkout.at(root)
    file = checkout.root / PLANS / f"{name}.md" if output is None else output
    known = _facts(checkout, name, file.with_suffix(".toml"))
    text, answers = page.page(known), questions.answers(known)
    stale = _stale(file, text) if check else None
    if not check:
        files.put(file, text)
    if as_json:
        print(json.dumps(_as_dict(name, file, answers, stale), indent=1))
    elif check:
        _show(console, name, answers, stale)
    else:
        gaps = _gaps(answers)
        said = f"{len(answers) - len(gaps)} of {len(answers)} questions answered"
        console.print(f"{file}: {said} (--check names the gaps)", highlight=False, soft_wrap=True)
    return int(check and (stale is not None or bool(_gaps(answers))))


def _facts(checkout: Checkout, name: str, prose: Path) -> facts.Facts:
    """What is known of a kernel; raises CompatError for a name that none has, with those there."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise CompatError(
            "a plan asks the kernel itself what it supports",
            found=f"no module {error.name}",
            expected="PyTorch, which kernels and their element types are made of",
            do="Run this where vLLM is installed, or install torch.",
        ) from error
    installed = registry.find()
    kernel = installed.load(name)
    distribution = installed.entries[name].distribution
    return facts.gather(checkout, kernel, distribution, lambda it: getattr(torch, it), prose)


def _stale(file: Path, text: str) -> str | None:
    """Why a page is not the one that would be written now; None where it is."""
    if not file.is_file():
        return f"there is no {file}"
    if file.read_text("utf-8") != text:
        return f"{file} is not what would be written now: something it is made of has changed"
    return None


def _gaps(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if not answer.found.answered]


def _plain(markdown: str | None) -> str | None:
    """Commands as they are typed."""
    return None if markdown is None else markdown.replace("`", "")


def _as_dict(name: str, file: Path, answers: Sequence[Answer], stale: str | None) -> dict[str, Any]:
    return {
        "kernel": name,
        "plan": str(file),
        "stale": stale,
        "gaps": len(_gaps(answers)),
        "questions": [
            {
                "number": answer.number,
                "question": answer.question,
                "answered": answer.found.answered,
                "told": answer.found.told,
                "do": _plain(answer.found.do),
            }
            for answer in answers
        ],
    }


def _show(console: Console, name: str, answers: Sequence[Answer], stale: str | None) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"The review of {escape(name)}", title_justify="left")
    table.add_column("", justify="right")
    table.add_column("question")
    table.add_column("")
    table.add_column("what is known", overflow="fold")
    table.add_column("what would close it", overflow="fold")
    for answer in answers:
        found = answer.found
        mark = "[green]yes[/]" if found.answered else "[red]gap[/]"
        cells = (answer.question, mark, escape(found.told), escape(_plain(found.do) or ""))
        table.add_row(str(answer.number), *cells)
    console.print(table)
    gaps = len(_gaps(answers))
    verdict = f"{gaps} of {len(answers)} questions have a gap" if gaps else "No question has a gap"
    console.print(f"{verdict}.", style="red" if gaps else "green", highlight=False)
    if stale is not None:
        said = f"Stale: {stale}. infera-compat plan {name} writes it anew."
        console.print(escape(said), style="red", highlight=False, soft_wrap=True)
