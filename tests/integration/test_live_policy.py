"""Policies change while a query runs, without a restart; a broken file changes nothing and is said loudly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.streams import Lake, policies, publish

OPEN = json.dumps(policies(tenants={"t": publish(messages_per_second=1_000_000)}))
SHUT = json.dumps(policies(tenants={"t": publish(messages_per_second=0, on_excess="reject")}))


def replace_policies(path: Path, text: str) -> None:
    """Put a whole new file in the place of the old one."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.rename(path)


@pytest.mark.thorough
def test_replaced_policy_file_acts_in_the_next_batch(lake: Lake, pytestconfig: pytest.Config) -> None:
    path = lake.root / "policies.yaml"
    replace_policies(path, OPEN)
    throttle = lake.throttle(str(path))
    writer = lake.writer(throttle).trigger(processingTime="0 seconds").foreachBatch(lake.keep)
    query = writer.usage(lake.path("usage")).start()
    revisions = []
    for number, text in enumerate([OPEN, SHUT, "tenants: [", "tenants: {t: {publish: {rate: 3}}}", OPEN]):
        replace_policies(path, text)
        lake.offer([(number, "t/n", 10)])
        query.processAllAvailable()
        revisions.append(throttle.status(query).revision)
    query.stop()
    opened, shut = revisions[0], revisions[1]
    assert opened != shut
    assert revisions == [opened, shut, shut, shut, opened]
    assert lake.admitted_ids == [0, 4]
    assert lake.rejected_ids == [1, 2, 3]
    epochs = sorted((row["epoch"], row["revision"]) for row in lake.usage("job"))
    changes = [revision for (_, revision), (_, before) in zip(epochs[1:], epochs, strict=False) if revision != before]
    assert changes == [shut, opened]
    said = _said_on_standard_error(pytestconfig)
    assert said is None or said.count("stays in force") == 2
    assert said is None or "tenants.t.publish.rate: unknown key" in said


def _said_on_standard_error(config: pytest.Config) -> str | None:
    """Return what the driver and its processes have said in this test; `None` where pytest does not listen."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None or not capture.is_globally_capturing():
        return None
    said: str = capture.read_global_capture()[1]
    return said


@pytest.mark.thorough
def test_restart_takes_the_policies_of_its_own_time(lake: Lake) -> None:
    """A batch that is run again is decided by the policies that it was planned with, those after it by the new ones."""
    lake.offer([(0, "t/n", 10)])
    lake.run(json.loads(OPEN))
    lake.offer([(1, "t/n", 10)])
    lake.run(json.loads(SHUT))
    assert (lake.admitted_ids, lake.rejected_ids) == ([0], [1])
    lake.crash_in(max(row["batch"] for row in lake.rejected))
    lake.offer([(2, "t/n", 10)])
    lake.run(json.loads(OPEN))
    assert (lake.admitted_ids, lake.rejected_ids) == ([0, 2], [1])
