"""What the cluster bench draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from tests.cluster.bench import Calm, Diary

if TYPE_CHECKING:
    from tests.cluster.growth import Grown

mpl.use("Agg")

_MARKS: Final = {"executor": "v", "worker": "s", "driver": "o", "master": "*"}


def draw_requests(calm: Calm, path: Path) -> Path:
    """Draw the requests of a batch by place, and in each place by kind."""
    places = sorted({name.partition(" ")[0] for name in calm.counts}, reverse=True)
    kinds = sorted({name.partition(" ")[2] for name in calm.counts})
    figure, axes = plt.subplots(figsize=(9, 0.4 * len(places) + 1.5), layout="constrained")
    left = [0.0] * len(places)
    for kind in kinds:
        widths = [calm.counts.get(f"{place} {kind}", 0) / calm.batches for place in places]
        axes.barh(places, widths, left=left, label=kind)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel(f"requests a batch (mean of {calm.batches}; the exchange is visited as time goes by)")
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_run(diary: Diary, path: Path) -> Path:
    """Draw batches over time, with kills, outages of the store, and ends of the job."""
    figure, axes = plt.subplots(figsize=(11, 5), layout="constrained")
    axes.step(*zip(*diary.batches, strict=True), where="post", color="0.5", label="batches planned")
    for begin, end in diary.outages:
        axes.axvspan(begin, end, color="tab:red", alpha=0.2)
    for victim, mark in _MARKS.items():
        found = [(second, point) for second, killed, point in diary.kills if killed == victim]
        heights = [max((batch for at, batch in diary.batches if at <= second), default=0) for second, _ in found]
        filled = ["tab:blue" if point is not None else "white" for _, point in found]
        axes.scatter(
            [second for second, _ in found], heights, marker=mark, c=filled, edgecolors="tab:blue", s=60, zorder=3,
            label=f"{victim} killed (filled: at a point)",
        )  # fmt: skip
    for second, _ in diary.ends:
        axes.axvline(second, color="tab:orange", linestyle=":", linewidth=1)
    axes.set_xlabel("seconds (red: the store is out of reach; dotted: the job ended by itself)")
    axes.set_ylabel("batch")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


_AXES: Final = {"executors": "executors, one core each", "latency_ms": "latency of a request to the store (ms)"}
_COSTS: Final = {"seconds": "seconds", "cpu_seconds": "CPU seconds", "requests": "requests to the store"}


def draw_growth(grown: Sequence[Grown], path: Path) -> Path:
    """Draw what a batch costs: a column of panels for each axis, a row for each cost."""
    axes_there = [axis for axis in _AXES if any(each.axis == axis for each in grown)]
    size = (4 * len(axes_there), 3 * len(_COSTS))
    figure, panels = plt.subplots(len(_COSTS), len(axes_there), figsize=size, layout="constrained", squeeze=False)
    for column, axis in enumerate(axes_there):
        for row, (cost, words) in enumerate(_COSTS.items()):
            panel = panels[row][column]
            for is_throttled, label, mark in ((True, "throttled", "o-"), (False, "unthrottled, with a shuffle", "s--")):
                points = [each for each in grown if each.axis == axis and each.is_throttled == is_throttled]
                points.sort(key=lambda each: each.value)
                panel.plot([each.value for each in points], [getattr(each, cost) for each in points], mark, label=label)
            panel.set_ylim(bottom=0)
            panel.set_xlabel(_AXES[axis])
            panel.set_ylabel(f"{words} a batch")
    panels[0][0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
