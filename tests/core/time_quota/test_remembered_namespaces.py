"""Which namespaces the ledger of processing time remembers, and for how long."""

from __future__ import annotations

import pytest

from spark_throttle.core.time_quota import time_ledger
from spark_throttle.core.time_quota.time_ledger import REMEMBERED_MS, TimeLedger
from spark_throttle.testing.oracle.worlds import Namespace, limit, make_policy
from tests.core.time_quota.test_time_ledger import HALF, charges, report


def test_long_idle_namespace_is_struck_out_and_one_in_debt_is_not() -> None:
    policy = make_policy(namespaces={"acme/x": Namespace(HALF), "acme/y": Namespace(limit(request_percentage=0))})
    ledger = TimeLedger.opened(policy, now_ms=0)
    ledger = ledger.settled(charges(acme_x=100, acme_y=100), [report(acme_x=1)], policy, at_ms=0)
    recent = ledger.refilled(policy, now_ms=REMEMBERED_MS).without_idle(policy)
    assert recent.names.to_pylist() == ["acme/x", "acme/y"]
    later = ledger.refilled(policy, now_ms=REMEMBERED_MS + 1).without_idle(policy)
    assert "acme/x" not in later.names.to_pylist()
    assert len(later.own.balance_ns) == len(later.used.own_ns) == len(later.active_ms) == len(later.names)


def test_namespaces_that_were_active_before_many_others_are_struck_out_whatever_their_names_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time_ledger, "MOST_REMEMBERED", 3)
    policy = make_policy(job=limit(request_percentage=50, burst_seconds=20), namespaces={"owes/x": Namespace(HALF)})
    ledger = TimeLedger.opened(policy, now_ms=0)
    for at_ms, names in enumerate((["owes_x", "a_x"], ["b_x", "z_x"], ["c_x", "y_x"], ["m_x"])):
        batch = dict.fromkeys(names, 1) | ({"owes_x": 2_000} if not at_ms else {})
        ledger = ledger.settled(charges(**batch), [report(**dict.fromkeys(names, 1))], policy, at_ms=at_ms)
        ledger = ledger.without_idle(policy)
    assert ledger.names.to_pylist() == ["c/x", "m/x", "owes/x", "y/x"]
