"""The mends that the lives guard, and how each of them is taken back (`taken_back`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mend:
    """A mend, and how to take it back."""

    name: str
    says: str
    """What is wrong without it."""

    changes: tuple[tuple[str, str, str], ...]
    """The file below `spark_throttle`, what stands there, and what stands there without the mend."""


MENDS: Final = (
    Mend(
        "floors of the quota as it stands",
        "a quota that falls is held by the floor that a silent job had of the old one",
        (("sharing/division.py", "np.minimum(self.rows.floor_rate(), most)", "self.rows.floor_rate()"),),
    ),
    Mend(
        "rows that wait for a lease",
        "a row is rejected for a quota of which its job has no share yet",
        (
            (
                "core/batch/rows_behind.py",
                "        rejects &= ~np.append(plan.shared.is_unleased(batch.policy), False)[stops.scope]\n",
                "",
            ),
        ),
    ),
    Mend(
        "leads of leaves",
        "a namespace that was ahead is served as if it had not been",
        (
            (
                "core/fair/contenders.py",
                "lead_work[self.flow, 0] = np.where(is_alone, tenant_lead[node], lead)",
                "lead_work[self.flow, 0] = 0",
            ),
        ),
    ),
    Mend(
        "own limits at a restart",
        "a restart of a job that shares loses the time for its own limits too",
        (
            (
                "control/plane.py",
                "np.where(is_shared(before), leased_until_ms, NEVER_MS)",
                "np.full_like(is_shared(before), leased_until_ms, dtype=np.int64)",
            ),
        ),
    ),
    Mend(
        "leads of another measure",
        "a lead of bytes is kept as one of messages",
        (
            (
                "core/policy_change.py",
                "carried_work(flows.lead_work, np.stack([among_siblings, kept_by_flow], axis=1))",
                "flows.lead_work",
            ),
        ),
    ),
    Mend(
        "leads that a large row left",
        "who sends a small row behind each large one pays for none of them",
        (
            ("core/batch/flow_plan.py", "if new_weights:", "if contenders:"),
            ("core/batch/flow_plan.py", "(eligible[contenders.flow], new_weights)", "(eligible[contenders.flow], -1)"),
            ("core/fair/promises.py", "level.largest(np.maximum(row, ahead))", "level.largest(row)"),
        ),
    ),
    Mend(
        "leads of a node whose own entry changes",
        "a tenant changes its own entry behind each large row, and pays for none of them",
        (("core/policy_change.py", "np.stack([beside, ways.kept(old, new)], axis=1)", "ways.kept(old, new)[:, None]"),),
    ),
    Mend(
        "leads as another batch counted them",
        "who is behind when a message is half of the job's bytes has all that there is when only messages are short",
        (
            (
                "core/fair/contenders.py",
                "counted = below.take(tree.levels[0].parent).counted(lead), beside.counted(tenant_lead), child_lead",
                "counted = kept.leads",
            ),
            (
                "core/fair/contenders.py",
                "lead, tenant_lead = below.take(node).to_keep(lead), beside.to_keep(tenant_lead)",
                "",
            ),
        ),
    ),
    Mend(
        "leads where bytes count otherwise",
        "a namespace that was behind begins with the tie whenever a rate changes",
        (
            (
                "core/policy_change.py",
                "np.where(is_less, quotient(np.where(is_less, becomes, 0), was, FACTOR_BITS), WHOLE)",
                "np.where(becomes != was, 0, WHOLE)",
            ),
        ),
    ),
    Mend(
        "starts full",
        "a namespace that is remembered starts its first limit empty",
        (
            (
                "core/policy_change.py",
                "return np.where(before.is_limited & after.is_limited, kept, begins)",
                "return kept",
            ),
        ),
    ),
    Mend(
        "debt of a dry run",
        "a scope that observed owes all that passed",
        (
            (
                "core/policy_change.py",
                "np.where(is_observing, -after.burst_micro, MIN_BALANCE_MICRO)",
                "MIN_BALANCE_MICRO",
            ),
            (
                "core/limits/token_bucket.py",
                "return np.minimum(debit(balance_micro, unmarked_micro), np.minimum(-burst_micro, -1))",
                "return np.full_like(balance_micro, MIN_BALANCE_MICRO)",
            ),
        ),
    ),
    Mend(
        "paying clock",
        "a jump of the wall clock pays",
        (
            (
                "control/clock.py",
                "        passed_ms = steady_ms - before.steady_ms\n",
                "        passed_ms = max(0, wall_ms - before.wall_ms)\n",
            ),
        ),
    ),
    Mend(
        "jump before a batch",
        "a jump between an epoch and the batch's timestamp pays in full",
        (("core/limits/token_bucket.py", "(min(since_ms, MOST_LAG_MS) if is_new else since_ms)", "since_ms"),),
    ),
    Mend(
        "identity of a batch",
        "a sink takes a batch for another one of the same number",
        (
            (
                "checkpoint/batch_mark.py",
                "        if newest_batch > self.batch:",
                "        if newest_batch > sys.maxsize:",
            ),
            (
                "checkpoint/batch_mark.py",
                "elif newest_batch == self.batch and identity and",
                "elif newest_batch < 0 and",
            ),
            ("checkpoint/batch_mark.py", "import json\n", "import json\nimport sys\n"),
        ),
    ),
    Mend(
        "largest message",
        "a message that is larger than a scope lets pass is taken in",
        (
            (
                "core/limits/size_bounds.py",
                "np.flatnonzero(amount > bounds.min(axis=1)[flow])",
                "np.flatnonzero(amount > most)",
            ),
        ),
    ),
    Mend(
        "room of the others",
        "who fills the queue first keeps all of its room",
        (
            (
                "core/batch/queue_bounds.py",
                "    return room.beyond(waiting, candidates, names, now_ms=now_ms)",
                "    return np.arange(max(rows.queued, room.messages), len(rows))",
            ),
        ),
    ),
    Mend(
        "run fence",
        "a run goes on in a control directory that another has taken over",
        (("control/run_fence.py", "if found is not None and found != self.run.encode():", "if False:"),),
    ),
    Mend(
        "refused before it begins",
        "a query that is refused at its start ends the run whose control directory it was given",
        (
            (
                "control/plane.py",
                "            refuse_past(self._directory)\n            self.epochs.begin()\n",
                "            self.epochs.begin()\n            refuse_past(self._directory)\n",
            ),
        ),
    ),
    Mend(
        "reports of another run",
        "a run that was taken over deletes what the other has reported",
        (
            (
                "control/reports.py",
                "                    self._check_fence()\n                    forget_undone(",
                "                    forget_undone(",
            ),
        ),
    ),
    Mend(
        "reports of another history",
        "a checkpoint that took two ways takes the reports of one for those of the other",
        (
            (
                "checkpoint/batch_records.py",
                "if batch_of(name) <= newest and (logged_ms(",
                "if batch_of(name) <= newest or (logged_ms(",
            ),
        ),
    ),
    Mend(
        "prices of messages",
        "a scope that is short of time is divided by messages, so dear rows take more of it",
        (
            (
                "core/fair/work.py",
                "work_of_time(price_ns[flow], others[-1])",
                "np.where(others[-1] > 0, MESSAGE, 0)",
            ),
        ),
    ),
    Mend(
        "corrected time",
        "what was measured is not charged, so that the estimate stands",
        (
            (
                "core/policy_change.py",
                "        state = corrected(state, row.measured, before)\n",
                "        corrected(state, row.measured, before)\n",
            ),
        ),
    ),
    Mend(
        "other runs of one job",
        "a copy of a job takes what the job has for its own",
        (
            (
                "sharing/sharing.py",
                "    def _meet(self, mark: Mark, now_ms: int, *, is_there: bool) -> None:\n",
                "    def _meet(self, mark: Mark, now_ms: int, *, is_there: bool) -> None:\n        return\n",
            ),
        ),
    ),
    Mend(
        "what a tenant is guaranteed",
        "a namespace owes what went by its tenant's guarantee, and loses its own",
        (
            (
                "core/fair/guarantees.py",
                "for of in claims.of_leaf[height:]:",
                "for of in claims.of_leaf:",
            ),
        ),
    ),
    Mend(
        "bursts that were cut",
        "a burst is had again after a smaller one was in force for a moment",
        (
            (
                "core/batch/account.py",
                "(after.balance_micro < full_micro) | (after.cut_micro > 0)",
                "after.balance_micro < full_micro",
            ),
        ),
    ),
)
