"""The processing time that the rows of a life take: it is charged to the quotas on time that its policies have."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from spark_throttle.testing.simulation.query import Costs, costs_nothing
from spark_throttle.testing.simulation.rows import Row
from tests.life.policies import TENANTS

ROW_NS: Final = (0, 1_000, 1_000_000, 20_000_000, 20_000_000, 2_000_000_000)
"""What a row may take of processing time."""

CONTESTED_NS: Final = (5_000_000, 5_000_000, 10_000_000, 20_000_000, 100_000_000, 500_000_000)
_COSTLY_LIVES: Final = 0.7


def draw_costs(rng: random.Random) -> tuple[tuple[str, int], ...]:
    """Draw what a row takes, in ns by tenant; nothing for a life in which no time is measured."""
    return tuple((tenant, rng.choice(ROW_NS)) for tenant in TENANTS) if rng.random() < _COSTLY_LIVES else ()


def draw_prices(rng: random.Random) -> tuple[tuple[str, int], ...]:
    """Draw what a row takes, in ns by tenant, where tenants contest time: no more than a hundredfold apart."""
    return tuple((tenant, rng.choice(CONTESTED_NS)) for tenant in TENANTS)


def costs(row_ns: Sequence[tuple[str, int]]) -> Costs:
    """Return the cost of rows that take so long each, in ns by tenant."""
    if not row_ns:
        return costs_nothing
    of_tenant = dict(row_ns)

    def cost_ns(rows: Sequence[Row]) -> Mapping[str, int]:
        spent: dict[str, int] = defaultdict(int)
        for row in rows:
            name = row.namespace if isinstance(row.namespace, str) else ""
            spent[name] += of_tenant.get(name.partition("/")[0], 0)
        return {name: each_ns for name, each_ns in spent.items() if each_ns}

    return cost_ns
