"""The demonstration's plot: each group's admitted rate against its quota, and one group's shares by namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from demos.account import Books
from demos.fairness import Float64s
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import CompiledPolicy, Int64s

# Okabe and Ito's palette, which colour-blind readers can distinguish.
COLOURS = {"gold": "#E69F00", "silver": "#0072B2", "bronze": "#D55E00", "free": "#009E73"}
OTHER_COLOURS = ("#CC79A7", "#56B4E9", "#F0E442", "#000000")
INK, PALE = "#222222", "#BBBBBB"


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """The data of the plot."""

    policy: CompiledPolicy
    books: Books
    groups: Sequence[str]
    """Groups, from the top of the plot to its bottom."""

    overloaded: str


def draw(story: Story, target: Path) -> None:
    """Write the plot as a PNG."""
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.edgecolor": PALE,
        "axes.labelcolor": INK,
        "text.color": INK,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(15, 8.5), layout="constrained")
        grid = GridSpec(len(story.groups), 2, figure=figure, width_ratios=(1.15, 1))
        account = story.books.account
        figure.suptitle(
            f"{account.offered:,} messages offered: {account.admitted:,} admitted, {account.rejected:,} rejected, "
            f"{account.queued:,} still queued, {account.lost:,} lost, {account.doubled:,} doubled",
            x=0.005,
            ha="left",
            fontsize=13,
        )
        _draw_groups(story, figure, grid)
        _draw_shares(story, figure.add_subplot(grid[:, 1]))
        figure.savefig(target, dpi=110)


def _draw_groups(story: Story, figure: Figure, grid: GridSpec) -> None:
    seconds, per_second = rates(story)
    group_of = match(story.books.flows.namespaces, story.policy).group
    names = story.policy.group_names.to_pylist()
    first = None
    for row, group in enumerate(story.groups):
        members = group_of == names.index(group)
        quota = _quota(story.policy, names.index(group))
        axes = first = figure.add_subplot(grid[row, 0], sharex=first)
        offered = per_second(story.books.flows.offered[:, members, 0].sum(axis=1))
        admitted = per_second(story.books.flows.admitted[:, members, 0].sum(axis=1))
        colour = _colour(group, row)
        axes.stairs(offered, seconds, fill=True, color=PALE, alpha=0.45, label="offered", lw=0)
        axes.stairs(admitted, seconds, color=colour, lw=2, label="admitted", baseline=None)
        if quota is not None:
            axes.axhline(quota, color=INK, ls=(0, (4, 3)), lw=1.2, label="quota")
            axes.set_title(f"{group}: quota {quota:,.0f} messages a second", fontweight="bold")
        axes.set_ylim(0, 1.25 * max(quota or 0.0, _usual_height(offered), _usual_height(admitted)) or 1)
        axes.set_xlim(0, seconds[-1] or 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y", color=PALE, alpha=0.4, lw=0.6)
        axes.set_ylabel("messages / s")
        axes.tick_params(labelbottom=row == len(story.groups) - 1, color=PALE)
        if row == 0:
            axes.legend(loc="upper right", ncols=3, frameon=False, borderaxespad=0, bbox_to_anchor=(1, 1.25))
    if first is not None:
        first.set_xlabel("seconds since the load began")


def _draw_shares(story: Story, axes: Axes) -> None:
    fairness = story.books.fairness
    colour = _colour(story.overloaded, 0)
    order = np.lexsort((fairness.members, fairness.weight))
    weight = fairness.weight[order]
    places = np.arange(len(order))
    fair = 100 * weight / max(weight.sum(), 1)
    got = 100 * fairness.service[order] / max(fairness.service.sum(), 1e-12)
    asked = 100 * fairness.offered[order] / max(fairness.offered.sum(), 1e-12)
    axes.bar(places, got, width=0.75, color=colour, alpha=0.85, label="share of what was admitted")
    axes.stairs(fair, np.arange(len(order) + 1) - 0.5, color=INK, lw=1.6, baseline=None, label="fair share by weight")
    axes.plot(
        places, asked, ls="none", marker="o", ms=4, mfc="white", mec=INK, mew=0.9, label="share of what was offered"
    )
    top = 1.3 * max(fair.max(initial=0), got.max(initial=0), asked.max(initial=0))
    axes.set_ylim(0, top or 1)
    axes.set_xlim(-0.6, len(order) - 0.4)
    for each in np.unique(weight):
        middle = places[weight == each].mean()
        axes.text(middle, 0.93 * top, f"weight {each}", ha="center", color=INK)
        if each != weight[0]:
            axes.axvline(places[weight == each][0] - 0.5, color=PALE, lw=0.8)
    ratio = "" if fairness.ratio is None else f"\nmost to least served, weight for weight: {fairness.ratio:.3f}"
    axes.set_title(f"{story.overloaded} while overloaded: the share of each namespace{ratio}", fontweight="bold")
    axes.set_xticks([])
    axes.set_xlabel(f"the {len(order)} namespaces of {story.overloaded}, by weight, the busiest of each weight first")
    axes.set_ylabel("% of the group")
    axes.grid(axis="y", color=PALE, alpha=0.4, lw=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper right", facecolor="white", edgecolor="none", framealpha=1, bbox_to_anchor=(1, 0.91))


def rates(story: Story) -> tuple[Float64s, Callable[[Int64s], Float64s]]:
    """Return the edges between batches, in seconds since the first was done, and a function from counts to rates.

    A batch contains the rows that arrived since the previous one, and spends the tokens earned since then.
    """
    times = np.array([batch.time_ms for batch in story.books.batches], dtype=np.int64)
    # A run that was stopped before its second batch has nothing to show, but is drawn all the same.
    edges: Float64s = (times[1:] - times[1]) / 1000 if len(times) > 1 else np.zeros(1)

    def per_second(counts: Int64s) -> Float64s:
        return np.asarray(counts[2:] / np.maximum(np.diff(edges), 1e-3), dtype=np.float64)

    return edges, per_second


def _usual_height(rate: Float64s) -> float:
    """Return a value that all but the highest peaks stay below."""
    return float(np.percentile(rate, 90)) if len(rate) else 0.0


def _quota(policy: CompiledPolicy, group: int) -> float | None:
    rate = int(policy.shared.rate_micro_per_ms[1 + len(policy.tenant_names) + group, 0])
    return None if rate < 0 else rate / 1000


def _colour(group: str, position: int) -> str:
    return COLOURS.get(group, OTHER_COLOURS[position % len(OTHER_COLOURS)])
