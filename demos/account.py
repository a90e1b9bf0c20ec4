"""The final account of a run of the demonstration: every number from the tables, none from the program's counters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from demos.fairness import Fairness, measure_fairness
from demos.recount import (
    Flows,
    check_conservation,
    count_over_limit,
    count_tokens,
    largest_messages,
    offered_tokens,
    scope_limits,
)
from demos.tables import Batch, as_offered, read_batches, read_paying_times_ms, read_rows
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.load.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Account:
    """The numbers of offered rows, by outcome.

    Examples
    --------
    >>> Account(10, 7, 2, 1, 0, 0, 0, 1.0123456).to_json()
    '{"offered":10,"admitted":7,"rejected":2,"queued":1,"lost":0,"doubled":0,"over_limit":0,"fairness_ratio":1.0123}'
    """

    offered: int
    admitted: int
    rejected: int
    queued: int
    lost: int
    doubled: int
    over_limit: int
    """Number of windows of batches, over all scopes and both dimensions, that exceeded their limit."""

    fairness_ratio: float | None
    """Most weighted service over least; `None` if no namespace of the overloaded group always had rows waiting."""

    @property
    def keeps_the_laws(self) -> bool:
        """Whether no row was lost or duplicated and no limit was exceeded."""
        return (self.lost, self.doubled, self.over_limit) == (0, 0, 0)

    def to_json(self) -> str:
        """Return the account as one line of JSON."""
        ratio = None if self.fairness_ratio is None else round(self.fairness_ratio, 4)
        return json.dumps(asdict(self) | {"fairness_ratio": ratio}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Run:
    """The locations of a run's tables, and its parameters."""

    checkpoint: Path
    admitted: Path
    rejected: Path
    traffic: Traffic
    policy: CompiledPolicy
    overloaded: str
    """The resource group whose fairness is measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Books:
    """The account and the data behind it."""

    account: Account
    batches: Sequence[Batch]
    flows: Flows
    fairness: Fairness


def take_account(run: Run, queued: pa.Table) -> Books:
    """Recount a finished run; `queued` holds the rows still in the checkpoint's state."""
    batches = read_batches(run.checkpoint)
    namespaces = run.traffic.namespaces()
    admitted, rejected = read_rows(run.admitted, batches), read_rows(run.rejected, batches)
    waiting = as_offered(queued)
    offered = batches[-1].end_row if batches else 0
    conservation = check_conservation(run.traffic, offered, [admitted.rows, rejected.rows, waiting])
    flows = Flows(
        namespaces=namespaces,
        offered=offered_tokens(run.traffic, batches),
        admitted=count_tokens(admitted, namespaces, len(batches)),
        rejected=count_tokens(rejected, namespaces, len(batches)),
    )
    limits, times_ms = scope_limits(run.policy, namespaces), read_paying_times_ms(run.checkpoint)
    paid = [replace(batch, time_ms=times_ms[batch.batch_id]) for batch in batches]
    fairness = measure_fairness(run.policy, run.overloaded, flows)
    account = Account(
        offered=offered,
        admitted=len(admitted),
        rejected=len(rejected),
        queued=waiting.num_rows,
        lost=conservation.lost,
        doubled=conservation.doubled,
        over_limit=count_over_limit(flows.admitted, paid, limits, largest_messages(admitted, namespaces)),
        fairness_ratio=fairness.ratio,
    )
    return Books(account, batches, flows, fairness)
