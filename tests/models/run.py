"""Explores the models in wide bounds: ``python -m tests.models.run``; each case says how many states it has.

The last line is JSON: states and steps by case, and the promise that was broken first, or `null`. The exit status is 1
if one was.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.models.checker import explore
from tests.models.exploring import CASES, BatchBounds, LeaseBounds, explored_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore all cases, each wider than the tests do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", type=int, default=1, help="how much more of everything may happen")
    parser.add_argument("--most-states", type=int, default=5_000_000, help="states of a case; a million is some GB")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many minutes")
    parser.add_argument("--seed", type=int, help="explore the cases in an order that is drawn from it")
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    options = parser.parse_args(arguments)
    told: dict[str, Any] = {}
    broken = None
    cases = [(name, bounds) for name, (_, bounds) in CASES.items() if options.only in name]
    if options.seed is not None:
        random.Random(options.seed).shuffle(cases)
    begun = time.monotonic()
    for name, bounds in cases:
        if time.monotonic() - begun > 60 * options.minutes:
            break
        model: Any = explored_model(name, widened(bounds, options.by))
        explored = explore(model, model.begins, options.most_states)
        told[name] = {"states": explored.states, "steps": explored.steps.total(), "whole": explored.is_whole}
        sys.stdout.write(f"{name}: {explored}\n")
        sys.stdout.flush()
        broken = explored.broken
        if broken is not None:
            break
    sys.stdout.write(json.dumps({"cases": told, "left": len(cases) - len(told), "broken": broken}) + "\n")
    return int(broken is not None)


def widened(bounds: BatchBounds | LeaseBounds, by: int) -> BatchBounds | LeaseBounds:
    """Return bounds within which more may happen."""
    if isinstance(bounds, BatchBounds):
        policies = min(2, bounds.policies + by)
        return replace(
            bounds, rows=bounds.rows + by, policies=policies, batches=bounds.batches + by, starts=bounds.starts + by
        )
    reports = tuple(each + by for each in bounds.reports)
    return replace(bounds, ticks=bounds.ticks + by, reports=reports, first_reports=bounds.first_reports + by)


if __name__ == "__main__":
    sys.exit(main())
