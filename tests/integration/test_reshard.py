"""The queues and balances of a stopped query are handed over to another number of shards, through real Spark."""

from __future__ import annotations

from collections import defaultdict

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.cli.output import Exit
from spark_throttle.checkpoint.manifest import bound_manifest
from spark_throttle.command_line.app import app
from spark_throttle.files.storage import Directory
from spark_throttle.spark import pipeline, reshard
from spark_throttle.spark.offline import handing_over
from spark_throttle.spark.state_reader import read_queued
from tests.integration.streams import SCHEMA, Lake, finish, policies, publish

pytestmark = pytest.mark.usefixtures("much_later")

SHUT = policies(tenants={"shut": publish(messages_per_second=0)})


class Killed(BaseException):
    """The death of the process that changes the number."""


@pytest.mark.thorough
def test_rows_that_wait_come_out_once_after_other_numbers_of_shards(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "INLINE_BYTES", 1_000)
    lake.offer((i, f"shut/n{i % 7}", 10) for i in range(300))
    lake.run(SHUT, shards=2)

    def dies(*_args: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(handing_over, "reshard", dies)
        with pytest.raises(Killed):
            reshard(lake.spark, lake.checkpoint, 5)
    assert bound_manifest(Directory(str(lake.control))).shards == 2
    assert reshard(lake.spark, lake.checkpoint, 5) == 2

    lake.offer((i, f"shut/n{i % 7}", 10) for i in range(300, 330))
    first = lake.last_batch() + 1
    lake.run(SHUT, shards=5)
    lake.crash_in(first)  # the batch that brought the shards their states is run again
    lake.run(SHUT, shards=5)
    waiting = read_queued(lake.spark, lake.checkpoint).collect()
    assert sorted(row["id"] for row in waiting) == list(range(330))

    refused = CliRunner().invoke(app, ["reshard", "--checkpoint", lake.checkpoint, "--shards", "5"])
    assert (refused.exit_code, refused.stdout) == (Exit.INVALID, "")
    assert "has 5 shards already" in refused.stderr
    done = CliRunner().invoke(app, ["reshard", "--checkpoint", lake.checkpoint, "--shards", "1"])
    assert (done.exit_code, "had 5 shards and has 1" in done.stdout) == (0, True)
    query = lake.run({}, shards=1)
    assert query.recentProgress[-1]["stateOperators"][0]["numRowsTotal"] == 1
    assert lake.admitted_ids == list(range(330))
    of_namespace = defaultdict(list)
    for number, name, _ in lake.admitted:
        of_namespace[name].append(number)
    assert all(rows == sorted(rows) for rows in of_namespace.values())


@pytest.mark.thorough
def test_rows_that_wait_as_references_are_handed_over(lake: Lake) -> None:
    def run(document: object, shards: int) -> None:
        throttle = lake.throttle(document, shards=shards)
        stream = throttle.read_stream(lake.spark).schema(SCHEMA).parquet(lake.path("events"))
        writer = throttle.write_stream(stream).option("throttle.source", "references").foreachBatch(lake.keep)
        finish(writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True).start())

    lake.offer((i, f"shut/n{i % 5}", 10) for i in range(60))
    run(SHUT, 1)
    assert reshard(lake.spark, lake.checkpoint, 3) == 1
    lake.offer((i, f"shut/n{i % 5}", 10) for i in range(60, 70))
    run(SHUT, 3)
    run({}, 3)
    assert lake.admitted_ids == list(range(70))
