"""The plot of `make shares`: the stacked admitted rates of the jobs in each group, against the quota."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from demos.plots import INK, PALE
from demos.shares_account import GROUPS, SharesBooks

_COLOURS = {"alpha": "#0072B2", "beta": "#E69F00", "gamma": "#009E73"}
_SMOOTHED_SECONDS = 5
_LAST_PART = 0.85
_LONGEST_BATCH_SECONDS = 30
"""The longest time over which a batch's messages are spread; after a longer pause, the job was dead."""


def draw_shares(books: SharesBooks, target: Path) -> None:
    """Write the plot as a PNG."""
    style: dict[Any, Any] = {
        "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
        "axes.edgecolor": PALE, "axes.labelcolor": INK, "text.color": INK,
    }  # fmt: skip
    began_ms, run = books.run.moments.began_ms, books.run
    last_ms = min(int(part.time_ms[-1]) for part in books.admitted.values())  # later rows are not all committed
    end = (last_ms - began_ms) / 1000
    seconds = np.arange(0, end, 1.0)
    with mpl.rc_context(style):
        figure = Figure(figsize=(13, 8), layout=ConstrainedLayoutEngine(w_pad=0.15))
        account = books.account
        figure.suptitle(
            f"Three jobs, two shared quotas: {account.utilisation_steady:.1%} used while all want more, "
            f"{account.utilisation_after_kill:.1%} a lease after a kill, Jain {account.jain:.4f}",
            x=0.005, ha="left", fontsize=13,
        )  # fmt: skip
        axes_of = figure.subplots(len(GROUPS), 1, sharex=True)
        for axes, (group, quota) in zip(axes_of, GROUPS.items(), strict=True):
            layers = [_per_second(books, job, group, seconds) for job in run.jobs]
            axes.stackplot(
                seconds, *layers, labels=run.jobs, colors=[_COLOURS[job] for job in run.jobs], alpha=0.85, lw=0
            )
            axes.axhline(quota, color=INK, ls=(0, (4, 3)), lw=1.3)
            axes.text(end, quota, " quota", va="center", ha="left", color=INK, clip_on=False)
            axes.set_title(f"{group}: {quota:,} messages a second in all", fontweight="bold")
            axes.set_ylabel(f"admitted messages / s\n(mean of {_SMOOTHED_SECONDS} s)")
            axes.set_ylim(0, 1.3 * quota)
            axes.set_xlim(0, end)
            axes.grid(axis="y", color=PALE, alpha=0.4, lw=0.6)
            for name, at_ms in run.moments.at.items():
                if name == "the end":
                    continue
                at = (at_ms - began_ms) / 1000
                axes.axvline(at, color=INK, lw=0.8, alpha=0.6)
                if axes is axes_of[0]:
                    is_last = at > _LAST_PART * end  # it would cross the edge of the plot
                    axes.annotate(
                        name, (at, 1.27 * quota), (-3 if is_last else 3, 0), textcoords="offset points",
                        va="top", ha="right" if is_last else "left", fontsize=8.5,
                    )  # fmt: skip
        axes_of[1].legend(loc="upper right", ncols=3, frameon=False)
        axes_of[-1].set_xlabel("seconds")
        figure.savefig(target, dpi=110)


def _per_second(books: SharesBooks, job: str, group: str, seconds: np.ndarray) -> np.ndarray:
    """Return a job's rate at each second; a batch's messages are spread over the time since the previous batch."""
    part = books.admitted[job, group]
    at = (part.time_ms - books.run.moments.began_ms) / 1000
    if len(at) < 2:
        return np.zeros_like(seconds)
    gap = np.diff(at, prepend=at[0] - 1)
    starts = at - np.minimum(gap, _LONGEST_BATCH_SECONDS)
    total = np.concatenate([[0.0], np.cumsum(part.messages)])
    line_x = np.concatenate([[starts[0]], np.column_stack([starts, at]).ravel()])
    line_y = np.concatenate([[0.0], np.column_stack([total[:-1], total[1:]]).ravel()])
    half = _SMOOTHED_SECONDS / 2
    after, before = (np.interp(seconds + each, line_x, line_y) for each in (half, -half))
    return np.asarray((after - before) / _SMOOTHED_SECONDS)
