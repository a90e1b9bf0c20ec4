"""Policies change while a query runs, without a restart; a broken file changes nothing and is said loudly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.streams import Lake, policies, publish

if TYPE_CHECKING:
    from spark_throttle.spark import Throttle

OPEN = policies(tenants={"t": publish(messages_per_second=1_000_000)})
SHUT = policies(tenants={"t": publish(messages_per_second=0, on_excess="reject")})


def replace_policies(path: Path, text: str) -> None:
    """Put a whole new file in the place of the old one."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.rename(path)


def test_replaced_policy_file_acts_in_the_next_batch(lake: Lake, pytestconfig: pytest.Config) -> None:
    path = lake.root / "policies.yaml"
    replace_policies(path, json.dumps(OPEN))
    throttle = lake.throttle(str(path))
    writer = lake.writer(throttle).trigger(processingTime="0 seconds").format("delta")
    query = writer.rejected("delta", path=lake.path("rejected")).usage(lake.path("usage")).start(lake.path("admitted"))
    revisions = []
    for number, text in enumerate([json.dumps(OPEN), json.dumps(SHUT), "tenants: [", "tenants: {t: {publish: {rate: 3}}}", json.dumps(OPEN)]):
        replace_policies(path, text)
        lake.offer([(number, "t/n", 10)])
        query.processAllAvailable()
        revisions.append(throttle.status(query).revision)
    query.stop()
    assert lake.ids("admitted") == [0, 4]
    assert lake.ids("rejected") == [1, 2, 3]
    opened, shut = revisions[0], revisions[1]
    assert revisions == [opened, shut, shut, shut, opened]
    epochs = lake.table("usage", "epoch", "revision")
    assert {revision for _, revision in epochs} == {opened, shut}
    assert sorted(epochs) == sorted(epochs, key=lambda row: row[0])
