"""The fluid ideal of the fair tree, slow and obvious: what each namespace would have if rows could be divided.

A batch gives out an amount of work. It is poured into the tree from above, as a loop: every node gives its children
equal parts for their weights, and starts again with what the full ones left over. Nothing is remembered but how much of
each namespace's rows the fluid has served. It is told what came, and what was given out; it knows neither rows nor
order. It counts in floating point: `EPSILON` of a 65,536th of a message is nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

Path = tuple[str, ...]
"""The names from a child of the job down to a namespace."""

EPSILON = 1e-7


def poured(wants: Mapping[Path, float], weights: Mapping[Path, int], amount: float) -> dict[Path, float]:
    """Return what each of several siblings gets of an amount, by weight, and none more than it wants."""
    got = dict.fromkeys(wants, 0.0)
    thirsty = {name for name, want in wants.items() if want > EPSILON}
    while thirsty and amount > EPSILON:
        unit = amount / sum(weights[name] for name in thirsty)
        full = {name for name in thirsty if wants[name] - got[name] <= unit * weights[name] + EPSILON}
        if not full:
            for name in thirsty:
                got[name] += unit * weights[name]
            break
        for name in full:
            amount -= wants[name] - got[name]
            got[name] = wants[name]
        thirsty -= full
    return got


@dataclass
class Fluid:
    """The fluid of one job."""

    weights: Mapping[Path, int]
    ideal: dict[Path, float] = field(default_factory=lambda: defaultdict(float))
    """What every namespace has had."""

    def serve(
        self,
        came: Mapping[Path, float],
        served: Mapping[Path, float],
        more: Mapping[Path, float],
    ) -> None:
        """Serve a batch.

        Parameters
        ----------
        came
            The work of all rows of each namespace that have come and could go as far as its own limits count.
        served
            The work of all rows of each namespace that really went, up to now.
        more
            The work that the tokens left to nodes with limits of their own would still let pass: a limit lets the fluid
            pass no more than what went, and that.
        """
        nodes: dict[Path, list[Path]] = defaultdict(list)
        for path in came:
            for depth in range(len(path)):
                if path[: depth + 1] not in nodes[path[:depth]]:
                    nodes[path[:depth]].append(path[: depth + 1])
        wants: dict[Path, float] = {}

        def want(node: Path) -> float:
            if node in came:
                wants[node] = max(0.0, came[node] - self.ideal[node])
                return wants[node]
            total = sum(want(child) for child in nodes[node])
            if node in more:
                total = min(total, max(0.0, owed(node) + more[node]))
            wants[node] = total
            return total

        def owed(node: Path) -> float:
            return sum(served[leaf] - self.ideal[leaf] for leaf in came if leaf[: len(node)] == node)

        def pour(node: Path, amount: float) -> None:
            if node in came:
                self.ideal[node] += amount
                return
            children = {child: wants[child] for child in nodes[node]}
            for child, part in poured(children, self.weights, amount).items():
                if part > 0:
                    pour(child, part)

        want(())
        pour((), min(wants[()], owed(())))
