"""`Throttle.apply` in a pipeline: `spark-pipelines` runs it and ends well, and a full refresh begins anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

from spark_throttle.spark.spark_version import ends_when_drained
from tests.receiver import receiver
from tests.sessions import ROOT

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
def admitted():
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
    "api", "throttle_paced", {{"url": "{url}", "controlPath": "{root}/throttle", "namespace": "namespace"}}
)


@dp.append_flow(target="api")
def sent():
    events = SparkSession.active().readStream.schema("namespace string, id int").json("{root}/events")
    decided = throttle.apply(events, control_path="{root}/throttle")
    return decided.where("throttle.verdict = 'ADMIT'").drop("throttle")
"""


pytestmark = [
    pytest.mark.skipif(not ends_when_drained(pyspark.__version__), reason="refused on Spark 4.1"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a pipeline that has no flow yet."""
    for folder in ("flows", "events"):
        (tmp_path / folder).mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(root=tmp_path.as_uri()))
    return tmp_path


def test_flow_of_a_pipeline_is_throttled_and_a_full_refresh_begins_anew(root: Path) -> None:
    """<https://github.com/apache/spark/pull/52487> and #53303: a refresh that the fence refuses."""
    (root / "flows" / "admitted.py").write_text(FLOW.format(root=root))
    offer(root, range(50))
    run(root)
    assert admitted(root) == list(range(50))
    first = begun(root)
    offer(root, range(50, 60))
    run(root, "--full-refresh-all")
    assert admitted(root) == list(range(60))
    assert begun(root)[0] not in first, "the first epoch is another one"


def test_flow_of_a_pipeline_sends_to_a_paced_sink_which_the_pipeline_created(root: Path) -> None:
    with receiver() as record:
        (root / "flows" / "sent.py").write_text(SINK.format(root=root, url=record.url))
        offer(root, range(60))
        run(root)
    assert sorted(row["id"] for arrival in record.arrivals for row in arrival.rows) == list(range(60))
    slow = [arrival for arrival in record.arrivals if arrival.namespace == "acme/slow"]
    assert [row["id"] for arrival in slow for row in arrival.rows] == list(range(1, 60, 2))
    assert len({arrival.key for arrival in record.arrivals}) == len(record.arrivals)
    # What a batch brings of 30 rows at 20 a second takes its time, but for the first call of each batch.
    batches = {arrival.key.split("/")[1] for arrival in slow}
    assert slow[-1].at_ns - slow[0].at_ns >= (30 - len(batches) * 2) / 20 / 1.08 * 1e9


def offer(root: Path, ids: range) -> None:
    rows = [{"namespace": "acme/slow" if number % 2 else "acme/fast", "id": number} for number in ids]
    (root / "events" / f"{ids.start}.json").write_text("\n".join(map(json.dumps, rows)))


def run(root: Path, *options: str) -> None:
    """Run the pipeline, with a catalog that a second run finds again."""
    settings = {"spark.sql.warehouse.dir": f"{root}/warehouse", "spark.sql.catalogImplementation": "hive"}
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", *given, *options]
    kept = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    environment = {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment["SPARK_TESTING"] = "1"  # its server takes any port that is free
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]


def admitted(root: Path) -> list[int]:
    return sorted(ds.dataset(root / "warehouse" / "admitted", format="parquet").to_table()["id"].to_pylist())


def begun(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "throttle" / "epochs").iterdir())
