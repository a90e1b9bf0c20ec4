"""A destination by a manual clock, and sending to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.errors import Backpressure
from spark_throttle.pace import ManualClock
from spark_throttle.spark.paced.calls import IdempotencyKey, calls_of
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.sending import BatchName, Flow, Held, Rows, Sent, parcels_of, send_flows
from tests.pace.simulated_loop import run

MS: Final = 1_000_000
SECOND: Final = 1_000 * MS
NOBODY_HELD: Final[Mapping[str, Held]] = MappingProxyType({})


class Destination:
    """Answers by a function of the time and of the key; records what it was asked, and what it took."""

    def __init__(self, answer: Callable[[float, IdempotencyKey], Backpressure | None]) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[float, str, bool]] = []
        self.taken: dict[str, list[int]] = {}
        self._answer = answer

    async def __call__(self, rows: Rows, key: IdempotencyKey) -> None:
        now = self.clock.now_ns() / SECOND
        refusal = self._answer(now, key)
        self.asked.append((now, key.namespace, refusal is None))
        await asyncio.sleep(0.01)
        if refusal is not None:
            raise refusal
        self.taken.setdefault(key.namespace, []).extend(row["id"] for row in rows)

    def send(
        self,
        rows_of: dict[str, int],
        *,
        in_order: bool = True,
        patience_seconds: float = 60,
        terms: dict[str, Terms] | None = None,
        began_ms: int = 0,
        held: Mapping[str, Held] = NOBODY_HELD,
    ) -> Sent:
        """Send 100 rows a second of each namespace; with terms, those of a tenant to the destination of its name."""
        flows = []
        for name, rows in rows_of.items():
            table, calls = pa.table({"id": range(rows)}), calls_of(np.full(rows, 10 * MS), 0, 1)
            tenant = name.partition("/")[0]
            destination = tenant if terms and tenant in terms else None
            parcels = parcels_of(name, table, calls, BatchName("q", 3, "id"))
            flows.append(Flow(name, parcels, destination, held.get(name)))
        sending = send_flows(
            flows, self, concurrency=4, in_order=in_order, patience_seconds=patience_seconds, terms=terms or {},
            clock=self.clock, began_ms=began_ms,
        )  # fmt: skip
        return run(self.clock, sending)

    def refused(self, namespace: str) -> list[float]:
        return [at for at, name, is_taken in self.asked if name == namespace and not is_taken]

    def asked_at(self, namespace: str) -> list[float]:
        return [at for at, name, _ in self.asked if name == namespace]
