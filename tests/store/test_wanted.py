"""Work that nobody waits for is given up, and leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from spark_throttle.errors import UnwantedError
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Change, check_wanted, while_wanted

ANN, TENANT = Author("ann"), Author("tom", tenant="acme")
FIVE = {"publish": {"messages_per_second": 5}}


@pytest.fixture
def service(tmp_path: Path) -> PolicyService:
    store = DeltaStore.create(str(tmp_path / "store"))
    names = [Change("namespace", f"acme/n{at}", "{}") for at in range(50)]
    group = [Change("tenant", "acme", '{"resource_group":"gold"}'), Change("resource_group", "gold", "{}")]
    store.commit([*names, *group], expected_revision=0, author=ANN, at_ms=0)
    service = PolicyService(store, clock_ms=lambda: 0)
    service.put("namespace", "acme/*", FIVE, ANN)
    return service


LONG: dict[str, Callable[[PolicyService], object]] = {
    "diff": lambda service: service.diff(0, 2),
    "document": lambda service: service.document(),
    "planned rollback": lambda service: service.planned_rollback(0),
    "rollback": lambda service: service.rollback(0, ANN),
    "put": lambda service: service.put("tenant", "acme", FIVE, ANN),
}


@pytest.mark.parametrize("name", LONG)
def test_work_that_nobody_waits_for_is_given_up_and_changes_nothing(service: PolicyService, name: str) -> None:
    before = list(service.store.scan())
    with while_wanted(lambda: False), pytest.raises(UnwantedError, match="nothing was changed"):
        LONG[name](service)
    assert service.store.revision() == 2
    assert list(service.store.scan()) == before


def test_change_that_was_given_up_at_any_moment_is_made_or_not(service: PolicyService) -> None:
    for moment in count():
        fresh = PolicyService(DeltaStore(service.store.location.removeprefix("delta:")), clock_ms=lambda: 0)
        asked = iter(range(moment))
        with while_wanted(lambda asked=asked: next(asked, None) is not None):  # type: ignore[misc] # bound now
            try:
                assert fresh.put("namespace", "acme/new", FIVE, TENANT).revision == 3
                break
            except UnwantedError:
                assert service.store.revision() == 2
    assert moment > 1


def test_commit_that_has_begun_is_made_though_nobody_waits(service: PolicyService) -> None:
    is_wanted = True
    commit = service.store.commit

    def begun(*args: object, **options: object) -> int:
        nonlocal is_wanted
        is_wanted = False
        check_wanted()
        return commit(*args, **options)  # type: ignore[arg-type] # as it is called

    service.store.commit = begun  # type: ignore[method-assign]
    with while_wanted(lambda: is_wanted):
        assert service.put("tenant", "acme", FIVE, ANN).revision == 3
