"""A policy source that hangs holds up one batch, lifts no limit, and is heard again when it answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.source import PatientPolicies, PolicySnapshot

LONG_SECONDS = 60.0


def snapshot(per_second: int) -> PolicySnapshot:
    document = parse_policies(f"job: {{publish: {{messages_per_second: {per_second}}}}}")
    return PolicySnapshot(document, revision_of(document), None)


OLD, NEW = snapshot(1), snapshot(2)


class Source:
    """Answers what it is told to, when it is let."""

    def __init__(self) -> None:
        self.says: PolicySnapshot | Exception = OLD
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.has_answered = threading.Semaphore(0)
        self.calls = 0

    def current(self) -> PolicySnapshot:
        self.calls += 1
        self.may_answer.wait(LONG_SECONDS)
        try:
            if isinstance(self.says, Exception):
                raise self.says
            return self.says
        finally:
            self.has_answered.release()


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.may_answer.set()


def patient(source: Source, **seconds: float) -> PatientPolicies:
    return PatientPolicies(source, **{"patience_seconds": LONG_SECONDS, **seconds})


def test_source_that_answers_is_asked_at_every_call(source: Source) -> None:
    policies = patient(source)
    assert policies.current() is OLD
    assert policies.current() is OLD
    source.says = NEW
    assert policies.current() is NEW
    assert source.calls == 3


def test_source_that_hangs_leaves_the_last_policies_in_force_and_is_not_asked_again(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    policies = patient(source, patience_seconds=0.01)
    source_was = policies.current()
    source.may_answer.clear()
    source.says = NEW
    with caplog.at_level(logging.ERROR):
        late = policies.current()
    assert late.document is source_was.document
    assert "not read within 0.01 s" in str(late.problem)
    assert all(policies.current() is late for _ in range(100))
    assert source.calls == 2
    assert len(caplog.records) == 1


def test_answer_that_comes_late_counts(source: Source) -> None:
    policies = patient(source, patience_seconds=0.01)
    policies.current()
    source.may_answer.clear()
    assert policies.current().problem is not None
    source.says = NEW
    source.may_answer.set()
    answered = [source.has_answered.acquire(timeout=LONG_SECONDS) for _ in range(2)]
    assert all(answered)
    assert _until(policies.current, lambda found: found.problem is None) is NEW


def _until(ask: Callable[[], PolicySnapshot], is_wanted: Callable[[PolicySnapshot], bool]) -> PolicySnapshot:
    """Ask until the answer, which is on its way from one thread to the other, is there."""
    while not is_wanted(found := ask()):
        threading.Event().wait(0.001)
    return found


def test_first_policies_are_waited_for_and_then_asked_for_with_an_error(source: Source) -> None:
    source.may_answer.clear()
    with pytest.raises(ConfigurationError, match=r"not read within 0\.01 s; .* hang; check that it can be reached"):
        patient(source, first_patience_seconds=0.01).current()


def test_error_of_the_source_is_raised_where_it_was_asked(source: Source) -> None:
    source.says = PolicyError("job", "no")
    with pytest.raises(PolicyError, match="job: no"):
        patient(source).current()
