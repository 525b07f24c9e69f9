"""The table of all checks, and a run of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from infera_compat.errors import CompatError
from infera_compat.kernels.conformance.checks import (
    compiler,
    graphs,
    memory,
    numbers,
    repeats,
    sanitizer,
    targets,
)
from infera_compat.kernels.conformance.outcome import NOT_RUN, Outcome, Trial, judge
from infera_compat.kernels.conformance.subject import Subject


@dataclass(frozen=True)
class Check:
    """A check by its name, and what it says of a kernel that passes it. gpu: it needs one."""

    name: str
    about: str
    trials: Callable[[Subject], Iterator[Trial]]
    gpu: bool = False


CHECKS = (
    Check("numerics", "right numbers in each element type, shape and feature", numbers.numerics),
    Check("ranks", "right numbers in the shapes of ranks under TP 1, 2, 4, 8", numbers.ranks),
    Check("paged", "right numbers by any block table, block size and layout", numbers.paged),
    Check("strides", "right numbers with gaps between rows, and none written", numbers.strides),
    Check("mixed", "a batch equals its requests alone, and its prompts in chunks", numbers.mixed),
    Check("canaries", "nothing is read of others' slots, and nothing changed", memory.canaries),
    Check("poison", "used rows are written whole, and nothing around them", memory.poison),
    Check("padding", "NaN in padding stays there", memory.padding),
    Check("inputs", "no input is changed", memory.inputs),
    Check("workspace", "the bytes asked for are enough, and nothing beyond", memory.workspace),
    Check("opcheck", "torch.library.opcheck holds", compiler.opcheck),
    Check("fake", "the fake implementation agrees", compiler.fake),
    Check("compile", "torch.compile without a graph break, the same result", compiler.compile),
    Check("determinism", "the same bits in each repeat", repeats.determinism),
    Check("threads", "two threads at once, the same result", repeats.threads),
    Check("graphs", "captured, and replayed on other contents and lengths", graphs.graphs, True),
    Check(
        "workspace addresses",
        "a graph holds all the memory that it uses",
        graphs.workspace_addresses,
        True,
    ),
    Check("allocations", "no memory is taken outside the graph's pool", graphs.allocations, True),
    Check("synchronisations", "no run waits for the device", graphs.synchronisations, True),
    Check("offsets", "offsets past 2**31 elements", memory.offsets, True),
    Check("compilations", "nothing is compiled after warm_up", graphs.late_compilations, True),
    Check("warm-up", "how long warm_up takes", repeats.warm_up),
    Check("sanitizer", "no access outside its memory", sanitizer.sanitizer, True),
    Check("targets", f"compiles for {', '.join(targets.TARGETS)}", targets.targets),
)
"""In the order in which they are run: what compiles late is told after all that may compile."""


def chosen(names: Collection[str]) -> tuple[Check, ...]:
    """The checks of these names, all where there is none; CompatError for a name of no check."""
    known = [check.name for check in CHECKS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CompatError(
            f"there is no check {', '.join(unknown)}",
            found=", ".join(names),
            expected=f"some of {', '.join(known)}",
            do="Mend --only.",
        )
    return tuple(check for check in CHECKS if not names or check.name in names)


def run(check: Check, subject: Subject) -> Outcome:
    """What comes of a check on this device."""
    if check.gpu and subject.device.type != "cuda":
        return Outcome(check.name, NOT_RUN, "no GPU", 0)
    return judge(check.name, check.trials(subject))
