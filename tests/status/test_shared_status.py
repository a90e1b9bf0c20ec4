"""What `status` and the usage table say of shared quotas, and that a job without an exchange says nothing of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.control.demand import SharedScopes
from spark_throttle.control.reports import write_report
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.core.usage import UsageReport, pack_usage
from spark_throttle.files.storage import Directory, write_block
from spark_throttle.sharing.status import Observation, PeerStatus, read_observation, write_observation
from spark_throttle.status.status import read_status
from spark_throttle.status.usage_table import SHARE_SCHEMA, USAGE_SCHEMA, PeerUse, scope_shares, usage_rows, with_shares
from tests.oracle.worlds import limit, make_policy

POLICY = make_policy(
    groups={"gold": limit(messages_per_second=100), "silver": limit(bytes_per_second=5)}, revision="r1"
)
SCOPES = SharedScopes.of(POLICY, "publish")
GOLD = int(np.flatnonzero(SCOPES.position == 1)[0])
SILVER = 1 - GOLD


def pairs(gold: tuple[int, int], silver: tuple[int, int]) -> np.ndarray:
    return np.array([gold, silver] if GOLD == 0 else [silver, gold], dtype=np.int64)


OBSERVATION = Observation(
    ids=SCOPES.ids,
    quota=pairs((100_000, -1), (-1, 5_000)),
    share=pairs((40_000, -1), (-1, 2_500)),
    used_by_all=pairs((80_000, 7_000), (1_000, 5_000)),
    peers=(PeerStatus("beta", "b", 900, "live"), PeerStatus("gamma", "c", 70_000, "dead")),
    peer_scope=np.array([GOLD, SILVER, GOLD]),
    peer=np.array([0, 0, 1]),
    peer_claim=np.array([[60_000, 0], [0, 2_500], [3_000, 0]]),
    peer_used=np.array([[50_000, 1_000], [0, 1_000], [9_000, 0]]),
    is_leased=True,
    lease_age_ms=1_200,
    lease_left_ms=28_800,
    as_of_ms=1_760_000_000_000,
    problem="OSError: unreachable",
)


def report() -> UsageReport:
    names = pa.array(["acme/a"])
    found, one, none = match(names, POLICY), np.array([[1, 1, 0, 0]]), np.zeros(1, dtype=np.int64)
    return UsageReport(
        4, "r1", 1_760_000_000_000, names, found.tenant, found.group, none + 1, one, one, one, one, one, none, none,
        np.zeros((len(POLICY.shared), 3), dtype=np.int64), NEVER_MS, NEVER_MS, NEVER_MS,
    )  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(str(tmp_path))
    write_block(directory, "policies/r1", POLICY)
    write_report(directory, 3, pack_usage(report()))
    return directory


def test_observation_comes_back_as_it_was(directory: Directory) -> None:
    assert read_observation(directory) is None
    write_observation(directory, OBSERVATION)
    back = read_observation(directory)
    assert back is not None
    for name in Observation.__slots__:
        was, now = getattr(OBSERVATION, name), getattr(back, name)
        assert (was.tolist() == now.tolist()) if isinstance(was, np.ndarray) else was == now, name


def test_observation_of_a_job_that_is_alone_comes_back_without_peers(directory: Directory) -> None:
    nothing = np.zeros((0, 2), dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    write_observation(
        directory, Observation(none, nothing, nothing, nothing, (), none, none, nothing, nothing, False, -1, 0)
    )
    back = read_observation(directory)
    assert back is not None
    assert back.peers == ()


def test_status_has_quota_share_age_peers_and_use_of_every_shared_scope(directory: Directory) -> None:
    """<https://github.com/grafana/mimir/issues/14471>: the number that is shown is not the one in force."""
    write_observation(directory, OBSERVATION)
    status = read_status(directory.location)
    assert status.exchange is not None
    assert (status.exchange.is_leased, status.exchange.problem) == (True, "OSError: unreachable")
    assert [peer.name for peer in status.exchange.peers] == ["beta", "gamma"]
    gold = status.of_level("resource_group")["gold"].shared
    assert gold is not None
    assert (gold.quota_messages_per_second, gold.quota_bytes_per_second) == (100.0, None)
    assert (gold.share_messages_per_second, gold.share_bytes_per_second) == (40.0, None)
    assert (gold.lease_age_ms, gold.used_by_all_messages_per_second, gold.utilisation) == (1_200, 80.0, 0.8)
    assert gold.peers == (
        PeerUse("beta", "live", 900, 60.0, None, 50.0, 1.0),
        PeerUse("gamma", "dead", 70_000, 3.0, None, 9.0, 0.0),
    )
    silver = status.of_level("resource_group")["silver"].shared
    assert silver is not None
    assert (silver.share_bytes_per_second, silver.utilisation) == (2.5, 1.0)
    assert status.of_level("namespace")["acme/a"].shared is None


def test_status_of_a_job_that_shares_nothing_has_no_exchange(directory: Directory) -> None:
    status = read_status(directory.location)
    assert status.exchange is None
    assert {scope.shared for scope in status.scopes} == {None}


def test_usage_rows_have_the_shares_beside_them() -> None:
    rows = with_shares(usage_rows(report(), POLICY, 3), scope_shares(OBSERVATION, POLICY, "publish"))
    assert rows.schema.names == [*USAGE_SCHEMA.names, *SHARE_SCHEMA.names]
    by_scope = {row["scope"]: row for row in rows.to_pylist()}
    assert by_scope["gold"]["share_messages_per_second"] == 40.0
    assert by_scope["gold"]["peers"][1]["job"] == "gamma"
    assert by_scope["acme/a"]["share_messages_per_second"] is None
    assert by_scope["acme/a"]["peers"] is None


def test_share_of_a_quota_on_units_is_told_beside_those_of_messages_and_bytes() -> None:
    """Units have a place of their own: a group may have it alone, or both."""
    policy = make_policy(
        groups={"g": limit(units_per_second=100), "h": limit(messages_per_second=9, units_per_second=8)}
    )
    scopes = SharedScopes.of(policy, "publish")
    taken = scopes.taken(policy.shared.rate_micro_per_ms)
    nothing = np.zeros((0, 2), dtype=np.int64)
    seen = replace(
        OBSERVATION, ids=scopes.ids, quota=taken, share=np.where(taken > 0, taken // 2, taken), peers=(),
        used_by_all=np.maximum(taken, 0) // 4, peer_scope=nothing[:, 0], peer=nothing[:, 0], peer_claim=nothing,
        peer_used=nothing,
    )  # fmt: skip
    shares = scope_shares(seen, policy, "publish")
    g, h = shares["resource_group", "g"], shares["resource_group", "h"]
    assert (g.quota_messages_per_second, g.quota_units_per_second, g.share_units_per_second) == (None, 100, 50)
    assert (h.quota_messages_per_second, h.quota_units_per_second, h.share_units_per_second) == (9, 8, 4)
    assert (h.share_messages_per_second, h.used_by_all_units_per_second, h.utilisation) == (4.5, 2, 0.25)
