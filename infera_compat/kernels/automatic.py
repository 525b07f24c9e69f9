"""Which kernels `auto` may choose: those that measured faster on this GPU, and say so by records.

Asked where a model is about to be built. A kernel without a table for the GPU costs a look at one
file; a kernel's module, and with it torch, is imported last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infera_compat.errors import CompatError, words_of
from infera_compat.kernels import records, registry, sources
from infera_compat.kernels.kernel import OPS
from infera_compat.kernels.records import Records
from infera_compat.kernels.registry import AnyKernel, Entry, Registry
from infera_compat.kernels.table import Table, file_of, slug
from infera_compat.settings import AUTO

NO_TABLE = "no table for this GPU"


@dataclass(frozen=True)
class Candidate:
    """A kernel that may be chosen.

    measured: its own table of this GPU, over the stock code that bench has a record against.
    table: where it is to run; the same, unless INFERA_KERNEL_TABLE says another.
    """

    entry: Entry
    kernel: AnyKernel
    measured: Table
    table: Table

    def wins(self, baseline: str | None) -> int:
        """In how many cells it is faster than this stock code, or than any."""
        over = self.measured.baselines if baseline is None else {baseline}
        return sum(map(self.measured.wins, over))


@dataclass(frozen=True)
class Found:
    """What a look for kernels came to.

    candidates: those that may be chosen. against: by kernel, why another one is not. broken: what
    went wrong on the way, beyond a record that is not there.
    """

    candidates: tuple[Candidate, ...] = ()
    against: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[CompatError, ...] = ()

    def best(self, baseline: str | None = None) -> Candidate | None:
        """The candidate that is faster in most cells over this stock code, the first of equals.

        baseline: None: over any.
        """
        able = [each for each in self.candidates if each.wins(baseline)]
        return max(able, key=lambda each: each.wins(baseline), default=None)

    def why_not(self, gpu: str) -> str:
        """In one line, why there is no candidate: what was measured here, and is not chosen."""
        told = [f"{name}: {why}" for name, why in self.against.items() if why != NO_TABLE]
        return f"no eligible kernel ({'; '.join(told) or f'none has a table for {gpu}'})"


class Unfit(Exception):
    """Why a kernel is not chosen."""


def measured_on(gpu: str) -> bool:
    """Whether any installed kernel has a table for a GPU; reads metadata and looks for files."""
    found = registry.find()
    claimed = (one.entry for one in found.broken)
    return any(_is_here(entry, gpu) for entry in (*found.entries.values(), *claimed))


def find(
    op: str,
    gpu: str,
    line: str,
    line_of: Callable[[str], str],
    kinds: tuple[str, ...],
    kernel_table: str | Path,
) -> Found:
    """Look for kernels for `op` ("attention" or "moe").

    gpu: the device's name. line: the shim of the vLLM that is installed; line_of: of a release.
    kinds: the ops of kernels (OPS) that the model has layers for. kernel_table:
    Settings.kernel_table. Raises nothing that a kernel's files or code are to blame for.
    """
    installed = registry.find()
    candidates: list[Candidate] = []
    against: dict[str, str] = {}
    broken: list[CompatError] = []
    for one in installed.broken:
        # Whose name it is not: nobody knows for which op, so both are told.
        if one.entry.name not in installed.entries and _is_here(one.entry, gpu):
            against[one.entry.name] = one.found
    for name, entry in sorted(installed.entries.items()):
        try:
            with _of(entry):
                file = _table_of(entry, gpu)
            if file is None:
                against[name] = NO_TABLE
                continue
            table = Table.read(file)
            if table.op is None or OPS[table.op] != op:
                continue  # no word of it where the other op is spoken of
            with _of(entry):
                found = _candidate(entry, installed, table, gpu, line, line_of, kinds, kernel_table)
            candidates.append(found)
        except Unfit as reason:
            against[name] = str(reason)
        except CompatError as error:
            told = CompatError(
                f"{entry} is not chosen automatically: {error.what}",
                found=error.found,
                expected=error.expected,
                do=error.do,
            )
            against[name] = f"{error.what}: {error.found}"
            broken.append(told)
    return Found(tuple(candidates), against, tuple(broken))


def _candidate(
    entry: Entry,
    installed: Registry,
    measured: Table,
    gpu: str,
    line: str,
    line_of: Callable[[str], str],
    kinds: tuple[str, ...],
    kernel_table: str | Path,
) -> Candidate:
    """A kernel with a table here; Unfit where it is not to be chosen."""
    if measured.kernel != entry.name or slug(measured.gpu) != slug(gpu):
        raise Unfit(f"its table is of {measured.kernel} on {measured.gpu}")
    if measured.op not in kinds:
        raise Unfit(f"it is for {measured.op}, the model has {' and '.join(kinds)}")
    kernel = installed.load(entry.name)
    if kernel.op != measured.op:
        raise Unfit(f"it is for {kernel.op}, its table for {measured.op}")
    folder = records.folder_of(entry.module, entry.is_ours)
    told = Records(folder, entry.name, kernel.op, gpu, sources.digest(kernel), line_of)
    why = told.unverified()
    if why is not None:
        raise Unfit(why)
    baselines = told.benched(line, measured.baselines)
    if isinstance(baselines, str):
        raise Unfit(baselines)
    measured = measured.only(baselines)
    if not any(map(measured.wins, baselines)):
        raise Unfit("its table prefers stock everywhere")
    if kernel_table == AUTO:
        return Candidate(entry, kernel, measured, measured)
    beside = sources.folder(entry.module)
    meant = Table.chosen(kernel_table, kernel=entry.name, op=kernel.op, folder=beside, gpu=gpu)
    return Candidate(entry, kernel, measured, meant)


def _table_of(entry: Entry, gpu: str) -> Path | None:
    """The file of a kernel's table for a GPU, or None."""
    try:
        file = file_of(sources.folder(entry.module), entry.name, gpu)
    except CompatError:  # a module that can't be found, or that is no file, has nothing beside it
        return None
    return file if file.is_file() else None


def _is_here(entry: Entry, gpu: str) -> bool:
    """Whether there is a table for a GPU, or something that `find` is to tell of."""
    try:
        with _of(entry):
            return _table_of(entry, gpu) is not None
    except CompatError:
        return True


@contextmanager
def _of(entry: Entry) -> Iterator[None]:
    """Turn whatever a third party's files and code raise into a CompatError."""
    try:
        yield
    except (CompatError, Unfit, KeyboardInterrupt):
        raise
    # An extension's panic is no Exception, and a module may end the process at its import.
    except BaseException as error:
        raise CompatError(
            "it can't be judged",
            found=words_of(error),
            expected="a table, records and a module that can be read",
            do=f"Mend or uninstall {entry.distribution}.",
        ) from error
