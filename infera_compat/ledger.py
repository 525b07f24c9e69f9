"""What bound, what fired, what stayed stock and why: per layer, per process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

PROFILE, SERVING = "profile", "serving"


@dataclass
class Calls:
    """How often a layer's bound code ran.

    profile: while vLLM sized its memory and warmed up.
    capture: while a CUDA graph recorded it; the graph's replays run no Python.
    serving: in steps that served requests.
    replayed: replays of the graphs that recorded it, where they are counted (INFERA_REPORT), else
        None.
    handed: calls that a kernel left to stock, in a capture or in serving.
    """

    profile: int = 0
    capture: int = 0
    serving: int = 0
    replayed: int | None = None
    handed: int = 0

    @property
    def fired(self) -> bool:
        """Whether a serving step ran it, by itself or by replaying a graph that holds it."""
        return self.serving > 0 or bool(self.replayed)

    @property
    def seen(self) -> bool:
        """Whether it served as far as Python sees; what only graphs hold runs none in a step.

        Whether those were replayed costs a wait for the GPU to know.
        """
        return bool(self.serving or self.capture)


@dataclass
class Layer:
    """One layer of the model that vLLM built.

    op: "attention" or "moe". layer: its name in the model. over: the stock backend or experts class
    it runs on. seam, kernel: what was bound, or None. why_not: the reason where nothing was.
    shared_with: another plugin that holds the same place; ours stands before it.
    """

    op: str
    layer: str
    over: str
    seam: str | None = None
    kernel: str | None = None
    why_not: str | None = None
    shared_with: str | None = None

    @property
    def bound(self) -> bool:
        """Whether our code stands in this layer."""
        return self.kernel is not None


@dataclass
class Choice:
    """What became of an op in this process.

    asked: the setting. forced: the seam that was asked for, or auto. kernel: what is to be bound,
    or None. seams: by which seams, once bound. why_not: the reason where the op stays stock.
    not_taken: the reason why each other seam was not taken. not_chosen: by kernel, why `auto` did
    not choose it. notes: what the operator should know besides.
    """

    op: str
    asked: str
    forced: str = "auto"
    kernel: str | None = None
    seams: list[str] = field(default_factory=list)
    why_not: str | None = None
    not_taken: dict[str, str] = field(default_factory=dict)
    not_chosen: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        """Leave the op stock."""
        for seam in self.seams:
            self.not_taken[seam] = reason
        self.kernel, self.seams, self.why_not = None, [], reason


class Ledger:
    """The book of one process."""

    def __init__(self) -> None:
        """Start before anything is bound, in vLLM's profiling phase."""
        self.choices: dict[str, Choice] = {}
        self.layers: dict[tuple[str, str], Layer] = {}
        # The layers that a seam bound while the model was made, where that can't be seen in them.
        self.made: dict[tuple[str, str], str] = {}
        self.phase = PROFILE
        self.steps = 0
        self._calls: dict[tuple[str, str], Calls] = {}
        # The shim says how a CUDA graph being captured is seen, and how its replays are counted:
        # both need torch.
        self.capturing: Callable[[], bool] = _never
        self.on_capture: Callable[[tuple[str, str]], None] = _ignore
        self.replays: Callable[[], dict[tuple[str, str], int]] = dict
        self.before_first_step: Callable[[], None] = _nothing

    def count(self, op: str, layer: str) -> None:
        """A bound layer's code is running. Hot path: no I/O, no allocation after the first."""
        key = op, layer
        calls = self._calls.get(key)
        if calls is None:
            calls = self._calls[key] = Calls()
        if self.phase == SERVING:
            calls.serving += 1
        elif self.capturing():
            calls.capture += 1
            self.on_capture(key)
        else:
            calls.profile += 1

    def hand_over(self, op: str, layer: str) -> None:
        """A layer's kernel leaves this call to stock. Hot path, as `count`."""
        if self.phase == SERVING or self.capturing():
            self._calls.setdefault((op, layer), Calls()).handed += 1

    def survey(self, layers: Iterable[Layer]) -> None:
        """Take down the layers of a model that was just built, on a new page: counts start anew."""
        self.layers = {(layer.op, layer.layer): layer for layer in layers}
        self.made.clear()
        self._calls.clear()
        self.steps = 0

    def unbind(self, op: str, reason: str) -> None:
        """The op went back to stock: so did its layers, if a model is built already."""
        for layer in self.of(op):
            if layer.bound:
                layer.seam, layer.kernel, layer.why_not = None, None, reason

    def silent(self) -> list[str]:
        """Bound layers that no serving step ran so far, by itself or as far as can be seen."""
        return [
            layer.layer
            for key, layer in self.layers.items()
            if layer.bound and not self._calls.get(key, Calls()).seen
        ]

    def calls(self) -> dict[tuple[str, str], Calls]:
        """The calls of every layer that is known, or that ran."""
        calls = {key: self._calls.get(key, Calls()) for key in (*self.layers, *self._calls)}
        for key, replayed in self.replays().items():
            calls.setdefault(key, Calls()).replayed = replayed
        return calls

    def bound(self, op: str) -> int:
        """How many of an op's layers are bound."""
        return sum(layer.bound for layer in self.of(op))

    def of(self, op: str) -> list[Layer]:
        """The op's layers, in the model's order."""
        return [layer for layer in self.layers.values() if layer.op == op]

    def as_json(self) -> dict[str, Any]:
        """The whole book, for INFERA_REPORT and `infera-compat report`."""
        calls = self.calls()
        return {
            "ops": {
                op: {key: value for key, value in asdict(choice).items() if key != "op"}
                for op, choice in self.choices.items()
            },
            "layers": [
                asdict(layer) | {"bound": layer.bound, "calls": asdict(calls[key])}
                for key, layer in self.layers.items()
            ],
            "unknown_layers": [
                {"op": op, "layer": layer, "calls": asdict(calls[op, layer])}
                for op, layer in calls
                if (op, layer) not in self.layers
            ],
            "steps": self.steps,
        }


def _never() -> bool:
    return False


def _nothing() -> None:
    return None


def _ignore(key: tuple[str, str]) -> None:
    return None
