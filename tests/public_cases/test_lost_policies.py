"""A job whose policies are lost, broken, emptied or put back goes by the last good ones, or says what is in force."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import NO_EPOCH
from spark_throttle.control.plane import ControlPlane
from spark_throttle.errors import ConfigurationError, PolicyError, StoreError, ThrottleError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.source import PolicyFile, PolicySource
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from spark_throttle.testing.simulation.job import SimulatedJob

SLOW: dict[str, Any] = {"version": 1, "tenants": {"a": {"publish": {"messages_per_second": 10, "burst_seconds": 1}}}}
TEXT = "tenants: {a: {publish: {messages_per_second: 10, burst_seconds: 1}}}"
ANN = Author("ann", "a test")


def plane(root: Path, policies: PolicySource) -> ControlPlane:
    """Return a control plane whose first epoch is made, as a query has it that starts."""
    made = ControlPlane(Directory(str(root)), policies, "publish", Clock.of(lambda: 1_760_000_000_000))
    made.next_epoch(NO_EPOCH)
    return made


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_throttle.control")
    return caplog


@pytest.mark.parametrize(
    ("content", "kind"),
    [(None, ConfigurationError), ("tenants: {a: {publish: {messages_per_sec", PolicyError), ("", PolicyError)],
)
def test_a_job_does_not_start_without_policies_that_it_can_read(
    tmp_path: Path, content: str | None, kind: type[ThrottleError]
) -> None:
    """
    <https://github.com/apache/pulsar/issues/22504> and <https://github.com/apache/kafka/pull/21108>: no limit is in
    force until the configuration comes. Here: missing, written by half, and empty.
    """
    path = tmp_path / "policies.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(kind, match=r"policies\.yaml"):
        plane(tmp_path / "control", PolicyFile(path))
    with pytest.raises((StoreError, ConfigurationError), match="there is no policy store"):
        plane(tmp_path / "control", FollowedStore(f"delta:{tmp_path / 'none'}"))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_policies_that_now_limit_nothing_are_in_force_and_the_log_says_so(
    *, is_restarted: bool, warnings: pytest.LogCaptureFixture
) -> None:
    """<https://github.com/apache/kafka/pull/21108>: unlimited, and nobody told; here `{}` is what the owner wrote."""
    job = SimulatedJob(SLOW)
    job.offer([("a/x", 1)] * 100)
    job.trigger()
    if is_restarted:
        job.stop()
    job.set_policies({"version": 1, "resource_groups": {"g": {"publish": {"weight": 2}}}})
    if is_restarted:
        job.restart()
    job.trigger()
    assert not job.waiting
    (told,) = [message for message in warnings.messages if "limit nothing" in message]
    assert f"policies of revision {job.revision} limit nothing: every row is admitted" in told
    job.trigger()
    job.restart()
    assert len([message for message in warnings.messages if "limit nothing" in message]) == 1, "once"


@pytest.mark.parametrize(
    "document",
    [
        SLOW, {"version": 1, "namespaces": {"a/x": {"write_throttling": "5*delay*10"}}},
        {"version": 1, "defaults": {"publish": {"max_message_bytes": 5}}},
        {"version": 1, "job": {"publish": {"request_percentage": 5}}},
        {"version": 1, "job": {"publish": {"messages_per_second": 5, "on_excess": "observe"}}},
    ],
)  # fmt: skip
def test_policies_that_limit_something_are_not_said_to_limit_nothing(
    document: dict[str, Any], warnings: pytest.LogCaptureFixture
) -> None:
    """<https://github.com/apache/kafka/pull/21108>: a warning where nothing is lost is read by nobody."""
    job = SimulatedJob({"version": 1, "tenants": {"b": SLOW["tenants"]["a"]}})
    job.set_policies(document)
    job.offer([("a/x", 1)])
    job.trigger()
    assert not warnings.messages


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_store_that_has_gone_back_is_followed_and_the_log_says_from_where_to_where(
    tmp_path: Path, *, is_restarted: bool, warnings: pytest.LogCaptureFixture
) -> None:
    """<https://github.com/apache/pulsar/issues/22504>: after a restart other policies than before, here a backup's."""
    stores = []
    for changes in (3, 1):
        service = PolicyService(MemoryStore(), clock_ms=lambda: 0)
        for number in range(changes):
            service.put("tenant", "a", {"publish": {"messages_per_second": 1 + number}}, ANN)
        stores.append(service.store)
    current, control = list(stores), tmp_path / "control"
    followed = FollowedStore("memory:", open_at=lambda _: current[0])
    first = plane(control, followed)
    current.pop(0)
    if is_restarted:
        plane(control, FollowedStore("memory:", open_at=lambda _: current[0]))
    else:
        followed._store = None
        first.next_epoch(first.next_epoch(NO_EPOCH))
    (told,) = warnings.messages
    assert told.startswith("the policy store has gone back from revision 3 to revision 1, which is in force")


def test_a_job_whose_policy_file_is_taken_away_keeps_its_limits_and_does_not_start_anew_without_them(
    tmp_path: Path,
) -> None:
    """<https://github.com/apache/pulsar/issues/22504>: policies that go while the process lives, and it dies then."""
    path = tmp_path / "policies.yaml"
    path.write_text(TEXT)
    policies = PolicyFile(path)
    before = policies.current()
    for content in (None, "", "tenants: {a: {publish: {messages_per_sec"):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        after = policies.current()
        assert after.document is before.document
        assert after.problem is not None
        with pytest.raises(ThrottleError):
            PolicyFile(path).current()
