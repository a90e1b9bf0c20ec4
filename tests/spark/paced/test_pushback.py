"""A destination that says "not now" holds its own calls and nobody else's, by a manual clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.shares.destinations import WHOLE, Aimd
from spark_throttle.errors import Backpressure, DeliveryError
from spark_throttle.spark.paced.calls import IdempotencyKey
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.sending import Sent
from tests.spark.paced.destinations import MS, SECOND, Destination


def test_refused_call_is_made_again_after_the_time_that_was_asked_for_and_others_go_on() -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        return Backpressure(2.5) if key.namespace == "t/a" and 0.3 <= now < 2.5 else None

    destination = Destination(answer)
    assert destination.send({"t/a": 100, "t/b": 100}).rows == 200
    assert destination.taken == {"t/a": list(range(100)), "t/b": list(range(100))}
    (refused,) = destination.refused("t/a")
    after = min(at for at, name, _ in destination.asked if name == "t/a" and at > refused)
    assert 2.5 <= after - refused <= 2.52
    assert max(at for at, name, _ in destination.asked if name == "t/b") < 1.1


def test_pauses_double_while_one_call_at_a_time_asks_again() -> None:
    destination = Destination(lambda now, _: Backpressure() if now < 8 else None)
    destination.send({"t/a": 20}, in_order=False)
    asked = [at for at, *_ in destination.asked if at < 12]
    first = [at for at in asked if at < 0.1]
    assert len(first) <= 4  # the calls in flight when the first refusal came
    again = [at for at in asked if at >= 0.1]
    pauses = [after - before for before, after in pairwise(again)][:5]
    assert [round(pause, 1) for pause in pauses] == [0.2, 0.4, 0.8, 1.6, 3.2]


def test_scope_that_a_refusal_names_holds_all_that_were_refused_by_it_and_nobody_else() -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        return Backpressure(1.0, scope="api") if key.namespace != "t/c" and now < 0.9 else None

    destination = Destination(answer)
    destination.send({"t/a": 20, "t/b": 20, "t/c": 20})
    assert sum(len(destination.refused(name)) for name in ("t/a", "t/b")) == 2
    assert max(at for at, name, _ in destination.asked if name == "t/c") < 0.3


def test_destination_that_refuses_for_longer_than_the_patience_ends_the_batch() -> None:
    destination = Destination(lambda *_: Backpressure(problem="it answered 503"))
    with pytest.raises(DeliveryError, match=r"t/a did not take the rows of call q/3/id/t%2Fa/0: it answered 503"):
        destination.send({"t/a": 3}, patience_seconds=7)
    assert 3 <= destination.clock.now_ns() / SECOND <= 7


@pytest.mark.slow
@given(
    outages=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 2_000)), max_size=4),
    asked_ms=st.none() | st.integers(0, 1_500),
    in_order=st.booleans(),
)
def test_every_row_is_taken_once_whatever_is_refused(
    outages: list[tuple[int, int]], asked_ms: int | None, *, in_order: bool
) -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        is_out = any(start <= now * 1_000 < start + length for start, length in outages)
        return Backpressure(None if asked_ms is None else asked_ms / 1_000) if is_out else None

    destination = Destination(answer)
    assert destination.send({"t/a": 60, "t/b": 30}, in_order=in_order).rows == 90
    for name, rows in (("t/a", 60), ("t/b", 30)):
        taken = destination.taken[name]
        assert (taken if in_order else sorted(taken)) == list(range(rows))


TERMS = Terms(row_ns=5 * MS, floor_part=WHOLE // 100, seconds=2.0, is_timed=False)
"""A destination that takes 200 rows a second, in a batch of two seconds."""


def sent_and_undelivered(sent: Sent, destination: Destination) -> dict[str, list[int]]:
    """Return the rows of each namespace that were taken, and then those that are left."""
    found = {name: list(ids) for name, ids in destination.taken.items()}
    for parcel in sent.undelivered:
        found.setdefault(parcel.key.namespace, []).extend(parcel.rows.column("id").to_pylist())
    return found


def test_destination_of_the_policy_takes_what_it_takes_in_the_time_of_the_batch_and_the_rest_is_returned() -> None:
    destination = Destination(lambda now, key: Backpressure(9.0) if key.namespace == "d/a" and now > 0.5 else None)
    sent = destination.send({"d/a": 200, "d/b": 200, "e/c": 200}, terms={"d": TERMS})
    assert sent_and_undelivered(sent, destination) == {name: list(range(200)) for name in ("d/a", "d/b", "e/c")}
    assert {parcel.key.namespace for parcel in sent.undelivered} == {"d/a", "d/b"}
    assert len(destination.taken["e/c"]) == 200
    told = sent.told["d"]
    assert told.refused >= 1
    assert told.part == WHOLE - WHOLE // 8
    assert destination.clock.now_ns() / SECOND < 2.1


def test_unavailable_destination_is_asked_once_and_then_waits_for_nobody() -> None:
    destination = Destination(lambda *_: Backpressure(problem="it answered 503"))
    terms = Terms(5 * MS, WHOLE // 100, 30.0, is_unavailable=True)
    sent = destination.send({"d/a": 50, "d/b": 50}, terms={"d": terms})
    assert len(destination.asked) == 1
    assert destination.clock.now_ns() / SECOND < 1
    assert sent_and_undelivered(sent, destination) == {"d/a": list(range(50)), "d/b": list(range(50))}
    assert (sent.told["d"].accepted, sent.told["d"].refused, sent.told["d"].part) == (0, 1, WHOLE)


def test_unavailable_destination_that_takes_the_first_call_gets_the_others() -> None:
    destination = Destination(lambda *_: None)
    terms = Terms(5 * MS, WHOLE // 100, 30.0, is_unavailable=True)
    sent = destination.send({"d/a": 50, "d/b": 50}, terms={"d": terms})
    assert sent.rows == 100
    assert not sent.undelivered


@pytest.mark.slow
@given(
    allowed=st.integers(5, 300),
    burst=st.integers(1, 50),
    asked_ms=st.none() | st.integers(0, 1_500),
    in_order=st.booleans(),
    namespaces=st.integers(1, 6),
)
def test_no_row_is_lost_or_doubled_by_a_destination_with_a_limit_of_its_own(
    allowed: int, burst: int, asked_ms: int | None, namespaces: int, *, in_order: bool
) -> None:
    tokens, last = float(burst), 0.0

    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        nonlocal tokens, last
        tokens, last = min(burst, tokens + (now - last) * allowed), now
        if tokens < 1:
            return Backpressure(None if asked_ms is None else asked_ms / 1_000)
        tokens -= 1
        return None

    destination = Destination(answer)
    names = [f"d/{number}" for number in range(namespaces)]
    sent = destination.send(dict.fromkeys(names, 60), terms={"d": TERMS}, in_order=in_order)
    found = sent_and_undelivered(sent, destination)
    assert {name: sorted(ids) for name, ids in found.items()} == {name: list(range(60)) for name in names}
    if in_order:
        assert found == {name: list(range(60)) for name in names}
    assert sent.rows == sum(len(ids) for ids in destination.taken.values())


def test_call_that_asks_whether_a_destination_is_back_and_is_refused_in_the_name_of_another_holds_nobody() -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        if now < 0.05:
            return Backpressure(0.5, scope="api")
        if key.namespace == "t/a" and now < 5:
            return Backpressure(scope="quota of t/a")
        return None

    destination = Destination(answer)
    destination.send({"t/a": 20, "t/b": 20})
    assert max(at for at, name, _ in destination.asked if name == "t/b") < 2
    assert destination.taken == {"t/a": list(range(20)), "t/b": list(range(20))}


def test_gate_that_an_earlier_call_shuts_for_longer_opens_after_the_call_that_asked_was_accepted() -> None:
    refusals = iter([Backpressure(0.0), Backpressure(0.3)])
    destination = Destination(lambda *_: next(refusals, None))
    destination.send({"t/a": 4}, in_order=False)
    assert sorted(destination.taken["t/a"]) == [0, 1, 2, 3]
    assert 0.3 < max(at for at, *_ in destination.asked) < 0.5


def test_calls_that_the_time_of_the_batch_is_too_short_for_are_returned_without_a_refusal() -> None:
    destination = Destination(lambda *_: None)
    terms = Terms(row_ns=20 * MS, floor_part=WHOLE // 100, seconds=2.0)
    sent = destination.send({"d/a": 100, "d/b": 100, "e/c": 100}, terms={"d": terms})
    assert destination.clock.now_ns() / SECOND < 2.2
    assert len(destination.taken["e/c"]) == 100
    taken = [len(destination.taken[name]) for name in ("d/a", "d/b")]
    assert 98 <= sum(taken) <= 103
    assert abs(taken[0] - taken[1]) <= 2
    assert sent_and_undelivered(sent, destination) == {name: list(range(100)) for name in ("d/a", "d/b", "e/c")}


ANSWERS = st.sampled_from([None, None, Backpressure(), Backpressure(0.3), Backpressure(scope="x")]) | st.builds(
    Backpressure, st.floats(0, 3), st.sampled_from([None, "x", "d", "d/1", "elsewhere"])
)


@pytest.mark.slow
@given(
    answers=st.lists(ANSWERS, min_size=1, max_size=40),
    then_refuses=st.booleans(),
    in_order=st.booleans(),
    is_unavailable=st.booleans(),
    is_timed=st.booleans(),
    namespaces=st.lists(st.sampled_from(["d/1", "d/2", "d/3", "x/1", "t/a"]), min_size=1, max_size=5, unique=True),
)
def test_task_ends_with_each_row_taken_or_returned_whoever_refuses_in_whose_name(
    answers: list[Backpressure | None],
    namespaces: list[str],
    *,
    then_refuses: bool,
    in_order: bool,
    is_unavailable: bool,
    is_timed: bool,
) -> None:
    left = iter(answers)
    has_rest = then_refuses and all(name[0] in "dx" for name in namespaces)
    destination = Destination(lambda *_: next(left, Backpressure() if has_rest else None))
    terms = {
        name: Terms(5 * MS, WHOLE // 100, 2.0, is_timed=is_timed, is_unavailable=is_unavailable) for name in ("d", "x")
    }
    sent = destination.send(dict.fromkeys(namespaces, 30), terms=terms, in_order=in_order, patience_seconds=10**6)
    found = sent_and_undelivered(sent, destination)
    assert {name: sorted(ids) for name, ids in found.items()} == {name: list(range(30)) for name in namespaces}
    if in_order:
        assert found == {name: list(range(30)) for name in namespaces}
    assert sent.rows == sum(len(ids) for ids in destination.taken.values())
    if all(name[0] in "dx" for name in namespaces):
        assert destination.clock.now_ns() < 10 * SECOND


@pytest.mark.slow
def test_rate_follows_a_destination_that_changes_its_limit_within_one_batch() -> None:
    """It allows 100 rows a second, then a quarter, then 100 again, and saves up half a second's."""
    tokens, last = 50.0, 0.0

    def allowed(now: float) -> float:
        return 25 if 20 <= now < 40 else 100

    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        nonlocal tokens, last
        tokens, last = min(allowed(now) / 2, tokens + (now - last) * allowed(now)), now
        if tokens < 1:
            return Backpressure()
        tokens -= 1
        return None

    destination = Destination(answer)
    began = Aimd(2 * WHOLE, 0)
    terms = Terms(10 * MS, WHOLE // 100, 60.0, ceiling_part=4 * WHOLE, began=began)
    destination.send({f"d/{number}": 1_500 for number in range(4)}, terms={"d": terms})
    for start, end in ((0, 20), (20, 40), (40, 60)):
        settled = [is_taken for at, _, is_taken in destination.asked if start + 10 <= at < end]
        assert sum(settled) >= 0.9 * allowed(start) * (end - start - 10), start
        assert sum(settled) >= 0.98 * len(settled), start
        right = [at for at, _, is_taken in destination.asked if is_taken and start + 8 <= at < start + 11]
        assert len(right) >= 0.9 * allowed(start) * 3, start


def test_unavailable_destination_that_rows_wait_for_is_asked_every_second_and_gets_all_when_it_is_back() -> None:
    destination = Destination(lambda now, _: Backpressure() if now < 7.2 else None)
    terms = Terms(5 * MS, WHOLE // 100, 12.0, is_unavailable=True, asks_once=False)
    sent = destination.send({"d/a": 100, "d/b": 100}, terms={"d": terms})
    assert not sent.undelivered
    refused = [at for at, _, is_taken in destination.asked if not is_taken]
    assert [round(after - before) for before, after in pairwise(refused)][-5:] == [1] * 5
    assert min(at for at, _, is_taken in destination.asked if is_taken) < 8.3
    assert sent.told["d"].part == WHOLE


def test_quiet_time_is_that_in_which_something_was_taken() -> None:
    destination = Destination(lambda *_: None)
    began = Aimd(WHOLE // 2, 1_000)
    terms = Terms(5 * MS, WHOLE // 100, 12.0, began=began)
    told = destination.send({"d/a": 50, "t/b": 500}, terms={"d": terms}).told["d"]
    assert destination.clock.now_ns() / SECOND > 4
    assert told.part == began.base
    assert 1_400 <= told.quiet_ms <= 1_600


@pytest.mark.parametrize("first", [Backpressure(may_be_taken=True), Backpressure()])
def test_call_that_may_have_been_taken_once_stays_in_doubt_and_no_other_is(first: Backpressure) -> None:
    """The first call is refused twice, and the second time says that it was not taken."""
    refusals = iter([first])
    destination = Destination(lambda *_: next(refusals, Backpressure()))
    sent = destination.send({"d/a": 3}, terms={"d": TERMS})
    assert [parcel.may_be_taken for parcel in sent.undelivered] == [first.may_be_taken, False, False]
