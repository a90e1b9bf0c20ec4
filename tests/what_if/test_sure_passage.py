"""What surely passes is counted as if it had been decided message by message, and costs no decision."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import fields
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_from, compile_policy
from spark_throttle.testing.simulation.exchange import START_MS
from spark_throttle.what_if import replay as replaying
from spark_throttle.what_if.replay import Replay, replay
from spark_throttle.what_if.sure_passage import Passing, Ways
from spark_throttle.what_if.traffic import SUMS, Arrived, Traffic
from tests.effort import thorough_after
from tests.life import policies
from tests.life.policies import Document, Tempers

NAMES = (*policies.NAMESPACES, *(f"t{n}/x" for n in range(5)))


def drawn(seed: int) -> tuple[Document, Traffic]:
    """Return a policy with anything that a life's policies have, and what some busy and some quiet namespaces sent."""
    rng = random.Random(seed)
    kinds = frozenset(kind for kind in policies.KINDS if kind not in ("fail", "time") and rng.random() < 0.6)
    document, past = policies.first(rng, Tempers(kinds)), list[Document]()
    for _ in range(rng.choice([0, 3, 8, 15])):
        past.append(document)
        later = policies.changed(rng, Tempers(kinds), document, past)
        with suppress(PolicyError):  # such as one that names a group that is gone
            parse_document(later)
            document = later
    interval_ms = 1_000 if "throttling" in str(document) else rng.choice([1_000, 5_000, 20_000])
    rows = [(START_MS // interval_ms, "acme/a", 1, 1, 1, 0, 0)]
    busy, size, many = (
        {name: rng.choice(of) for name in NAMES} for of in ((0.05, 0.3, 0.9), (1, 50, 2000), (1, 3, 12))
    )
    for at, name in ((at, name) for at in range(1, 40) for name in NAMES if rng.random() < busy[name]):
        count = rng.randint(1, int(many[name])) * (interval_ms // 1_000 if rng.random() < 0.3 else 1)
        sizes, units = ([rng.randint(0, int(most)) for _ in range(count)] for most in (size[name], 9))
        rows.append((rows[0][0] + at, name, count, sum(sizes), max(sizes), sum(units), max(units)))
    columns = dict(zip(SUMS.names, zip(*rows, strict=True), strict=True))
    return document, Traffic.of(pa.table(columns), interval_ms=interval_ms)


def nobody(ways: Ways, _state: object, _known: Int64s, arrived: Arrived, **_: object) -> Passing:
    none = np.zeros(len(arrived.known), dtype=np.bool_)
    return Passing(none, none, np.zeros((len(none), 3), dtype=np.int64))


def differing(one: Replay, other: Replay) -> list[str]:
    pairs = [(each.name, getattr(one, each.name), getattr(other, each.name)) for each in fields(one)]
    pairs += [
        (each.name, getattr(one.delays, each.name), getattr(other.delays, each.name)) for each in fields(one.delays)
    ]
    return [name for name, mine, its in pairs if name != "delays" and not np.array_equal(mine, its)]


@pytest.mark.parametrize("seed", thorough_after(3, [23, 2, 12, *range(30, 130)]))  # the first break most slips
def test_a_replay_is_the_same_where_every_message_is_decided(seed: int) -> None:
    document, traffic = drawn(seed)
    compiled = compile_from(parse_document(document), "publish", traffic.first_ms, traffic.end_ms)
    found = replay(traffic, compiled)
    with mock.patch.object(Ways, "passing", nobody):
        assert differing(found, replay(traffic, compiled)) == []


def test_nothing_is_decided_where_all_scopes_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand messages a second of two namespaces, under a quota of the tenant and one of each namespace."""
    numbers = [at for at in range(60) for _ in range(2)]
    sums = {"interval": numbers, "namespace": ["acme/a", "acme/b"] * 60, "messages": [500] * 120, "bytes": [500] * 120,
            "largest_bytes": [1] * 120}  # fmt: skip
    document = {
        "tenants": {"acme": {"publish": {"messages_per_second": 1_000, "burst_seconds": 1}}},
        "defaults": {"publish": {"bytes_per_second": 500, "burst_seconds": 1}},
    }
    monkeypatch.setattr(replaying, "plan_admission", None)
    found = replay(Traffic.of(pa.table(sums), interval_ms=1_000), compile_policy(parse_document(document), "publish"))
    assert found.admitted.tolist() == [[30_000, 30_000, 0]] * 2
