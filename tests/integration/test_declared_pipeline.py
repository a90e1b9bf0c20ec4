"""`Throttle.apply` in a pipeline: `spark-pipelines` runs it and ends well, and a full refresh begins anew.

Its server is that of the other tests over Connect, where a pipeline would start one for each run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyspark
import pytest

from spark_throttle.spark.spark_version import ends_when_drained
from tests.receiver import Arrival, receiver

if TYPE_CHECKING:
    from tests.integration.connect_server import ConnectServer

TABLE = "admitted_by_a_pipeline"
SPEC = """\
name: throttled
storage: {root}/storage
libraries: [{{glob: {{include: flows/**}}}}]
configuration: {{spark.sql.shuffle.partitions: "1"}}
"""

FLOW = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from spark_throttle.spark import Throttle

QUOTA = {{"messages_per_second": 20, "burst_seconds": 1}}
throttle = Throttle({{"version": 1, "namespaces": {{"acme/slow": {{"publish": QUOTA}}}}}}, "namespace", size="8")


@dp.table
def admitted_by_a_pipeline():
    events = SparkSession.active().readStream.schema("namespace string, id int").json("{root}/events")
    decided = throttle.apply(events, control_path="{root}/throttle")
    return decided.where("throttle.verdict = 'ADMIT'").drop("throttle")
"""


SINK = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from spark_throttle.spark import Throttle

QUOTA = {{"messages_per_second": 20, "burst_seconds": 1}}
policies = {{"version": 1, "namespaces": {{"acme/slow": {{"publish": QUOTA}}}}}}
throttle = Throttle(policies, "namespace", size="8", order_by=["id"])

dp.create_sink(
    "api", "throttle_paced", {{"url": "{url}", "controlPath": "{root}/paced", "namespace": "namespace"}}
)


@dp.append_flow(target="api")
def sent():
    events = SparkSession.active().readStream.schema("namespace string, id int").json("{root}/events")
    decided = throttle.apply(events, control_path="{root}/paced")
    return decided.where("throttle.verdict = 'ADMIT'").drop("throttle")
"""


pytestmark = [
    pytest.mark.skipif(not ends_when_drained(pyspark.__version__), reason="refused on Spark 4.1"),
    pytest.mark.timeout(600),
]


def test_flows_of_a_pipeline_are_throttled_or_paced_and_a_full_refresh_begins_anew(
    connect: ConnectServer, tmp_path: Path
) -> None:
    """One flow goes into a table, and one to a paced sink, which the pipeline created.

    <https://github.com/apache/spark/pull/52487> and #53303: a refresh that the fence refuses.
    """
    for folder in ("flows", "events"):
        (tmp_path / folder).mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(root=tmp_path.as_uri()))
    with receiver() as record:
        (tmp_path / "flows" / "admitted.py").write_text(FLOW.format(root=tmp_path))
        (tmp_path / "flows" / "sent.py").write_text(SINK.format(root=tmp_path, url=record.url))
        offer(tmp_path, range(60))
        run(tmp_path, connect)
        table = connect.warehouse / TABLE
        assert ids_of(table) == list(range(60))
        first = begun(tmp_path)
        offer(tmp_path, range(60, 70))
        run(tmp_path, connect, "--full-refresh", TABLE)
    check_sent(record.arrivals)
    assert ids_of(table) == list(range(70))
    assert begun(tmp_path)[0] not in first, "the first epoch is another one"


def check_sent(arrivals: list[Arrival]) -> None:
    """Each row was sent once, in its namespace's order and no faster than its quota."""
    assert sorted(row["id"] for arrival in arrivals for row in arrival.rows) == list(range(60))
    slow = [arrival for arrival in arrivals if arrival.namespace == "acme/slow"]
    assert [row["id"] for arrival in slow for row in arrival.rows] == list(range(1, 60, 2))
    assert len({arrival.key for arrival in arrivals}) == len(arrivals)
    # What a batch brings of 30 rows at 20 a second takes its time, but for the first call of each batch.
    batches = {arrival.key.split("/")[1] for arrival in slow}
    assert slow[-1].at_ns - slow[0].at_ns >= (30 - len(batches) * 2) / 20 / 1.08 * 1e9


def offer(root: Path, ids: range) -> None:
    rows = [{"namespace": "acme/slow" if number % 2 else "acme/fast", "id": number} for number in ids]
    (root / "events" / f"{ids.start}.json").write_text("\n".join(map(json.dumps, rows)))


def run(root: Path, server: ConnectServer, *options: str) -> None:
    """Run the pipeline on the server."""
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    command = [program, "run", "--remote", server.remote, *options]
    kept = {name: value for name, value in server.environment.items() if name != "PYSPARK_SUBMIT_ARGS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    environment = {
        **kept,
        "PATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]


def ids_of(table: Path) -> list[int]:
    return sorted(ds.dataset(table, format="parquet").to_table()["id"].to_pylist())


def begun(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "throttle" / "epochs").iterdir())
