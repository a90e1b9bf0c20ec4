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


_FORGETS: Final = "        self._settling.put_away(before_batch=epoch.settled_batch)\n"

MENDS: Final = (
    Mend(
        "shard accounts",
        "what a shard took beyond its due is held against nobody",
        (
            (
                "core/lending/advances.py",
                "return np.where(counts, np.clip(ahead, -most, most), 0)",
                "return np.zeros_like(ahead)",
            ),
        ),
    ),
    Mend(
        "debts of those ahead",
        "what one namespace overdrew is owed by all of its shard",
        (
            (
                "core/lending/debts.py",
                (
                    "        if not lag.any():\n            return ahead * counts, counts\n"
                    "        return (ahead - lag[self.seat] * self.weight) * counts, counts"
                ),
                "        return (account // sums(self.seat, self.weight, seats))[self.seat] * self.weight, counts",
            ),
        ),
    ),
    Mend(
        "credits of mates",
        "who came anew takes what its shard was lent for its mates",
        (("core/lending/debts.py", "np.minimum(set_back, most_set_back)", "np.zeros_like(set_back)"),),
    ),
    Mend(
        "floors of the quota as it stands",
        "a quota that falls is held by the floor that a silent job had of the old one",
        (("sharing/division.py", "np.minimum(self.rows.floor_rate(), most)", "self.rows.floor_rate()"),),
    ),
    Mend(
        "rows that wait for a lease",
        "a row is rejected for a quota of which its job has no share yet",
        (("core/batch/deferral.py", "is_unleased[:, None] | ~policy", "~policy"),),
    ),
    Mend(
        "rows that wait for their verdict",
        "a row is rejected in its shard, and the tokens are lent to other shards",
        (("core/batch/deferral.py", "tokens = tokens + -(-deferral.room_micro // MICRO)", "tokens = tokens + 0"),),
    ),
    Mend(
        "left to others",
        "a namespace that is ahead takes what its shard is lent for another",
        (
            ("core/batch/flow_plan.py", "if bound_milli is not None and", "if grants is None and"),
            (
                "core/batch/flow_plan.py",
                "order = order or order_of(grants.is_loose)",
                "order = order or order_of()",
            ),
        ),
    ),
    Mend(
        "carried debts",
        "a change of policy forgets who overdrew",
        (("core/lending/advances.py", "advance_micro[:, old], carried_micro)", "advance_micro[:, old], 0)"),),
    ),
    Mend(
        "parts of a token of a shard",
        "a change of policy forgets what rounding withheld, so a shard that is due less than a message gets none",
        (
            (
                "core/lending/advances.py",
                "carried_micro -= np.minimum(behind_micro, MICRO)",
                "carried_micro -= 0",
            ),
        ),
    ),
    Mend(
        "one order of all groups",
        "groups in one shard have no common order under the job's limit",
        (
            (
                "core/fair/fair_order.py",
                "contended = self._competed_for(holding)",
                "contended = np.where(self.domain[:, None] == self.enforcing, self.enforcing, -1)",
            ),
        ),
    ),
    Mend(
        "one time of all groups",
        "a group of a large rate goes before one of a small rate under the job's limit",
        (
            (
                "core/fair/fair_order.py",
                "common = _in_common_time(shared.rate_micro_per_ms)",
                "common = shared.rate_micro_per_ms",
            ),
        ),
    ),
    Mend(
        "next of all namespaces",
        "where nothing is lent, a shard of many namespaces waits for its turn like one of a single namespace",
        (("core/lending/grants.py", "account_micro, next_ahead))", "account_micro))"),),
    ),
    Mend(
        "debts in time",
        "a namespace ahead in one resource is left out before one that is further ahead in the other",
        (
            (
                "core/lending/repaying_fill.py",
                "owed.time[at] > self.stock.time.of(rows_of(filled, at), scope) + lost[scope]",
                "by_row(np.logical_or, rows_of(owed.tokens, at) > rows_of(filled, at))",
            ),
        ),
    ),
    Mend(
        "set back in time",
        "where a group limits both resources, small messages owe the bytes for which others are set back",
        (("core/lending/debts_in_time.py", "set_back[once(scope)] * weight)", "set_back[once(scope)] * weight * 0)"),),
    ),
    Mend(
        "accounts in time",
        "where a group limits both resources, a shard that is behind in both is left out for good",
        (
            (
                "core/lending/level_parts.py",
                "is_timed = is_both[once(self.scope)]",
                "is_timed = is_both[once(self.scope)] & False",
            ),
        ),
    ),
    Mend(
        "bytes with a message",
        "a shard is lent bytes without a message, cannot use them, and loses what it was due",
        (
            (
                "core/lending/grants.py",
                "is_filled = parts.is_filled & has_message[:, :, None]",
                "is_filled = parts.is_filled",
            ),
        ),
    ),
    Mend(
        "turns of those ahead in time",
        "a division leaves a flow out that its shard would serve next, and another overtakes it",
        (
            (
                "core/batch/flow_plan.py",
                "competing = eligible if barred is None else contest.competing(barred, eligible)",
                "competing = eligible.copy()\n        if barred is not None:\n            competing[barred.flow] = 0",
            ),
        ),
    ),
    Mend(
        "somebody takes part",
        "where all owe more than is due to them, nobody takes part, and their debts are forgiven",
        (("core/lending/repaying_fill.py", "                is_over &= stays_in[once(scope)] | ~wants\n", ""),),
    ),
    Mend(
        "loose scopes",
        "a scope that has plenty decides the order in one that is short",
        (
            (
                "core/lending/grants.py",
                "bound_milli = np.where(parts.is_loose[:, None], NO_CONTEST, parts.ahead_bound_milli)",
                "bound_milli = parts.ahead_bound_milli",
            ),
        ),
    ),
    Mend(
        "own limits at a restart",
        "a restart of a job that shares loses the time for its own limits too",
        (
            (
                "control/plane.py",
                "np.where(is_shared(before)[:, None], leased.balance_micro, own.balance_micro)",
                "leased.balance_micro",
            ),
        ),
    ),
    Mend(
        "converted leads",
        "a lead of seconds at the old rate is kept at the new one",
        (
            (
                "core/policy_change.py",
                "return np.where(is_same[:, None], lead_vt, np.where(becomes.has_clock, told, 0))",
                "return lead_vt",
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
                "return np.minimum(debit(balance_micro, unmarked), np.minimum(-burst_micro, -1))",
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
                "    before, paid_ms = epoch.reading, epoch.buckets.as_of_ms\n",
                "    before, paid_ms = None, max(epoch.buckets.as_of_ms, wall_ms)\n",
            ),
        ),
    ),
    Mend(
        "jump before a batch",
        "a jump between an epoch and the batch's timestamp pays in full",
        (("core/limits/paying.py", "(min(since_ms, MOST_LAG_MS) if is_new else since_ms)", "since_ms"),),
    ),
    Mend(
        "batch without reports",
        "a batch that moved nothing leaves a file without reports, and the next epoch dies of it",
        (
            (
                "control/feedback.py",
                "    if reports:\n        directory.write",
                "    if True:\n        directory.write",
            ),
            ("control/feedback.py", "sorted(found.items()) if reports}", "sorted(found.items())}"),
        ),
    ),
    Mend(
        "events of true buckets",
        "batches are planned for rows that no scope lets pass",
        (
            (
                "core/lending/events.py",
                "    for of_scope in (of_tenant, of_group, of_job):\n",
                "    for of_scope in ():\n",
            ),
        ),
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
                "np.flatnonzero(size_bytes > bounds.min(axis=1)[flow])",
                "np.flatnonzero(size_bytes > MAX_SIZE_BYTES)",
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
                "control/plane.py",
                "        name = self._make(epoch.number + 1,",
                _FORGETS + "        name = self._make(epoch.number + 1,",
            ),
        ),
    ),
    Mend(
        "reports that are kept",
        "a checkpoint that is put back with its sinks forgets what the batches that are left used",
        (
            (
                "control/settling.py",
                "            bring_back(self._directory, from_batch=epoch.settled_batch)\n",
                "",
            ),
        ),
    ),
    Mend(
        "reports of another history",
        "a checkpoint that took two ways takes the reports of one for those of the other",
        (
            (
                "control/feedback.py",
                "if logged_ms is None or (reports and all(",
                "if reports or logged_ms is None or (reports and all(",
            ),
        ),
    ),
    Mend(
        "part of one row",
        "where a part of a batch is less than a message, its namespace is rejected each time",
        (
            (
                "core/batch/deferral.py",
                "parts = np.maximum(deferral.flow_micro // MICRO, deferral.flow_micro > 0)",
                "parts = deferral.flow_micro // MICRO",
            ),
        ),
    ),
    Mend(
        "large rows beside small ones",
        "where the rows that wait for their verdict overfill the queue, the small ones go with the large ones",
        (
            ("core/batch/deferral.py", "        is_due &= fits | self.is_unleased[scope[at]]\n", ""),
            (
                "core/batch/deferral.py",
                "waits[at[beyond]] = False",
                "waits[at] = False",
            ),
        ),
    ),
    Mend(
        "no wait for a debt",
        "rows wait for their verdict until a debt is repaid",
        (
            (
                "core/lending/deferrals.py",
                "is_calm = ~outlook.has_rejected[:, None] & (next_micro > 0)",
                "is_calm = np.broadcast_to(~outlook.has_rejected[:, None], next_micro.shape)",
            ),
            (
                "core/lending/deferrals.py",
                "left_micro = balance_micro - ",
                "left_micro = np.maximum(balance_micro, 0) - ",
            ),
        ),
    ),
    Mend(
        "shards that need no bytes",
        "a shard that is lent no bytes may not take messages that have none",
        (
            (
                "core/lending/grants.py",
                "is_open = (lent > 0) | needs_none",
                "is_open = lent > 0",
            ),
        ),
    ),
    Mend(
        "bytes of a withheld message",
        "a shard loses the bytes that it cannot use for want of a message",
        (
            (
                "core/lending/advances.py",
                "np.maximum(lending.credit_micro, _withheld_micro(ahead, used_micro, lent_micro, policy))",
                "lending.credit_micro",
            ),
        ),
    ),
    Mend(
        "rejections by shared quotas",
        "rows that are rejected for another cause count as an overload of their group",
        (
            (
                "core/lending/grants.py",
                "messages = report.rejected[:, Dimension.MESSAGES] if messages is None else messages",
                "messages = report.rejected[:, Dimension.MESSAGES]",
            ),
        ),
    ),
    Mend(
        "share of a lowered quota",
        "a standing grant grows at the share of a quota that was lowered since",
        (
            (
                "core/state.py",
                "        return rates_of_shares(self.share_micro_per_ms, policy)",
                "        return self.share_micro_per_ms",
            ),
        ),
    ),
    Mend(
        "slow rates in many shards",
        "a standing grant of a slow quota repays no debt",
        (("core/state.py", " + rest * elapsed_ms // shards", ""),),
    ),
    Mend(
        "prices of messages",
        "a scope that is short of time is divided by messages, so dear rows take more of it",
        (
            (
                "core/limits/message_prices.py",
                "return cls(own_ns, shared_ns) if own_ns.any() and shared_ns.any() else None",
                "return None",
            ),
        ),
    ),
    Mend(
        "leads in messages",
        "a scope's price that rises makes a lead of one message one of hundreds",
        (
            (
                "core/fair/fair_order.py",
                "        kept = common.take(domain, axis=0)\n",
                "        kept = priced(common.take(domain, axis=0), domain)\n",
            ),
        ),
    ),
    Mend(
        "time for those that wait",
        "one dear message holds up cheap ones until the price of their scope has fallen",
        (
            (
                "core/time_quota/time_in_force.py",
                "        time = time if mix is None else mix.with_waiting(time)\n",
                "",
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
)
