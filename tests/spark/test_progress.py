"""Progress in Spark's form counts the user's rows, from the reports of the decider."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_throttle.control.reports import report_of, write_report
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.core.usage import UsageReport, pack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.spark.control_look import ControlLook
from spark_throttle.spark.progress import ThrottleProgressListener, read_progress

SPARKS = {
    "id": "q1", "batchId": 4, "numInputRows": 42, "inputRowsPerSecond": 84.0, "processedRowsPerSecond": 21.0,
    "durationMs": {"addBatch": 5},
    "sources": [
        {"description": "FileStreamSource[/events]", "endOffset": {"logOffset": 0}},
        {"description": "PythonMicroBatchStream@1", "endOffset": {"epoch": 2, "file": "000000000002"}},
        {"description": "PythonMicroBatchStream@2", "endOffset": '{"epoch": 2, "file": "000000000002"}'},
        {"description": "RateStreamSource", "endOffset": "not JSON"},
    ],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}  # fmt: skip


def report(*, offered: int, admitted: int, rejected: int, waiting: int, invalid: int = 0) -> UsageReport:
    def pair(messages: int) -> Any:
        return np.array([[messages, 10 * messages, 0, 0]], dtype=np.int64)

    zeros = np.zeros(1, dtype=np.int64)
    return UsageReport(
        epoch=1, revision="r", now_ms=1_000, names=pa.array(["t/n"]), tenant=zeros, group=zeros,
        weight=zeros, offered=pair(offered), admitted=pair(admitted), rejected=pair(rejected), waiting=pair(waiting),
        demand=pair(waiting), observed_messages=zeros, delayed_ms=zeros, shared_micro=pair(0), due_ms=NEVER_MS,
        due_with_quotas_ms=NEVER_MS, filled_ms=NEVER_MS, invalid_messages=invalid,
    )  # fmt: skip


def written(root: Path) -> Directory:
    directory = Directory(str(root))
    write_report(directory, 4, pack_usage(report(offered=15, admitted=11, rejected=1, waiting=3, invalid=2)))
    return directory


def test_progress_counts_the_rows_of_the_user_and_leaves_the_rest_as_spark_has_it(tmp_path: Path) -> None:
    written(tmp_path)
    told = read_progress(json.dumps(SPARKS), ControlLook(str(tmp_path)))
    assert (told["numInputRows"], told["sink"]["numOutputRows"]) == (17, 11)
    assert (told["inputRowsPerSecond"], told["processedRowsPerSecond"]) == (34.0, 8.5)
    assert told["throttle"] == {
        "offered_messages": 17, "offered_bytes": 150, "offered_units": 0,
        "admitted_messages": 11, "admitted_bytes": 110, "admitted_units": 0,
        "rejected_messages": 3, "rejected_bytes": 10, "rejected_units": 0,
        "waiting_messages": 3, "waiting_bytes": 30, "waiting_units": 0,
        "sparkNumInputRows": 42,
    }  # fmt: skip
    assert [source["description"] for source in told["sources"]] == ["FileStreamSource[/events]", "RateStreamSource"]
    assert told["durationMs"] == {"addBatch": 5}


def test_batch_without_a_report_moved_nothing(tmp_path: Path) -> None:
    directory = written(tmp_path)
    assert report_of(directory, 4) is not None
    assert report_of(directory, 3) is None
    told = read_progress(json.dumps({**SPARKS, "batchId": 3}), ControlLook(str(tmp_path)))
    assert (told["numInputRows"], told["sink"]["numOutputRows"]) == (0, 0)


def test_listener_publishes_the_progress_of_the_queries_of_its_throttle_alone(tmp_path: Path) -> None:
    written(tmp_path)
    published: list[dict[str, Any]] = []
    listener = ThrottleProgressListener({"q1": ControlLook(str(tmp_path))}, published.append)
    for query in ("q1", "other"):
        progress = SimpleNamespace(id=query, json=json.dumps({**SPARKS, "id": query}))
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    assert [each["numInputRows"] for each in published] == [17]
