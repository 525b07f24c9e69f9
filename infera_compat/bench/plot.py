"""The roofline of a record: what was achieved under what the GPU was measured at, ours and stock's.

Rendered from the file alone. matplotlib comes with the extra `bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infera_compat.bench import record
from infera_compat.bench.cells import COLD, DECODE, GRAPH
from infera_compat.bench.floors import Rates
from infera_compat.bench.goals import measured
from infera_compat.errors import CompatError
from infera_compat.plan.benches import BATCH, geomean

Cell = Mapping[str, Any]
Value = Callable[[Cell], float]

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
STOCK_COLOURS: Mapping[str, str] = {
    "FLASH_ATTN": "#000000",
    "TRITON_ATTN": "#999999",
    "TritonExperts": "#000000",
}
MARKS = ("o", "^", "D", "P")
STOCK_MARK = "s"
ROOF = "#E69F00"
FACE = "#FFFFFF"
INK, FAINT = "#222222", "#DDDDDD"
INCHES, DOTS = (13.0, 5.4), 150
TERA = 1e12


def draw(bodies: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw records, a row of panels each, into a PNG (or what the file's ending says).

    Raises CompatError without matplotlib, where there is nothing to draw, and where the file can't
    be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise CompatError(
            "the plot needs matplotlib",
            found=str(error),
            expected="matplotlib",
            do="pip install 'infera-compat[bench]'.",
        ) from error
    panels = [(body, part) for body in bodies for part in _parts(body)]
    if not panels:
        raise CompatError(
            "there is nothing to draw",
            found="no measured cell",
            expected="a record with cells in graphs, or of prefill",
            do="Run the bench first.",
        )
    figure, axes = pyplot.subplots(
        len(panels),
        2,
        figsize=(INCHES[0], INCHES[1] * len(panels)),
        gridspec_kw={"width_ratios": (3, 2)},
        squeeze=False,
        layout="constrained",
    )
    figure.set_facecolor(FACE)
    for (body, part), (left, right) in zip(panels, axes, strict=True):
        cells = part(body)
        (_bandwidth if part is _decoding else _roofline)(left, body, cells)
        _ratios(right, body, cells)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=DOTS)
    except (OSError, ValueError) as error:
        raise CompatError(
            f"the plot can't be written to {file}",
            found=str(error),
            expected="a file that can be written, .png say",
            do="Give another --plot.",
        ) from error
    finally:
        pyplot.close(figure)


def _parts(body: Mapping[str, Any]) -> tuple[Callable[[Mapping[str, Any]], list[Cell]], ...]:
    """What a record is drawn in: decoding by bytes, everything else by operations."""
    parts = (_decoding, _prefilling) if body["kind"] == record.ATTENTION else (_experts,)
    return tuple(part for part in parts if part(body))


def _decoding(body: Mapping[str, Any]) -> list[Cell]:
    return [
        cell
        for cell in body["cells"]
        if cell["phase"] == DECODE and cell["mode"] == GRAPH and cell["cache"] == COLD
    ]


def _prefilling(body: Mapping[str, Any]) -> list[Cell]:
    return [cell for cell in body["cells"] if cell["phase"] != DECODE]


def _experts(body: Mapping[str, Any]) -> list[Cell]:
    return [cell for cell in body["cells"] if cell["mode"] == GRAPH]


def _bandwidth(axis: Any, body: Mapping[str, Any], cells: Sequence[Cell]) -> None:
    """Bytes a second by the bytes of keys and values, under the rate of a copy."""
    rates = record.rates(body)
    _points(axis, cells, lambda cell: cell["kv_bytes"] / 2**20, _bytes_a_second)
    axis.axhline(rates.copy / TERA, color=ROOF, linewidth=2, zorder=1)
    axis.annotate(
        f"copy, measured: {rates.copy / TERA:.2f} TB/s",
        (0.01, rates.copy / TERA),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color=ROOF,
        fontweight="bold",
    )
    axis.set_xscale("log", base=2)
    axis.set_ylim(0, 1.15 * rates.copy / TERA)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _dressed(
        axis,
        f"Decode · {_where(body)} · CUDA graphs, cold cache",
        "keys and values read by a call, MiB",
        "achieved TB/s",
    )


def _roofline(axis: Any, body: Mapping[str, Any], cells: Sequence[Cell]) -> None:
    """Operations a second by operations a byte, under both rates."""
    rates = record.rates(body)
    _points(axis, cells, _intensity, _flops_a_second)
    _roofs(axis, rates, [_intensity(cell) for cell in cells])
    axis.set_xscale("log")
    axis.set_yscale("log")
    name = "Experts · " if body["kind"] == record.EXPERTS else "Prefill and mixed batches · "
    how = " · CUDA graphs" if body["kind"] == record.EXPERTS else " · cold cache"
    _dressed(axis, f"{name}{_where(body)}{how}", "operations a byte", "achieved TFLOP/s")


def _roofs(axis: Any, rates: Rates, intensities: Sequence[float]) -> None:
    ridge = rates.matmul / rates.copy
    low, high = min(*intensities, ridge) / 2, max(*intensities, ridge) * 2
    axis.plot(
        (low, ridge, high),
        (low * rates.copy / TERA, rates.matmul / TERA, rates.matmul / TERA),
        color=ROOF,
        linewidth=2,
        zorder=1,
    )
    axis.annotate(
        f"matmul, measured: {rates.matmul / TERA:.0f} TFLOP/s",
        (high, rates.matmul / TERA),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=ROOF,
        fontweight="bold",
    )
    axis.annotate(
        f"copy, measured: {rates.copy / TERA:.2f} TB/s",
        (low, low * rates.copy / TERA),
        xytext=(8, 0),
        textcoords="offset points",
        color=ROOF,
        fontweight="bold",
    )


def _points(axis: Any, cells: Sequence[Cell], across: Value, achieved: Any) -> None:
    """A point a cell and side; a line joins a cell's two, so that one sees what it gains."""
    for cell in cells:
        axis.plot(
            (across(cell), across(cell)),
            (achieved(cell, record.STOCK), achieved(cell, record.OURS)),
            color=FAINT,
            linewidth=1,
            zorder=1,
        )
    for baseline in dict.fromkeys(str(cell["baseline"]) for cell in cells):
        those = [cell for cell in cells if cell["baseline"] == baseline]
        axis.scatter(
            [across(cell) for cell in those],
            [achieved(cell, record.STOCK) for cell in those],
            s=26,
            marker=STOCK_MARK,
            facecolors="none",
            edgecolors=STOCK_COLOURS.get(baseline, INK),
            label=f"stock {baseline}",
            zorder=2,
        )
    for number, kernel in enumerate(record.kernels(cells)):
        for chosen, label in ((True, kernel), (False, f"{kernel}, left to stock")):
            those = [c for c in cells if c["kernel"] == kernel and c["chosen"] == chosen]
            if those:
                axis.scatter(
                    [across(cell) for cell in those],
                    [achieved(cell, record.OURS) for cell in those],
                    s=30,
                    marker=MARKS[number % len(MARKS)],
                    color=COLOURS[number % len(COLOURS)],
                    alpha=1.0 if chosen else 0.3,
                    label=label,
                    zorder=3,
                )


def _ratios(axis: Any, body: Mapping[str, Any], cells: Sequence[Cell]) -> None:
    """Stock's time by ours: each cell, and a batch size's geometric mean."""
    key = BATCH[body["kind"]]
    axis.axhline(1, color=INK, linewidth=1, zorder=1)
    series = dict.fromkeys((str(c["kernel"]), str(c["baseline"])) for c in cells)
    kernels = record.kernels(cells)
    for number, (kernel, baseline) in enumerate(series):
        those = [c for c in cells if (c["kernel"], c["baseline"]) == (kernel, baseline)]
        colour = COLOURS[number % len(COLOURS)]
        mark = MARKS[kernels.index(kernel) % len(MARKS)]
        axis.scatter(
            [cell[key] for cell in those],
            [measured(cell) for cell in those],
            s=14,
            color=colour,
            alpha=0.45,
            marker=mark,
            zorder=2,
        )
        batches = sorted({cell[key] for cell in those})
        means = [geomean(measured(c) for c in those if c[key] == batch) for batch in batches]
        axis.plot(
            batches,
            means,
            color=colour,
            marker=mark,
            markersize=5,
            linewidth=1.6,
            label=f"{kernel} over {baseline}",
            zorder=3,
        )
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}×")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    what = "tokens of a step" if body["kind"] == record.EXPERTS else "requests of a step"
    _dressed(axis, "Times as fast as stock; lines: geometric means", what, "stock's time by ours")


def _dressed(axis: Any, title: str, across: str, up: str) -> None:
    axis.set_title(title, loc="left", fontsize=10.5, color=INK)
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.grid(True, which="major", color=FAINT, linewidth=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8.5, loc="lower right")


def _bytes_a_second(cell: Cell, side: str) -> float:
    """TB/s of all bytes that the cell must move."""
    return float(cell["bytes"] / cell[side] * 1e6 / TERA)


def _flops_a_second(cell: Cell, side: str) -> float:
    """TFLOP/s."""
    return float(cell["flops"] / cell[side] * 1e6 / TERA)


def _intensity(cell: Cell) -> float:
    return float(cell["flops"] / cell["bytes"])


def _where(body: Mapping[str, Any]) -> str:
    return f"{body['gpu']}, vLLM {body['release']}"
