"""The plot of the soak test: one small chart per measure, on a common time axis that shows growth at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from demos.plots import INK, PALE

CHARTS: Final = (
    ("Python workers", "MiB", ("workers_mib",)),
    ("Python driver", "MiB", ("driver_mib",)),
    ("JVM: resident, and heap in use", "MiB", ("jvm_mib", "jvm_heap_mib")),
    ("State store", "MiB", ("state_mib",)),
    ("Batch time", "seconds", ("batch_seconds",)),
    ("Throughput", "rows a second", ("rows_a_second",)),
    ("Checkpoint: all, and control files", "MiB", ("checkpoint_mib", "control_mib")),
    ("Checkpoint: all, and control files", "files", ("checkpoint_files", "control_files")),
)
_COLOURS: Final = ("#0072B2", "#E69F00")


def draw(samples: Mapping[str, Sequence[float]], target: Path) -> None:
    """Write the plot as a PNG."""
    minutes = [second / 60 for second in samples["second"]]
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.edgecolor": PALE,
        "axes.labelcolor": INK,
        "text.color": INK,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(15, 9), layout="constrained")
        batches = int(samples["batches"][-1])
        figure.suptitle(f"{minutes[-1]:.0f} minutes, {batches:,} batches", x=0.005, ha="left", fontsize=13)
        grid = figure.subplots(4, 2, sharex=True)
        for axes, (title, unit, names) in zip(grid.T.ravel(), CHARTS, strict=True):
            for name, colour in zip(names, _COLOURS, strict=False):
                axes.plot(minutes, samples[name], color=colour, lw=1.3)
            axes.set_title(title)
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color=PALE, alpha=0.4, lw=0.6)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        for axes in grid[-1]:
            axes.set_xlabel("minutes")
        figure.savefig(target, dpi=110)
