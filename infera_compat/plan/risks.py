"""The risk register: what each kernel of an op risks, what records show, what an author adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infera_compat.kernels import kernel as kernels
from infera_compat.plan import benches, checks
from infera_compat.plan.facts import Facts


@dataclass(frozen=True)
class Risk:
    """One risk. mitigation: what is done about it. open: what is missing for it; None: nothing."""

    name: str
    what: str
    mitigation: str
    open: str | None

    @property
    def mitigated(self) -> bool:
        """Whether something is done about it, and nothing is missing."""
        return bool(self.mitigation) and self.open is None


@dataclass(frozen=True)
class Standing:
    """A risk of all kernels of some ops. check: what proves its mitigation; None: our tests."""

    name: str
    what: str
    mitigation: str
    check: str | None = None
    on_gpu: bool = False
    ops: tuple[str, ...] = tuple(kernels.OPS)


GRAPHS, ALLOCATIONS, _, COMPILATIONS, _ = (point.check for point in checks.CAPTURE)
CACHED = (kernels.ATTENTION, kernels.MLA_DECODE)

STANDING = (
    Standing(
        "upstream moves",
        "a release of vLLM changes what the seam stands on",
        "the shim's contracts are held against the installed source before anything is bound; what "
        "moved is named, and the op stays stock",
    ),
    Standing(
        "cache layout",
        "K and V lie otherwise than the kernel's views say",
        "the views are proved on the backend's own cache before a layer is bound; what no regime "
        "fits is refused",
        ops=CACHED,
    ),
    Standing(
        "foreign slots",
        "a block table is misread, and another request's tokens are used or overwritten",
        "verify guards the slots of others with canaries",
        check=checks.PAGED[1].check,
        ops=CACHED,
    ),
    Standing(
        "replay",
        "a graph is replayed with other lengths than it was captured with",
        "verify replays each graph with other contents and lengths",
        check=GRAPHS,
        on_gpu=True,
    ),
    Standing(
        "memory",
        "scratch that vLLM's profile run does not see",
        "`workspace` is reserved before profiling; verify counts allocations in a captured call",
        check=ALLOCATIONS,
        on_gpu=True,
    ),
    Standing(
        "late compilation",
        "a kernel is compiled while a request waits, or during capture",
        "`warm_up` compiles all; verify counts what is compiled after it",
        check=COMPILATIONS,
        on_gpu=True,
    ),
    Standing(
        "ranks",
        "a sum over ranks is missing or done twice",
        "the kernel reduces nothing across ranks, by contract; verify runs each rank's shapes",
        check=checks.SHARDS[0].check,
    ),
)
"""A kernel that is never captured does not have those that only a GPU's graphs can prove."""

SLOWER, MISSED, FAILS = "slower than stock", "target missed", "fails: "
"""Names of risks that the records show; the last begins those of failed checks."""


def register(facts: Facts) -> tuple[Risk, ...]:
    """All risks of a kernel; an author's that has the name of another one mitigates that."""
    written = {risk.name: risk for risk in facts.author.risks}
    found: dict[str, Risk] = {risk.name: risk for risk in _standing(facts)}
    for risk in _measured(facts):
        by_author = written.get(risk.name)
        found[risk.name] = (
            risk
            if by_author is None or risk.name.startswith(FAILS)
            else Risk(risk.name, risk.what, by_author.mitigation, None)
        )
    for name, by_author in written.items():
        if name not in found:
            found[name] = Risk(name, by_author.what, by_author.mitigation, None)
    return tuple(found.values())


def _standing(facts: Facts) -> Iterator[Risk]:
    for risk in STANDING:
        if facts.identity.op not in risk.ops or (risk.on_gpu and not facts.identity.captures):
            continue
        missing = None
        if risk.check is not None:
            outcome = facts.proofs.outcome(risk.check, risk.on_gpu)
            if not outcome.passed:
                missing = f"{outcome.check}: {outcome.status}"
        yield Risk(risk.name, risk.what, risk.mitigation, missing)


def _measured(facts: Facts) -> Iterator[Risk]:
    """What the records show; no words of an author's make a failed check good."""
    for check in facts.proofs.failed:
        yield Risk(f"{FAILS}{check}", "a check of verify fails", "", "mend the kernel")
    for point in facts.points:
        for mode in point.against:
            yield Risk(
                f"{point.release}, {mode}", "the plug-in point does not hold there", "", "not held"
            )
    slower = [
        f"{group.bench.where}, {group.baseline or 'stock'} {group.phase} {group.mode}".rstrip()
        for group in facts.benches.groups
        if group.worst is not None and group.worst < 1
    ]
    if slower:
        yield Risk(
            SLOWER, f"where it is chosen: {'; '.join(slower)}", "", "leave it to stock there"
        )
    missed = [
        f"{target.what}: {value:.2f} of {target.ratio:.2f} on {where}"
        for target in facts.author.targets
        for where, value in benches.reached(target, facts.benches).items()
        if value < target.ratio
    ]
    if missed:
        yield Risk(MISSED, "; ".join(missed), "", "reach it, or say what bounds it")
