"""Spark's part in tests of the control source's reader."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import EpochName
from spark_throttle.control.reports import write_report
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.usage import UsageReport, pack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.spark.rows.frames import FRAME_SCHEMA
from spark_throttle.spark.sources.control_source import ThrottleControlReader

START_MS = 1_760_000_000_000
POLICIES = "{job: {publish: {messages_per_second: 100}}, namespaces: {a/x: {}, b/y: {}, c/z: {}}}"
LIMIT: Any = None


@dataclass
class Driver:
    """Spark's part: a checkpoint, offsets, batches that report; and a clock that only pauses advance."""

    path: Path
    more: dict[str, str] = field(default_factory=dict)
    now_ms: int = START_MS
    pauses: list[float] = field(default_factory=list)
    on_pause: Callable[[], object] = lambda: None
    clock: Clock | None = None
    """The clock to use instead of the one that only pauses move on."""

    batches: int = 0
    reader: ThrottleControlReader = field(init=False)
    offset: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self, **more: str) -> None:
        self.more |= more
        options = {
            "controlpath": str(self.path), "direction": "publish", "batchesretained": "100",
        }  # fmt: skip
        options |= (
            self.more
            if {"policyfile", "policyobject", "policytable"} & set(self.more)
            else {"policytext": POLICIES} | self.more
        )
        self.reader = ThrottleControlReader(options, clock=self.clock or self.now, pause=self.pause)

    def now(self) -> int:
        return self.now_ms

    def pause(self, seconds: float) -> None:
        assert len(self.pauses) < 1_000
        self.pauses.append(seconds)
        self.now_ms += round(1000 * seconds)
        self.on_pause()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        self.offset = self.reader.latestOffset(start, LIMIT)
        return self.offset

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for partition in self.reader.partitions(start, end):
            copied = pickle.loads(pickle.dumps(self.reader))  # noqa: S301 - our own bytes, as Spark ships it
            for batch in copied.read(partition):
                assert batch.schema == FRAME_SCHEMA
                found += batch.to_pylist()
        return found

    def batch(
        self,
        *,
        moved: int = 0,
        waiting: int = 0,
        due_ms: int = NEVER_MS,
        due_with_quotas_ms: int | None = None,
        filled_ms: int | None = None,
    ) -> None:
        """Run a batch of one flow."""
        name = EpochName(self.offset["epoch"], self.offset["file"])
        revision = self.reader.plane().epochs.load(name).revision
        one, pair = np.ones(1, np.int64), np.array([[moved, 10 * moved, 0, 0]])
        policy = self.reader.plane().epochs.policy(self.reader.plane().epochs.load(name))
        held = np.array([[waiting, 10 * waiting, 0, 0]])
        report = UsageReport(
            name.number, revision, self.now_ms, pa.array(["a/x"]), -one, -one, one, pair, pair, 0 * pair, held, pair,
            0 * one, 0 * one, SharedBuckets.full(policy, now_ms=0).balance_micro, due_ms,
            due_ms if due_with_quotas_ms is None else due_with_quotas_ms,
            due_ms if filled_ms is None else filled_ms,
        )  # fmt: skip
        write_report(Directory(str(self.path)), self.batches, pack_usage(report))
        self.batches += 1
