"""What a run of the crash program left behind, recounted from input and output tables, offsets and epochs alone.

``python -m tests.crash.account DIRECTORY`` takes the account of a run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from tests.audit.auditor import Audit, audit
from tests.audit.books import Batch as AuditedBatch
from tests.audit.books import Row
from tests.crash.destination import ADDRESS, PUSHES_BACK
from tests.crash.history import Batch, came_in, contracts_of, read_batches, read_policies
from tests.crash.sightings import read_sightings
from tests.crash.tables import (
    ATTEMPT,
    MISSING,
    NO_SIZE,
    charged_units,
    cost_of,
    is_partitioned,
    read_decided,
    read_offered,
)
from tests.crash.topic import ADMITTED_RECORDS
from tests.crash.workload import COLUMNS, UNWRITABLE
from tests.crash.zones import know_zones
from tests.ledger import BATCH, count_out_of_order
from tests.life.contract import Contracts, fault_of
from tests.models.batches import Batches
from tests.models.checker import NotAllowedError
from tests.models.seen_batches import SeenHistory

_MOST_SHOWN: Final = 20
FAULTS: Final = (
    "lost",
    "doubled",
    "over_limit",
    "out_of_order",
    "wrong_reason",
    "idle",
    "starved",
    "unfair",
    "not_allowed",
    "unsettled",
    "over_budget",
    "unguaranteed",
)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was done to the job."""

    kills: int
    put_back: int = 0
    """How often a checkpoint was put back."""

    refused: int = 0
    """How often a start was refused then, with a remedy that was followed."""


@dataclass(frozen=True, slots=True)
class Account:
    """The last line of the program."""

    kills: int
    put_back: int
    refused: int
    revisions: int
    """Policies that were in force in some batch."""

    batches: int
    offered: int
    admitted: int
    rejected: int
    lost: int
    """The number of offered rows that no table holds as they were offered."""

    doubled: int
    """Rows beyond the one that each offered row may have."""

    again: int
    """Rows that another attempt at their batch had written before, in a sink that takes them at least once."""

    over_limit: int | None
    """Quotas that were passed in some window.

    Here and below, `None` says that it was not checked: the sink does not say in which batch a row came, or, for
    idleness, starvation and fairness, rates followed what destinations said.
    """

    out_of_order: int
    wrong_reason: int
    """Rows that were admitted and are unusable, or rejected for a reason that they do not have."""

    idle: int | None
    """Namespaces that waited while all that could hold them had tokens, a time that one revision was in force."""

    starved: int | None
    """Namespaces that got nothing for longer than their contract justifies, a time that one revision was in force."""

    unfair: int | None
    """Tenants and namespaces that were too far behind their ideal share, a time that one revision was in force."""

    compared: int | None
    """Tenants and namespaces that were compared with their ideal share, in each batch."""

    unfair_messages: float | None
    """How far one was behind it at most, in messages of the largest size."""

    not_allowed: int | None
    """Whether the model of batches forbids a step of what was seen of the job; `None` where it was not looked at."""

    unsettled: int | None
    """Units by which what was charged differs from what the admitted rows really cost; `None` without late costs."""

    over_budget: int | None
    """Batches that exceeded a budget in its window by a message or more; `None` too if no policy has one."""

    windows_ended: int | None
    """Hours and days that ended while a budget of them was in force."""

    budgets_spent: int | None
    """Budgets of which nothing was left, counted in each of their windows."""

    budgeted_rows: int | None
    """Rows that were counted in budgets that hold rows back, once for each."""

    unguaranteed: int | None
    """Scopes that had less than they are guaranteed, a time that one revision was in force; `None` if none is."""

    guaranteed: int | None
    """Scopes that were compared with what they are guaranteed, in each batch."""

    model_steps: int | None
    model_actions: str | None
    """How many of the model's actions the job's steps reached."""

    @property
    def keeps_the_laws(self) -> bool:
        return not any(getattr(self, name) for name in FAULTS)

    @property
    def verdict(self) -> str:
        """One sentence for people: what was broken, and what the run could not show."""
        broken = [f"{name} {getattr(self, name)}" for name in FAULTS if getattr(self, name)]
        said = "broken: " + ", ".join(broken) if broken else "no law was broken"
        unasked = ("not_allowed", "unsettled", "over_budget", "unguaranteed")
        unchecked = [name for name in FAULTS if getattr(self, name) is None and name not in unasked]
        if unchecked:
            why = "the sink does not say in which batch a row came"
            if self.over_limit is not None:
                why = "rates followed what the destination said"
            return f"{said}; not checked: {', '.join(unchecked)} ({why})"
        if not broken and self.compared == 0:
            return f"{said}; fairness was not tried: nobody waited who could be compared"
        return said

    def to_json(self, **run: str | int) -> str:
        """Return the line, with what tells the run before its numbers."""
        return json.dumps(run | asdict(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run left behind."""

    offered: pd.DataFrame
    admitted: pd.DataFrame
    rejected: pd.DataFrame
    batches: list[Batch]
    contracts: Mapping[str, Contracts]
    is_partitioned: bool
    has_order: bool = True
    """Whether the sink is given the rows of a namespace in their order within a batch too."""

    attempts: int = 0
    """How often the rows of a namespace in a topic begin again, at most."""

    is_pushed_back: bool = False
    """Whether rates followed what destinations said, of which the contracts know nothing."""

    sightings: Sequence[Mapping[str, Any]] = ()
    """What was seen of the job between its runs."""

    charged_units: int | None = None
    """What the job's usage says was charged in units; `None` where rows have none."""

    @classmethod
    def read(cls, root: Path) -> Evidence:
        """Read the directory of a run."""
        know_zones(root)
        policies = read_policies(root)
        batches = read_batches(root, policies)
        admitted, rejected = read_decided(root)
        return cls(
            read_offered(root),
            admitted,
            rejected,
            batches,
            contracts_of(policies),
            is_partitioned(root),
            has_order=_has_order(root),
            attempts=int(admitted[ATTEMPT].max()) if (root / ADMITTED_RECORDS).exists() and len(admitted) else 0,
            is_pushed_back=(root / ADDRESS).exists() or (root / PUSHES_BACK).exists(),
            sightings=read_sightings(root),
            charged_units=charged_units(root),
        )


def _has_order(root: Path) -> bool:
    """Tell a function, a receiver and a stream of Spark's from tables and files, which have none within a batch."""
    if (root / "checkpoint" / "throttle" / "extents").exists():
        return (root / ADDRESS).exists()  # a function is given rows in no order then
    is_stream = (root / "decided").exists() or (root / ADMITTED_RECORDS).exists()
    return is_stream or any((root / "admitted").glob("batch=*"))


def take_account(evidence: Evidence, happened: RunFacts) -> Account:
    """Recount a run, and say on standard error what breaks a law."""
    offered, admitted, rejected = evidence.offered, once(evidence.admitted), evidence.rejected
    found = pd.concat([admitted[COLUMNS], rejected[COLUMNS]])
    matches = found.merge(offered[COLUMNS].assign(is_offered=True), on=COLUMNS, how="left")["is_offered"].notna()
    distinct = found.reset_index(drop=True)[matches.to_numpy()]["id"].nunique()
    wrong = list(wrong_reasons(evidence))
    says_batch = bool((admitted[BATCH] >= 0).all())
    says_turns = says_batch and not evidence.is_pushed_back
    counted = audit(audited(evidence)) if says_batch else Audit()
    history, forbidden = SeenHistory(evidence.sightings), list[str]()
    try:
        history.replay()
    except NotAllowedError as error:
        forbidden = [str(error)]
    laws = ("L2", "L3", "L4", "L9", "age", "budget") if says_turns else ("L2", "budget")
    has_guarantees = says_turns and any(each.has_guarantees for each in evidence.contracts.values())
    has_budgets = says_batch and any(batch.windows for batch in evidence.batches)
    for what in islice((*forbidden, *wrong, *(each for each in counted.findings if each.law in laws)), _MOST_SHOWN):
        print(what, file=sys.stderr)  # noqa: T201 - a program's findings
    return Account(
        kills=happened.kills,
        put_back=happened.put_back,
        refused=happened.refused,
        revisions=len({batch.revision for batch in evidence.batches}),
        batches=len(evidence.batches),
        offered=len(offered),
        admitted=len(admitted),
        rejected=len(rejected),
        lost=len(offered) - distinct,
        # Each attempt after the first follows a kill.
        doubled=len(found) - distinct + max(0, evidence.attempts - happened.kills),
        again=len(evidence.admitted) - len(admitted),
        over_limit=counted.count("L2") if says_batch else None,
        out_of_order=count_out_of_order(
            admitted.sort_values(BATCH if evidence.has_order else [BATCH, "id"], kind="stable"),
            key="namespace",
            by="id",
        ),
        wrong_reason=len(wrong),
        idle=counted.count("L4") if says_turns else None,
        starved=counted.count("age") if says_turns else None,
        unfair=counted.count("L3") if says_turns else None,
        compared=counted.compared if says_turns else None,
        unfair_messages=round(counted.furthest, 3) if says_turns else None,
        not_allowed=len(forbidden) if evidence.sightings else None,
        unsettled=None
        if evidence.charged_units is None
        else abs(evidence.charged_units - int(cost_of(admitted["id"]).sum())),
        over_budget=counted.count("budget") if has_budgets else None,
        windows_ended=len(counted.promised.ended) if has_budgets else None,
        budgets_spent=len(counted.promised.spent) if has_budgets else None,
        budgeted_rows=counted.promised.rows if has_budgets else None,
        unguaranteed=counted.count("L9") if has_guarantees else None,
        guaranteed=counted.promised.compared if has_guarantees else None,
        model_steps=len(history.steps) if evidence.sightings else None,
        model_actions=f"{len(history.reached)} of {len(Batches.actions)}" if evidence.sightings else None,
    )


def audited(evidence: Evidence) -> list[AuditedBatch]:
    """Return the batches as an auditor is shown them."""
    offered = evidence.offered
    came = came_in(evidence.batches, offered)
    arrived = _by_batch(offered, came)
    admitted, rejected = (_by_batch(each, each[BATCH].to_numpy()) for each in (evidence.admitted, evidence.rejected))
    over = evidence.rejected["id"][evidence.rejected["reason"] == "quota"]
    over_quota = frozenset(over.tolist())
    names = [*offered["namespace"].unique()]
    held = {
        revision: frozenset(name for name in names if contracts.of(name).is_budgeted)
        for revision, contracts in evidence.contracts.items()
    }
    return [
        AuditedBatch(
            each.number, each.paid_ms, evidence.contracts[each.revision],
            arrived.get(at, ()), admitted.get(each.number, ()), rejected.get(each.number, ()),
            over_quota, shares=each.shares, held=held[each.revision], windows=each.windows,
        )
        for at, each in enumerate(evidence.batches)
    ]  # fmt: skip


def _by_batch(frame: pd.DataFrame, batches: npt.NDArray[np.int64]) -> dict[int, list[Row]]:
    """Return the rows of a table by batch, in their order."""
    rows: dict[int, list[Row]] = {}
    for batch, *row in zip(
        batches.tolist(), *(frame[name].tolist() for name in ("id", "namespace", "size")), strict=True
    ):
        rows.setdefault(batch, []).append(Row(*row))
    return rows


def once(admitted: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a sink without those that another attempt at their batch had written before.

    What one attempt wrote twice stays. A sink that says in which batch a row came has what one attempt wrote.
    """
    if (admitted[BATCH] >= 0).all():
        return admitted
    return admitted[admitted[ATTEMPT] == admitted.groupby("id", sort=False)[ATTEMPT].transform("first")]


def wrong_reasons(evidence: Evidence) -> Iterator[str]:
    """Yield rows that were taken and are unusable, and such as were rejected for a reason that is not theirs."""
    unwritable = UNWRITABLE.decode()

    def fault(namespace: str, size: int, part: str) -> str | None:
        name, size_bytes = (None if namespace == MISSING else namespace), (None if size == NO_SIZE else size)
        found = fault_of(name, size_bytes)
        return found or ("partition_unwritable" if evidence.is_partitioned and part == unwritable else None)

    admitted, rejected = evidence.admitted, evidence.rejected
    for row in zip(admitted["id"], admitted["namespace"], admitted["size"], admitted["part"], strict=True):
        if (reason := fault(*row[1:])) is not None:
            yield f"row {row[0]} was admitted, and is {reason}"
    at = {batch.number: evidence.contracts[batch.revision] for batch in evidence.batches}
    columns = ("id", "namespace", "size", "part", "reason", "scope", BATCH)
    for id_, name, size, part, reason, scope, batch in zip(*(rejected[column] for column in columns), strict=True):
        expected = fault(name, size, part)
        if expected is not None:
            is_right = reason == expected
        elif reason == "quota":
            # A row that waited for another's quota, or a queue, is not rejected for it.
            scopes = at[batch].of(name).scopes
            is_right = any(one.on_excess == "reject" and scope == (one.key[1] or "job") for one in scopes)
        else:
            is_right = reason == "queue_full"
        if not is_right:
            yield f"row {id_} of {name} was rejected in batch {batch} as {reason} of {scope}; it is {expected}"


def main() -> int:
    """Take the account of a directory again; what was done to the job is not known any more."""
    account = take_account(Evidence.read(Path(sys.argv[1])), RunFacts(0))
    print(account.verdict, file=sys.stderr)  # noqa: T201 - for people
    print(account.to_json())  # noqa: T201 - the result
    return 0 if account.keeps_the_laws else 1


if __name__ == "__main__":
    sys.exit(main())
