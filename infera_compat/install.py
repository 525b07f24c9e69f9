"""Binds each op whole or not at all, and keeps the book of this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from infera_compat import __version__, enforce, fingerprint, report, shims
from infera_compat.binding import Binding
from infera_compat.errors import CompatError, Refused
from infera_compat.kernels.kernel import OPS as KERNEL_OPS
from infera_compat.kernels.kernel import Kernel
from infera_compat.ledger import Choice, Layer, Ledger
from infera_compat.release import Release, installed
from infera_compat.settings import AUTO, OFF, PASSTHROUGH, Settings

if TYPE_CHECKING:
    from infera_compat.contracts import Verdict
    from infera_compat.kernels.automatic import Candidate, Found
    from infera_compat.kernels.registry import Entry
    from infera_shims.adapters.adapter import Adapter
    from infera_shims.shim import Shim

OPS = ("attention", "moe")
MEASURED_ON = ("cuda",)
"""Kinds of device (vLLM's names; ROCm's is "cuda" too) on which `auto` may choose a kernel.

A CPU is none: a kernel owns its cache and its unpacked weights there, so that no step could be
stock's where the kernel's table says so.
"""
STEPS_TO_FIRE = 16
"""After so many steps that served, a bound layer that never ran is told of."""


class Installation:
    """infera-compat in one process.

    A front end or an engine core that starts workers only carries this along; where a model is
    built, `before_model` judges the release and binds, `model_built` takes down the layers, and
    `served` notes the steps.
    """

    def __init__(self, settings: Settings) -> None:
        """Nothing is judged, imported or bound yet."""
        self.settings = settings
        self.ledger = Ledger()
        self.release: Release | None = None
        self.shim: Shim | None = None
        self.verdict: Verdict | None = None
        self.rank: int | None = None
        self.platform_note: str | None = None
        self._bindings: dict[str, Binding] = {}
        self._kernels: dict[str, Kernel[Any, Any, Any]] = {}
        self._entries: dict[str, Entry] = {}
        # Of ops that are auto: what may be chosen, and what is.
        self._found: dict[str, Found] = {}
        self._chosen: dict[str, Candidate] = {}
        self._told: set[str] = set()
        self._prepared = False
        self._unwritable = False
        self._salted = False

    def judge(self) -> None:
        """Find the release and its shim, and decide for each op what is to be bound."""
        self.release = installed()
        if self.release is None:
            raise CompatError(
                "vLLM is not installed for this Python",
                found="no package vllm",
                expected="a vLLM from 0.22",
                do="Install vLLM beside infera-compat.",
            )
        self.shim, self.verdict = shims.pick(self.release)
        self.ledger.choices.update({op: self.choose(op) for op in OPS})

    def choose(self, op: str) -> Choice:
        """What is to be bound for `op` before any contract is looked at."""
        asked, forced = self.settings.asked(op), self.settings.seam(op)
        if asked == OFF:
            return Choice(op, asked, forced, why_not=f"INFERA_{op.upper()}=off")
        if asked == AUTO:
            return Choice(op, asked, forced, why_not="auto: not known without a GPU")
        if asked != PASSTHROUGH:
            self._kernels[op] = self._named(op, asked)
        return Choice(op, asked, forced, kernel=asked)

    def choose_automatically(self, choice: Choice, gpu: str, kinds: tuple[str, ...]) -> None:
        """Take the kernels that may be chosen on a GPU, or say in the choice why there is none.

        gpu: the device's name. kinds: the ops of kernels (kernels.kernel.OPS) that may be chosen.
        """
        from infera_compat.kernels import automatic  # as registry: nobody else pays for it

        _, shim, _ = self._judged()
        found = automatic.find(
            choice.op, gpu, shim.name, shims.loaded().line_of, kinds, self.settings.kernel_table
        )
        for error in found.broken:
            if self.settings.strict:
                raise error
            if str(error) not in self._told:  # a broken table is of neither op
                report.warn(str(error))
            self._told.add(str(error))
        choice.not_chosen = dict(found.against)
        best = found.best()
        if best is None:
            choice.why_not = f"auto: {found.why_not(gpu)}"
            return
        self._found[choice.op] = found
        self._take(choice, best)
        # Which of several it is, the layers' own backends say.
        choice.kernel = " or ".join(each.entry.name for each in found.candidates)

    def settle(self, op: str, over: Mapping[str, int]) -> None:
        """Choose among the kernels that may be, once a model is built.

        over: how many layers of the op there are, by the stock code that they run on.
        """
        choice = self.ledger.choices[op]
        if op not in self._found or choice.kernel is None:
            return
        found = self._found[op]
        for baseline in sorted(over, key=lambda name: over[name], reverse=True):
            best = found.best(baseline)
            if best is not None:
                self._take(choice, best)
                return
        if over:
            self._leave(
                op, f"auto: {choice.kernel} did not measure faster than {' or '.join(over)}"
            )

    @contextmanager
    def falls_back(self, op: str) -> Iterator[None]:
        """Let an accident with a kernel that was chosen automatically cost the op that kernel.

        One that was asked for by name stops the start, and so does any under INFERA_STRICT.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):  # vLLM is told to end
            raise
        except BaseException as error:  # an extension's panic is no Exception
            if op not in self._found or self.settings.strict:
                raise
            if self.ledger.choices[op].kernel is not None:
                self._give_up(op, error)

    def adapters(self) -> dict[str, Adapter]:
        """By op, a kernel over the model's layers, where one is bound."""
        return {
            op: binding.adapter
            for op, binding in self._bindings.items()
            if binding.adapter is not None and self.ledger.choices[op].kernel
        }

    def plan(self, choice: Choice, device_type: str) -> tuple[str, ...]:
        """The seams to bind `choice` by on a platform of this type, in their order.

        Says in the choice why each other one is not taken, and refuses it where none is left.
        """
        _, shim, verdict = self._judged()
        forced = choice.forced != AUTO
        candidates, kind = _candidates(choice, shim, device_type)
        variable = f"INFERA_{choice.op.upper()}_SEAM"
        against = {}
        for seam in shim.seams(choice.op):
            moved = verdict.among(shim.group(choice.op, seam, kind))
            if moved:
                against[seam] = f"moved: {', '.join(x.need.symbol for x in moved)}"
            elif choice.kernel is None:
                against[seam] = f"nothing to bind ({choice.why_not})"
            elif choice.op in self._kernels and not shims.loaded().carries(
                seam, self._kernels[choice.op]
            ):
                against[seam] = f"it only passes through: {choice.kernel} can't be bound by it"
            elif seam not in candidates:
                reason = f"{variable}={choice.forced}" if forced else f"only by {variable}={seam}"
                against[seam] = reason
        choice.not_taken = against
        plan = tuple(seam for seam in candidates if seam not in against)
        if choice.kernel and not plan:
            choice.refuse("; ".join(against[seam] for seam in candidates))
        return plan

    @property
    def must(self) -> bool:
        """Whether an accident is to stop the start: strict, or a kernel was asked for by name."""
        return self.settings.strict or bool(self._kernels.keys() - self._found.keys())

    def knows_worker(self) -> bool:
        """Whether vLLM's worker is what its shim was written for."""
        if self.shim is None or self.verdict is None:
            return False
        return not self.verdict.among(self.shim.groups["worker"])

    def before_model(self, config: Any = None) -> None:
        """Judge and bind, once a process; raises what the operator wants to stop the start.

        config: the worker's VllmConfig. A later model is looked at for what `auto` may choose.
        """
        if self._prepared:
            self._before_another(config)
            return
        self.judge()
        device_type = shims.loaded().device_type()
        for choice in self.ledger.choices.values():
            self._look(choice, device_type, config)
        self._bind_chosen(self.ledger.choices.values(), device_type)
        report.say(self.start_line())
        self._prepared = True

    def model_built(self, layers: Iterable[Layer], rank: int) -> None:
        """Take down the layers of a model that was just built, and say so."""
        self.rank = rank
        self.ledger.survey(layers)
        for choice in self.ledger.choices.values():
            if choice.kernel is None:  # it may have gone back to stock while they were looked at
                self.ledger.unbind(choice.op, str(choice.why_not))
        for op, adapter in self.adapters().items():
            with self.falls_back(op):
                adapter.choose(self.settings, self._entries[op].source)
                adapter.reserve()
        self._leave_unused()
        enforce.some_layer(self._kernels, self.ledger)
        if self.settings.strict:
            enforce.every_layer(self.ledger)
        report.say(report.model_lines(self.ledger.choices.values(), self.ledger.layers.values()))
        self.append("model_built")

    def warm_up(self) -> None:
        """Look at the KV caches, and compile the kernels: before graphs are captured.

        Layers whose cache a kernel can't read go back to stock here, and it is said.
        """
        for op, adapter in self.adapters().items():
            before, choice = self.ledger.bound(op), self.ledger.choices[op]
            with self.falls_back(op):
                adapter.look_at_caches()
                adapter.drop_unmeasured()
                adapter.warm_up()
            if choice.kernel and self.ledger.bound(op) != before:
                rows = report.model_lines([choice], self.ledger.of(op))
                report.warn(f"{rows}\n  (after a look at the KV caches)")
        self._leave_unused()
        enforce.some_layer(self._kernels, self.ledger)

    def served(self) -> None:
        """A step served requests; the first one is reported."""
        self.ledger.steps += 1
        if self.ledger.steps == 1:
            self.append("served")
        if self.ledger.steps == STEPS_TO_FIRE:
            self._warn_of_silent()

    def append(self, event: str) -> None:
        """Append `event` to INFERA_REPORT's file, where one is asked for."""
        path = self.settings.report
        if path is None or self._unwritable:
            return
        try:
            report.append(path, event, self.as_json())
        except OSError as error:
            # A report that can't be written must not cost a start or a request.
            self._unwritable = True
            report.warn(
                f"infera-compat: INFERA_REPORT can't be written. Found: {error}. Expected: a file "
                f"that can be appended to. Nothing more is reported to {path}; vLLM goes on."
            )

    def start_line(self) -> str:
        """The line at registration."""
        release, shim, verdict = self._judged()
        return report.start_line(
            release, shim.name, verdict.held, verdict.of, self.ledger.choices.values()
        )

    def as_json(self) -> dict[str, Any]:
        """What is known here so far; what was not looked at yet is null."""
        release, verdict = self.release, self.verdict
        return {
            "infera_compat": __version__,
            "rank": self.rank,
            "role": report.role(self.rank),
            "vllm": release.text if release else None,
            "distribution": release.distribution if release else None,
            "shim": self.shim.name if self.shim else None,
            "contracts": None
            if verdict is None
            else {
                "held": verdict.held,
                "of": verdict.of,
                "known_files": verdict.known,
                "moved": [str(moved) for moved in verdict.moved],
            },
            **self.ledger.as_json(),
        }

    def stand_back(self, reason: str) -> None:
        """Put every original back: what is made from now on is stock, and `reason` says why.

        A model that lives runs stock's code again too, but for what a CUDA graph has recorded.
        """
        for binding in self._bindings.values():
            binding.originals.restore()
        for choice in self.ledger.choices.values():
            if choice.kernel:
                choice.refuse(reason)
                self.ledger.unbind(choice.op, reason)
        self._salt_compile_cache()

    def fingerprint(self) -> str:
        """What a compiled graph depends on of us; equal on all ranks."""
        sources = {op: entry.source for op, entry in self._entries.items()}
        return fingerprint.of(self.ledger.choices.values(), self._kernels, sources)

    def _judged(self) -> tuple[Release, Shim, Verdict]:
        if self.release is None or self.shim is None or self.verdict is None:
            raise AssertionError("judge() comes first")
        return self.release, self.shim, self.verdict

    def _bind(self, choice: Choice, plan: Sequence[str]) -> None:
        _, shim, _ = self._judged()
        binding = self._bindings[choice.op] = Binding(
            choice, self.ledger, self.settings, self.platform_note, self._fell_back
        )
        with binding:
            if choice.op in self._kernels:
                binding.adapter = shims.loaded().adapt(self._kernels[choice.op], self.ledger)
                if choice.op in self._chosen:
                    binding.adapter.measured = self._chosen[choice.op].table
            for seam in plan:
                try:
                    shims.loaded().bind(binding, seam, shim)
                except Refused as refusal:  # before it changed anything
                    choice.not_taken[seam] = str(refusal)
                    choice.notes.append(f"not by {seam}: {refusal}")
                    continue
                # A part that was bound at once may have fallen back already.
                if choice.kernel is None:
                    return
                choice.seams.append(seam)
            if not choice.seams:
                raise Refused("; ".join(choice.not_taken[seam] for seam in plan))

    def _bind_chosen(self, choices: Iterable[Choice], device_type: str) -> None:
        chosen = list(choices)
        plans = {choice.op: self.plan(choice, device_type) for choice in chosen}
        self._warn_of_moved(chosen, device_type)
        try:
            for choice in chosen:
                if choice.kernel:
                    self._bind(choice, plans[choice.op])
            enforce.bound(self.ledger.choices.values(), self.settings.strict)
            self._salt_compile_cache()
        except Exception:
            self.stand_back("binding the ops failed")
            raise

    def _before_another(self, config: Any) -> None:
        """Before a later model of this process: `auto` may choose another way for it."""
        device_type = shims.loaded().device_type()
        anew = []
        for op, choice in self.ledger.choices.items():
            if choice.asked != AUTO:
                continue
            if choice.kernel is None:
                self.ledger.choices[op] = self.choose(op)
                self._look(self.ledger.choices[op], device_type, config)
                anew.append(self.ledger.choices[op])
                continue
            with self.falls_back(op):
                asked = shims.loaded().asked(op, config)
                if asked:
                    self._leave(op, f"auto: {asked}")
        if any(choice.kernel for choice in anew):
            self._bind_chosen(anew, device_type)
            report.say(self.start_line())

    def _look(self, choice: Choice, device_type: str, config: Any) -> None:
        """Look for kernels where an op is auto. Cheap where no kernel was measured on this GPU."""
        if choice.asked != AUTO:
            return
        if device_type not in MEASURED_ON:
            choice.why_not = f"auto: no kernel is chosen on a {device_type}"
            return
        try:
            self._look_on(shims.loaded().device_name(), choice, config)
        except Exception as error:
            if self.settings.strict:
                raise
            told = enforce.accident(choice.op, "looking for its kernels", error)
            choice.refuse(f"auto: {told.found}")
            report.warn(str(told))

    def _look_on(self, gpu: str, choice: Choice, config: Any) -> None:
        from infera_compat.kernels import automatic

        if not automatic.measured_on(gpu):
            choice.why_not = f"auto: {automatic.Found().why_not(gpu)}"
            return
        asked = shims.loaded().asked(choice.op, config)
        if asked:
            choice.why_not = f"auto: {asked}"
            return
        self.choose_automatically(choice, gpu, shims.loaded().kinds(choice.op, config))

    def _take(self, choice: Choice, best: Candidate) -> None:
        self._kernels[choice.op], self._entries[choice.op] = best.kernel, best.entry
        self._chosen[choice.op] = best
        choice.kernel, choice.why_not = best.entry.name, None
        binding = self._bindings.get(choice.op)
        if binding is not None and binding.adapter is not None:
            binding.adapter.kernel = best.kernel
            binding.adapter.measured = best.table

    def _give_up(self, op: str, error: BaseException) -> None:
        """Leave an op to stock, whole, after an accident with its kernel; vLLM goes on."""
        told = enforce.accident(op, f"{self._entries[op]}, which was chosen automatically", error)
        self._leave(op, f"{told.what}: {told.found}")
        report.warn(str(told))

    def _leave(self, op: str, reason: str) -> None:
        """Leave an op to stock that was chosen automatically."""
        binding = self._bindings[op]
        binding.originals.restore()
        if binding.adapter is not None:
            binding.adapter.begin(binding.adapter.config)
        self.ledger.choices[op].refuse(reason)
        self.ledger.unbind(op, reason)
        self._salt_compile_cache()

    def _leave_unused(self) -> None:
        """Leave what was chosen automatically where it takes no layer: nothing is bound then."""
        for op in self._found:
            choice = self.ledger.choices[op]
            if choice.kernel is None or self.ledger.bound(op):
                continue
            layers = self.ledger.of(op)
            why = f"{layers[0].layer}: {layers[0].why_not}" if layers else "there is none"
            self._leave(op, f"auto: {choice.kernel} takes no layer of this model ({why})")

    def _fell_back(self, choice: Choice, reason: str) -> None:
        self.ledger.unbind(choice.op, reason)
        self._salt_compile_cache()
        error = CompatError(
            f"binding {choice.op} failed and was undone; it stays stock",
            found=reason,
            expected="a vLLM that nobody else changed there",
            do="There is nothing to do.",
        )
        if self.settings.strict and choice.op in self._found:
            raise error
        report.warn(str(error))

    def _warn_of_silent(self) -> None:
        """Say once which bound layers serve without us: the seam holds, and nothing comes by it."""
        silent = self.ledger.silent()
        if silent:
            report.warn(
                f"infera-compat: {len(silent)} layers are bound and did not run in the first "
                f"{STEPS_TO_FIRE} steps that served, first {silent[0]}. Expected: each in every "
                "step. vLLM goes another way there and serves them by its own code."
            )

    def _warn_of_moved(self, choices: Iterable[Choice], device_type: str) -> None:
        """Say what moved of the seams that were to be taken; stop there under INFERA_STRICT."""
        release, shim, verdict = self._judged()
        fates = []
        for choice in choices:
            candidates, kind = _candidates(choice, shim, device_type)
            needs = [need for seam in candidates for need in shim.group(choice.op, seam, kind)]
            fates.append((choice, verdict.among(needs)))
        error = enforce.moved(str(release), shim.name, verdict.of, fates)
        if error is None:
            return
        if self.settings.strict:
            raise error
        report.warn(str(error))

    def _named(self, op: str, name: str) -> Kernel[Any, Any, Any]:
        """The kernel of this name; CompatError where it can't be had, or is for the other op."""
        from infera_compat.kernels import registry  # 4 ms that only a named kernel pays

        found = registry.find()
        kernel = found.load(name)
        self._entries[op] = found.entries[name]
        if KERNEL_OPS[kernel.op] != op:
            raise CompatError(
                f"INFERA_{op.upper()}={name}: it is no kernel for {op}",
                found=f"a kernel for {kernel.op}",
                expected=f"one for {' or '.join(x for x, of in KERNEL_OPS.items() if of == op)}",
                do=f"Set INFERA_{KERNEL_OPS[kernel.op].upper()}={name} instead.",
            )
        return kernel

    def _salt_compile_cache(self) -> None:
        """Put the fingerprint into vLLM's compile key, and no key where nothing is bound."""
        bound = any(choice.kernel for choice in self.ledger.choices.values())
        if bound != self._salted:
            shims.loaded().salt_compile_cache(
                fingerprint.VARIABLE, self.fingerprint if bound else None
            )
            self._salted = bound


def _candidates(choice: Choice, shim: Shim, device_type: str) -> tuple[tuple[str, ...], str | None]:
    """The seams that may be taken, and the kind of device that had a say in it, if one had."""
    if choice.forced != AUTO:
        return (choice.forced,), None
    return shim.automatic(choice.op, device_type), device_type
