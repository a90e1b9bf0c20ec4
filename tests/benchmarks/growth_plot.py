"""The picture of how cost grows with rows, namespaces, partitions of the source and waiting rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from tests.benchmarks.growth import NAMESPACES, PARTITION_COUNTS, PARTS, ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final = {"throttled": "#1f5fa8", "quotas": "#d9822b", "shuffle": "#8a8f98"}
_LABELS: Final = {"throttled": "throttled", "quotas": "with a quota each", "shuffle": "without a throttle"}


def plot_growth(results: Mapping[str, Any], path: Path) -> None:
    """Draw a job's cost over what it reads, the kernel's, and that of what it remembers or has waiting."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained")
    _job(axes[0, 0], results, "rows", ROWS, "rows", is_a_row=False)
    _job(axes[0, 1], results, "namespaces", NAMESPACES, "namespaces (600,000 rows)")
    _job(axes[0, 2], results, "partitions", PARTITION_COUNTS, "partitions of the source (600,000 rows)")
    spread = {each["name"]: median(each["values"]) for each in results["kernel"]["spread"]}
    _kernel(axes[1, 0], spread)
    _remembered(axes[1, 1], results["kernel"])
    _waiting(axes[1, 2], results["overload"])
    figure.suptitle("What grows with what", x=0.01, ha="left", fontsize=14)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _job(
    axes: Axes, results: Mapping[str, Any], word: str, counts: tuple[int, ...], label: str, *, is_a_row: bool = True
) -> None:
    for opponent, colour in _COLOURS.items():
        cpu = []
        for count in counts:
            part = f"{word}-{count}"
            rows = PARTS[part].work.rows if is_a_row else 1_000_000
            cpu.append(1e6 / rows * median(run["cpu_seconds"] for run in results["growth"][part][opponent]))
        axes.plot(counts, cpu, marker="o", color=colour, label=_LABELS[opponent])
    axes.set(xscale="log", xlabel=label, ylabel="CPU µs a row" if is_a_row else "CPU s a run")
    axes.set_title("a job, Parquet to nothing", loc="left", fontsize=10)
    if not is_a_row:
        axes.set_yscale("log")
        axes.legend(frameon=False)
    else:
        axes.set_ylim(bottom=0)
    _tidy(axes)


def _kernel(axes: Axes, spread: Mapping[str, float]) -> None:
    counts = [int(name.split()[0]) for name in spread]
    axes.plot(counts, list(spread.values()), marker="o", color=_COLOURS["throttled"])
    axes.set(
        xscale="log", xlabel="namespaces (1,000,000 messages in one batch)", ylabel="CPU ns a message", ylim=(0, None)
    )
    axes.set_title("the kernel, one overloaded group", loc="left", fontsize=10)
    _tidy(axes)


def _remembered(axes: Axes, kernel: Mapping[str, Any]) -> None:
    by_name = {each["name"]: median(each["values"]) for each in kernel["flows"]}
    for what, colour in (("decide", "#1f5fa8"), ("read", "#8a8f98"), ("write", "#d9822b")):
        points = {
            int(name.split()[2].replace(",", "")): value
            for name, value in by_name.items()
            if name.endswith(f": {what}")
        }
        points.pop(0, None)
        axes.plot(list(points), list(points.values()), marker="o", color=colour, label=what)
    axes.set(xscale="log", yscale="log", xlabel="remembered namespaces", ylabel="CPU ms a batch")
    axes.set_title("a batch of 100 messages", loc="left", fontsize=10)
    axes.legend(frameon=False)
    _tidy(axes)


def _waiting(axes: Axes, overload: Sequence[Mapping[str, Any]]) -> None:
    """Draw a batch behind waiting rows, over their number."""
    for way, colour in (("staged", "#1f5fa8"), ("references", "#8a8f98")):
        runs = [each for each in overload if each["way"] == way]
        counts = sorted({each["waiting"] for each in runs})
        values = [median(each["cpu_ms"] for each in runs if each["waiting"] == count) for count in counts]
        axes.plot(counts, values, marker="o", color=colour, label=way)
    axes.set(xlabel="waiting rows", ylabel="CPU ms a batch", ylim=(0, None))
    axes.ticklabel_format(axis="x", style="sci", scilimits=(6, 6))
    axes.set_title("a job, a batch behind waiting rows", loc="left", fontsize=10)
    axes.legend(frameon=False)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
