"""The API's description: checked in, true of the code, and true of what is answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.openapi import description
from spark_throttle.store.store import Author
from tests.admin.conftest import ServedApp
from tests.admin.fuzzing import fuzz

CHECKED_IN = Path(__file__).parents[2] / "conf" / "openapi.json"


def test_description_that_is_checked_in_is_that_of_the_code() -> None:
    assert json.loads(CHECKED_IN.read_text()) == json.loads(description()), "run `make openapi`"


def test_every_call_but_the_health_check_needs_a_token() -> None:
    document = json.loads(description())
    for path, calls in document["paths"].items():
        for call in calls.values():
            assert call["security"] == ([] if path == "/healthz" else [{"token": []}])


def test_every_change_that_may_be_tried_may_name_a_job_that_there_is_not() -> None:
    changes = [call for calls in json.loads(description())["paths"].values() for call in calls.values()]
    tried = [call for call in changes if "replay" in {each["name"] for each in call.get("parameters", ())}]
    assert len(tried) > 10
    assert [call["operationId"] for call in tried if "404" not in call["responses"]] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of schemathesis' and the test client's own making
def test_answers_are_as_described_and_nobody_writes_without_the_role(in_memory: ServedApp) -> None:
    in_memory.service.put("resource_group", "gold", {}, Author("ann"))
    in_memory.service.put("tenant", "acme", {"resource_group": "gold"}, Author("ann"))
    tally = fuzz(in_memory, examples=1, start=7)
    assert tally.requests.total() > 200
    assert max(tally.statuses) < 500
