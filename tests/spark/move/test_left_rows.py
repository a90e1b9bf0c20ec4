"""Rows that leave for a destination and are not delivered: against a referee that knows every row by its number.

The referee is slow and simple. It knows of each row where it is, in the order of its namespace, and of each bucket what
its rows were charged. It does not decide: it takes the decider's word on who leaves, and checks what that may be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.left_rows import settle
from spark_throttle.core.limits.budgets import CalendarWindows
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import MICRO, NEVER_MS, CompiledPolicy
from spark_throttle.core.state import ControlRow, StoredState
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.core.usage import unpack_usage
from spark_throttle.errors import DamagedError
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.record import pack, unpack
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from tests.effort import examples
from tests.spark.move.played import START_MS, column, with_helpers

NAMES = ("api/a", "api/b", "free/c")


def policy_of(rate: int, own: int | None, *, gives_up: bool = False) -> CompiledPolicy:
    """Return a policy in which ``api`` goes to a destination, and ``free`` does not."""
    destination = {"on_unavailable": "dead_letters"} if gives_up else {}
    limits = {} if own is None else {"api/a": {"publish": {"messages_per_second": own, "burst_seconds": 1}}}
    group = {"messages_per_second": rate, "burst_seconds": 1}
    return compile_policy(PolicyDocument.model_validate({
        "resource_groups": {"api": {"publish": group, "destination": destination}},
        "tenants": {"api": {"resource_group": "api", "publish": {"bytes_per_second": 40 * rate, "burst_seconds": 1}}},
        "namespaces": limits,
    }), "publish")  # fmt: skip


def rows_of(numbers: list[int], names: list[str], sizes: list[int]) -> pa.Table:
    """Return rows with what decides about them."""
    return with_helpers(pa.table({"id": pa.array(numbers, pa.int64())}), names, sizes)


@dataclass
class Job:
    """A decider whose rows may come back."""

    policy: CompiledPolicy
    now_ms: int = START_MS
    epoch: int = 0
    state: bytes | None = None
    inputs: list[tuple[bytes | None, bytes, list[pa.Table], int]] = field(default_factory=list)

    def batch(
        self,
        rows: pa.Table | None,
        undelivered: Undelivered | None,
        unavailable: np.ndarray | None = None,
        *,
        after_ms: int = 1_000,
        policy: CompiledPolicy | None = None,
        day: int = 0,
    ) -> BatchOutcome:
        """Run a batch, with a control row that says what the one before did not deliver, and with another policy."""
        self.now_ms, self.epoch = self.now_ms + after_ms, self.epoch + 1
        packed = pack(policy or self.policy) if self.state is None or policy is not None else None
        paying = PayingTime(self.now_ms, self.now_ms)
        windows = CalendarWindows(*np.array([[day] * 3, [START_MS] * 3, [NEVER_MS] * 3], dtype=np.int64))
        row = pack(
            ControlRow(self.epoch, packed, paying, undelivered=undelivered, unavailable=unavailable, windows=windows)
        )
        frames = [] if rows is None else [rows]
        self.inputs.append((self.state, row, frames, self.now_ms))
        found = run_batch(self.state, row, frames, now_ms=self.now_ms, is_explained=False, keeps_left=True)
        self.state = found.state
        return found

    @property
    def stored(self) -> StoredState:
        """What the last batch left."""
        assert self.state is not None
        return unpack(StoredState, self.state, "the state")


@dataclass
class Referee:
    """Where every row is."""

    waits: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    left: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    again: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The first of those that left, for nobody knows whether they were taken."""

    done: Counter[int] = field(default_factory=Counter)

    def settle(self, calls: list[UndeliveredCall]) -> None:
        """Put back what was not delivered."""
        of_name = defaultdict[str, list[UndeliveredCall]](list)
        for call in calls:
            of_name[call.namespace].append(call)
        for name, left in self.left.items():
            back, again = list[int](), list[int]()
            for call in sorted(of_name[name], key=lambda call: call.place):
                (again if call.key_batch >= 0 else back).extend(left[call.place : call.place + call.rows])
            self.done.update(set(left) - set(back) - set(again))
            self.again[name] = again
            self.waits[name] = sorted(back + self.waits[name])
        self.left = defaultdict(list)

    def decide(self, outcome: BatchOutcome, name_of: dict[int, str]) -> None:
        """Take the decider's word on who leaves, and check that it may be."""
        admitted = [int(each) for each in column(outcome.admitted, "id")]  # type: ignore[call-overload]
        for name in NAMES:
            mine = [each for each in admitted if name_of[each] == name]
            again = self.again[name]
            assert mine[: len(again)] == again, "what is sent again does not come first, or not in its order"
            new = mine[len(again) :]
            assert new == self.waits[name][: len(new)], "the namespace's rows leave out of order"
            self.waits[name] = self.waits[name][len(new) :]
            if name.startswith("api"):
                self.left[name] = mine
            else:
                self.done.update(mine)


@st.composite
def fates(draw: st.DrawFn, left: dict[str, list[int]], batch: int) -> list[UndeliveredCall]:
    """Return what was not delivered of rows that left: pieces of them, some of which may have been taken."""
    calls = []
    for name, rows in sorted(left.items()):
        place = 0
        while place < len(rows):
            count = draw(st.integers(1, len(rows) - place))
            kind = draw(st.sampled_from(("taken", "returned", "again")))
            if kind != "taken":
                key = (batch, "x", place) if kind == "again" else (-1, "", 0)
                calls.append(UndeliveredCall(name, place, count, *key))
            place += count
    return calls


@examples(10, in_search=1_000)
@given(st.data(), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 3)))
def test_every_row_is_delivered_once_or_waits_and_its_namespace_keeps_its_order(
    data: st.DataObject, rate: int, own: int | None
) -> None:
    job, referee, name_of = Job(policy_of(rate, own)), Referee(), dict[int, str]()
    calls = list[UndeliveredCall]()
    for batch in range(6):
        names = data.draw(st.lists(st.sampled_from(NAMES), max_size=8))
        numbers = list(range(len(name_of), len(name_of) + len(names)))
        name_of |= dict(zip(numbers, names, strict=True))
        sizes = data.draw(st.lists(st.integers(0, 60), min_size=len(names), max_size=len(names)))
        referee.settle(calls)
        for number, name in zip(numbers, names, strict=True):
            referee.waits[name].append(number)
        returned = Counter[str]()
        for call in calls:
            if call.key_batch < 0:
                returned[call.namespace] += call.rows
        outcome = job.batch(rows_of(numbers, names, sizes) if names else None, Undelivered.of(calls))
        referee.decide(outcome, name_of)
        report = unpack_usage(outcome.usage, "the report")
        told = dict(zip(report.names.to_pylist(), report.number("returned_messages").tolist(), strict=True))
        assert {name: count for name, count in told.items() if count} == dict(returned)
        assert report.left_messages == sum(map(len, referee.left.values()))
        assert len(job.stored.state.queue) == sum(map(len, referee.waits.values()))
        assert set(referee.done.values()) <= {1}
        calls = data.draw(fates(dict(referee.left), batch))
    for state, row, frames, now_ms in job.inputs:
        again = run_batch(state, row, frames, now_ms=now_ms, is_explained=False, keeps_left=True)
        repeated = run_batch(state, row, frames, now_ms=now_ms, is_explained=False, keeps_left=True)
        assert (again.state, again.usage) == (repeated.state, repeated.usage)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 60)), min_size=1, max_size=12), st.integers(1, 6))
def test_buckets_whose_rows_all_came_back_hold_what_they_held(rows: list[tuple[str, int]], rate: int) -> None:
    job = Job(policy_of(rate, 2))
    job.batch(None, None)
    before = job.stored.state
    job.batch(rows_of(list(range(len(rows))), [name for name, _ in rows], [size for _, size in rows]), None)
    stored = job.stored
    left = Counter(stored.state.flows.names.take(pa.array(stored.state.left.flow)).to_pylist())
    back = Undelivered.of(UndeliveredCall(name, 0, count) for name, count in sorted(left.items()))
    found = settle(stored.state, stored.left_positions, back, job.policy).state
    assert (found.shared.balance_micro[1:] == before.shared.balance_micro[1:]).all()
    own = found.flows.balance_micro[:, 0][match(found.flows.names, job.policy).rule == 0]
    assert (own == 2 * MICRO).all()
    assert not len(found.left)


def test_rows_that_nobody_says_anything_of_stop_the_job() -> None:
    job = Job(policy_of(5, None))
    job.batch(rows_of([0], ["api/a"], [1]), None)
    with pytest.raises(DamagedError, match="does not say what became of the 1 rows"):
        job.batch(None, None)


@pytest.mark.parametrize(("place", "rows"), [(0, 2), (1, 0), (-1, 1)])
def test_rows_that_have_not_left_do_not_come_back(place: int, rows: int) -> None:
    job = Job(policy_of(5, None))
    job.batch(rows_of([0], ["api/a"], [1]), None)
    with pytest.raises(DamagedError, match="returns rows of api/a that have not left"):
        job.batch(None, Undelivered.of([UndeliveredCall("api/a", place, rows)]))


def test_rows_that_come_back_with_a_change_of_policy_get_their_tokens_back_where_they_paid_them() -> None:
    policy, balances = policy_of(3, None), list[list[int]]()
    of_another_tenant = {"tenants": {"aaa": {"publish": {"messages_per_second": 1}}, "api": {"resource_group": "api"}}}
    group = {"resource_groups": {"api": {"publish": {"messages_per_second": 3, "burst_seconds": 1}, "destination": {}}}}
    changed = compile_policy(PolicyDocument.model_validate(group | of_another_tenant), "publish")
    for after in (policy, changed):
        job = Job(policy)
        job.batch(rows_of([0, 1, 2], ["api/a"] * 3, [1] * 3), None)
        back, now_ms = Undelivered.of([UndeliveredCall("api/a", 0, 3)]), job.now_ms + 1
        row = ControlRow(2, pack(after), PayingTime(now_ms, now_ms), undelivered=back)
        found = run_batch(job.state, pack(row), [], now_ms=now_ms, is_explained=False, keeps_left=True)
        assert column(found.admitted, "id") == [0, 1, 2]
        balances.append(unpack(StoredState, found.state, "it").state.shared.balance_micro[-1, :1].tolist())
    assert balances[0] == balances[1]


@pytest.mark.parametrize("is_moved", [False, True])
def test_rows_sent_again_are_charged_where_they_go_again(is_moved: bool) -> None:
    """Else they would give back what they never paid: to the budget of the next day, or to the group of now."""
    quota = {"messages_per_second": 4, "burst_seconds": 1}
    if not is_moved:
        quota = {"messages_per_second": 1_000, "messages_per_day": 5}

    def policy_with(group: str) -> CompiledPolicy:
        groups = {name: {"publish": quota, "destination": {}} for name in ("here", "there")}
        document = {"resource_groups": groups, "tenants": {"api": {"resource_group": group}}}
        return compile_policy(PolicyDocument.model_validate(document), "publish")

    job, again = Job(policy_with("here")), Undelivered.of([UndeliveredCall("api/a", 0, 3, 0, "x", 0)])
    job.batch(rows_of([0, 1, 2], ["api/a"] * 3, [1] * 3), None)
    after = policy_with("there") if is_moved else None
    numbers = list(range(3, 13))
    second = job.batch(rows_of(numbers, ["api/a"] * 10, [1] * 10), again, policy=after, day=int(not is_moved))
    assert column(second.admitted, "id") == [0, 1, 2, 3, 4]
    back = Undelivered.of([UndeliveredCall("api/a", 0, 3)])
    third = job.batch(None, back, after_ms=0, day=int(not is_moved))
    assert column(third.admitted, "id") == [0, 1, 2]


def test_rows_of_an_unavailable_destination_are_given_up_but_those_that_ask() -> None:
    job = Job(policy_of(2, None, gives_up=True))
    numbers = list(range(9))
    found = job.batch(rows_of(numbers, ["api/a"] * 8 + ["free/c"], [1] * 9), None, unavailable=np.array([2]))
    asks = len(column(found.admitted, "id")) - 1
    assert 0 < asks < 8
    (rejected,) = found.rejected
    explained = rejected.column("throttle").to_pylist()
    assert [each["reason"] for each in explained] == ["destination_unavailable"] * (8 - asks)
    assert {(each["level"], each["scope"]) for each in explained} == {("resource_group", "api")}
