"""The room of the queue, and which rows are beyond it: those at the ends of the longest queues."""

from __future__ import annotations

from collections.abc import Sequence

from spark_throttle.core.quota import QueueBounds
from tests.oracle.reference_flow import Flow, Row
from tests.oracle.reference_rules import COUNTED


def queue_bounds(bounds: QueueBounds) -> list[int]:
    """Return the messages and bytes that the queue may hold."""
    return [max(1, bound) for bound in (bounds.messages, bounds.bytes)]


def rows_beyond(room: Sequence[int], queues: Sequence[tuple[Flow, Sequence[Row]]], now_ms: int) -> list[Row]:
    """Return the rows of these queues, each of one flow, that do not fit in a room of messages and bytes."""
    entries = []
    for flow, rows in queues:
        in_flow = [0, 0]
        for position, row in enumerate(rows):
            in_flow = [in_flow[d] + row.tokens[d] for d in COUNTED]
            share = max(part_of(in_flow[d], room[d]) for d in COUNTED)
            entries.append((share, position, flow.tie(now_ms), row))
    taken = [0, 0]
    beyond: list[Row] = []
    for *_, row in sorted(entries, key=lambda entry: entry[:3]):
        taken = [taken[d] + row.tokens[d] for d in COUNTED]
        if beyond or any(taken[d] > room[d] for d in COUNTED):
            beyond.append(row)
    return beyond


def part_of(amount: int, bound: int) -> int:
    """Return the part of a bound in 2**-30ths, rounded up; just over the whole if `amount` exceeds the bound."""
    return (1 << 30) + 1 if amount > bound else -(-(amount << 30) // max(1, bound))
