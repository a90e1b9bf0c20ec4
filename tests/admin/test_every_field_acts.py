"""A quota that is accepted is applied: every field of a group, written over the API, changes what a job decides.

`tests/policy/test_every_field_acts.py` says so of every field of every document.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from spark_throttle.admin.api.pip82_calls import FIELDS
from spark_throttle.policy.model import Direction
from spark_throttle.policy.quotas import GUARANTEES, Quota
from spark_throttle.store.memory_store import MemoryStore
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import Decided, MadeUpJob
from tests.policy.test_every_field_acts import QUOTA

NAME = "acme/in"


def decided(job: MadeUpJob) -> list[Decided]:
    """Return what three batches become, of a namespace in the group gold and one in the group iron."""
    for _ in range(3):
        job.batch({NAME: 20, "other/in": 20}, units=1000)
    return job.decided


class Trial:
    """Two jobs that follow two stores, which differ in one field of a group that was written over the API."""

    def __init__(self, serve: Callable[..., ServedApp], folder: Path, direction: Direction) -> None:
        self.sides = []
        for side in ("without", "with"):
            store = MemoryStore()
            client = serve(store).client()
            loose = {f"{direction}RateInMsgs": 100}
            for path, body in (
                ("resourcegroup/gold", {}), ("resourcegroup/iron", loose), ("tenants/acme/resourcegroup/gold", None),
                ("tenants/other/resourcegroup/iron", None),
            ):  # fmt: skip
                assert client.put(f"/admin/v2/{path}", json=body).status_code == 200
            self.sides.append((client, MadeUpJob(folder / side, store, direction=direction)))

    def put_job(self, values: dict[str, Any]) -> None:
        for client, _ in self.sides:
            assert client.put("/admin/v2/policy/job", json=values).status_code == 200

    def put(self, group: str, direction: Direction, without: dict[str, Any], values: dict[str, Any]) -> None:
        for (client, _), quota in zip(self.sides, (without, values), strict=True):
            body = {field: quota[key] for field, (of, key) in FIELDS.items() if of == direction and key in quota}
            answer = client.put(f"/admin/v2/resourcegroup/{group}?yes=true", json=body)  # a quota of 0 is confirmed
            assert answer.status_code == 200, answer.text

    def differs(self) -> bool:
        without, with_it = (decided(job) for _, job in self.sides)
        return without != with_it


@pytest.fixture
def trial(serve: Callable[..., ServedApp], tmp_path: Path) -> Callable[[Direction], Trial]:
    return lambda direction: Trial(serve, tmp_path, direction)


@pytest.mark.slow
@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("key", QUOTA)
def test_field_of_a_group_acts(trial: Callable[[Direction], Trial], key: str, direction: Direction) -> None:
    made = trial(direction)
    if key == "weight":
        made.put_job({direction: {"messages_per_second": 6, "burst_seconds": 1}})
    if key in GUARANTEES:
        amount = next((each for each in ("bytes", "units") if each in key), None)
        have = {f"{amount}_per_second": 6_000} if amount else {"messages_per_second": 6}
        have |= {"request_percentage": 100} if "percentage" in key else {}
        made.put_job({direction: {**have, "burst_seconds": 1}})
    beside, value = QUOTA[key]
    made.put("gold", direction, beside, beside | {key: value})
    assert made.differs()


def test_field_that_acts_nowhere_is_noted_in_the_answer(serve: Callable[..., ServedApp]) -> None:
    answer = serve(MemoryStore()).client().put("/admin/v2/resourcegroup/gold", json={"publishBurstInSeconds": 3})
    assert answer.status_code == 200
    assert any("burst_seconds" in note for note in answer.json()["notes"])


def test_trials_are_of_every_field() -> None:
    """A field that is added without a trial fails here."""
    assert {key for _, key in FIELDS.values()} == set(Quota.model_fields) == set(QUOTA)


@pytest.mark.parametrize("field", FIELDS)
def test_field_of_pip_82_is_the_field_of_the_document(serve: Callable[..., ServedApp], field: str) -> None:
    served = serve(MemoryStore())
    direction, key = FIELDS[field]
    value = {"on_excess": "reject"}.get(key, 3)
    assert served.client().put("/admin/v2/resourcegroup/gold", json={field: value}).status_code == 200
    assert served.service.get("resource_group", "gold").values == {direction: {key: value}}
