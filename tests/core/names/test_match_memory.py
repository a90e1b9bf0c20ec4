"""A process remembers no more of matches than it would find anew, and finds it again by content alone."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.names import matching
from spark_throttle.core.names.matching import Matches, MatchMemory, match
from spark_throttle.core.quota import CompiledPolicy
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

NO_NAMES = pa.array([], pa.string())
POLICY = make_policy(
    tenants={"acme": Tenant(group="gold")},
    groups={"gold": limit(messages_per_second=1)},
    namespaces={"b/y": Namespace()},
)


def names(*values: str) -> pa.StringArray:
    return pa.array(values, pa.string())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What had to be resolved, a list a call."""
    calls: list[list[str]] = []

    def counted(of: pa.StringArray, policy: CompiledPolicy) -> Matches:
        calls.append(of.to_pylist())
        return match(of, policy)

    monkeypatch.setattr(matching, "match", counted)
    return calls


def assert_equal(found: Matches, expected: Matches) -> None:
    for column in Matches.__slots__:
        assert getattr(found, column).tolist() == getattr(expected, column).tolist()


def test_matches_are_those_of_a_policy_that_differs_in_the_queue_alone() -> None:
    known = names("acme/x")
    table = matching._Table(known, match(known, POLICY), POLICY)
    for field in fields(CompiledPolicy):
        other = copy.copy(POLICY)
        object.__setattr__(other, field.name, object())
        assert table.is_of(known, other) == (field.name == "queue"), field.name


def test_only_new_names_are_resolved(asked: list[list[str]]) -> None:
    memory, known, new = MatchMemory(), names("acme/x", "b/y"), names("acme/z", "solo")
    memory.keep(known, match(known, POLICY), POLICY)
    found = memory.match(pa.concat_arrays([known.slice(0, 1), known.slice(1)]), new, POLICY)
    assert_equal(found, match(pa.concat_arrays([known, new]), POLICY))
    assert asked == [["acme/z", "solo"]]


@pytest.mark.parametrize(
    ("known", "policy"),
    [
        (names("acme/x", "b/z"), POLICY),
        (names("acme/x"), POLICY),
        (names("acme/x", "b/y"), replace(POLICY, namespace_names=names("acme/x"))),
        (names("acme/x", "b/y"), make_policy()),
    ],
    ids=["another name", "fewer names", "another rule", "another policy"],
)
def test_other_names_and_other_policies_are_resolved_anew(
    asked: list[list[str]], known: pa.StringArray, policy: CompiledPolicy
) -> None:
    memory, kept = MatchMemory(), names("acme/x", "b/y")
    memory.keep(kept, match(kept, POLICY), POLICY)
    assert_equal(memory.match(known, NO_NAMES, policy), match(known, policy))
    assert asked == [known.to_pylist()]


def test_policy_with_other_bounds_of_the_queue_matches_alike(asked: list[list[str]]) -> None:
    memory, kept = MatchMemory(), names("acme/x")
    memory.keep(kept, match(kept, POLICY), POLICY)
    wider = replace(POLICY, queue=replace(POLICY.queue, messages=9))
    assert_equal(memory.match(kept, NO_NAMES, wider), match(kept, POLICY))
    assert asked == []


def test_oldest_tables_go_first(asked: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_MOST_NAMES", 3)
    memory, first, second = MatchMemory(), names("a", "b"), names("c", "d")
    for kept in (first, second):
        memory.keep(kept, match(kept, POLICY), POLICY)
    memory.match(second, NO_NAMES, POLICY)
    assert asked == []
    memory.match(first, NO_NAMES, POLICY)
    assert asked == [["a", "b"]]


def test_decider_has_the_matches_of_what_it_remembered(asked: list[list[str]]) -> None:
    # Two batches through the kernel: the second resolves the new name alone, though the state was stored between.
    from spark_throttle.core.batch.admission import plan_admission
    from spark_throttle.core.limits.token_bucket import PayingTime
    from spark_throttle.core.state import DeciderState, StoredState
    from spark_throttle.record import pack, unpack
    from tests.oracle.worlds import make_arrivals

    policy = make_policy(default=Namespace(limit(messages_per_second=1, burst_seconds=100)))
    memory = MatchMemory()
    arrivals = make_arrivals([("memory/a", 1), ("memory/b", 1)])
    first = plan_admission(DeciderState.initial(policy), arrivals, policy, now_ms=1_000, memory=memory)
    nothing = np.zeros(0, dtype=np.int64)
    block = pack(StoredState(first.state, b"", [], nothing, nothing, PayingTime(1_000, 1_000)), is_compressed=True)
    stored = unpack(StoredState, block, "the example")
    asked.clear()
    plan_admission(stored.state, make_arrivals([("memory/c", 1)]), policy, now_ms=1_001, memory=memory)
    assert asked == [["memory/c"]]
