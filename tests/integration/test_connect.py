"""The library runs on Spark Connect, where there is neither a context nor a JVM object to touch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from spark_throttle.spark.reference_pipeline import REFERENCES, STAGED
from spark_throttle.spark.spark_version import ends_when_drained
from tests.integration.every_type import WAYS
from tests.sessions import ROOT

if TYPE_CHECKING:
    from tests.integration.connect_server import ConnectServer

_LONGEST_SECONDS = 1_200
"""For wide rows; pytest itself ends a test that takes longer than its kind may."""


@pytest.mark.skipif(not ends_when_drained(pyspark.__version__), reason="its queries end while rows wait")
@pytest.mark.timeout(900)
def test_throttled_queries_run_on_spark_connect_also_for_a_client_that_sees_nothing_of_its_servers_disk(
    connect: ConnectServer, tmp_path: Path
) -> None:
    """<https://github.com/apache/spark/pull/55410>: a batch has a session of its own; `make versions` runs 4.3."""
    told = told_by(connect, str(tmp_path))
    slow, bad, shut, free = (list(range(tenant, 100, 4)) for tenant in range(4))
    assert told["session"] == "pyspark.sql.connect.session"
    assert told["admitted"] == told["kept"] == sorted(slow + free)
    assert told["rejected"] == bad
    assert told["referred"] == [told["admitted"], bad]
    assert told["ways"] == [STAGED, REFERENCES]
    assert told["staged"] == [sorted(slow + shut + free), bad]
    assert told["queued"] == shut
    assert told["usage"] == [50, 25]
    assert told["refused"] == ["namespace has uuid()", "namespace depends on now()", "namespace depends on uuid()"]
    assert told["status"]
    assert told["offered"] == 100
    assert told["spans"] == 50
    assert told["progress"]["throttle"]["waiting_messages"] == len(shut)
    assert len(told["progress"]["sources"]) == 1
    check_client(told["client"], admitted=sorted(slow + free), rejected=bad, queued=shut)


@pytest.mark.thorough
def test_all_types_pass_every_way_unharmed_on_spark_connect(connect: ConnectServer, tmp_path: Path) -> None:
    told = told_by(connect, str(tmp_path), "types")
    assert told == dict.fromkeys(WAYS, "6 rows, all as they were")


def told_by(server: ConnectServer, *arguments: str) -> Any:
    """Return what `connect_query` prints last, which is JSON."""
    command = [sys.executable, "-m", "tests.integration.connect_query", *arguments]
    ran = subprocess.run(
        command, cwd=ROOT, env=server.environment, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def check_client(told: dict[str, Any], *, admitted: list[int], rejected: list[int], queued: list[int]) -> None:
    """Check what a client says that sees an empty directory in place of the server's."""
    assert told["seen_at_first"] == told["seen_at_last"] == []
    assert (told["admitted"], told["rejected"], told["queued"]) == (admitted, rejected, queued)
    assert told["reasons"] == ["quota"]
    assert told["usage"] == [len(admitted), len(rejected)]
    assert told["status"] == [1, len(queued)]
    assert told["explained"][:2] == ["defaults", len(queued)]
    assert "a quota of 0 holds it" in told["explained"][2][-1]
    assert (told["progress"], told["published"]) == (len(queued), 100)
    refused = told["refused"]
    assert "the namespace has 0 bytes" in refused["explain"]
    assert "in the query: " in refused["columns"]
    assert "rows that wait in the queue have the columns ['at'], which the stream no longer has" in refused["columns"]
    assert "in a process that sees both: a client of Spark Connect may see neither" in refused["drain"]
    assert "there is no policy store" in refused["store"]
