"""A digest that does not say what its batch has is refused; it is never counted in silence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.errors import DamagedError
from spark_throttle.spark.move.answer import decided_in
from spark_throttle.spark.rows import digest
from spark_throttle.spark.rows.digest import digest_of
from spark_throttle.spark.rows.frames import ORDER_PREFIX, SIZE, FrameKind, decode, ipc_stream
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.decided_worlds import DecidedJob
from tests.spark.move.played import START_MS, control_block, with_helpers
from tests.spark.move.test_decider import POLICY, Row, answer_of, arrivals, digests, run, source_file
from tests.spark.move.worlds import StagedJob

CONTROL = (FrameKind.CONTROL, control_block(POLICY))
OPEN = make_policy()


def altered(
    row: Row, *, first: int | None = None, change: Callable[[pa.Table], pa.Table] | None = None, **of_file: object
) -> Row:
    """Return a digest that says something else."""
    table = decode(row[1])
    metadata: dict[bytes, Any] = dict(table.schema.metadata)
    table = table if change is None else change(table)
    file = json.dumps(json.loads(metadata[b"throttle.file"]) | of_file)
    said = {b"throttle.file": file, b"throttle.first": metadata[b"throttle.first"] if first is None else str(first)}
    return row[0], bytes(ipc_stream(table.replace_schema_metadata(said)))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Return the two digests of a file of eight rows."""
    monkeypatch.setattr(digest, "FRAME_ROWS", 4)
    return digests(arrivals(list(range(8))), "a")


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        (lambda two: [*two, *two], "has 8 rows, and its digest 16"),
        (lambda two: [*two, two[0]], "has 8 rows, and its digest 12"),
        (lambda two: [two[0], two[0]], "a row twice"),
        (lambda two: [two[0], altered(two[1], first=400)], "not in the file"),
        (lambda two: [two[0], altered(two[1], first=-4)], "not in the file"),
        (lambda two: [*two, *(altered(row, size_bytes=7) for row in two)], "it describes the file in two ways"),
        (lambda two: [altered(two[0], rows=4), two[1]], "it describes the file in two ways"),
        (lambda two: [altered(two[0], change=lambda rows: rows.slice(0, 0), name="b"), *two], "b .*and its digest 0"),
        (lambda two: [two[0], altered(two[1], change=lambda rows: rows.drop_columns([SIZE]))], "has other columns"),
    ],
)
def test_digests_that_do_not_have_each_row_of_their_file_once_are_refused(
    two: list[Row], lie: Callable[[list[Row]], list[Row]], problem: str
) -> None:
    with pytest.raises(DamagedError, match=problem):
        run([CONTROL, *lie(two)], None)


def test_row_of_a_source_file_that_comes_twice_is_refused() -> None:
    first, second = source_file([1, 4, 6, 9], 17, ["t/a"] * 4)
    for came in ([first, second, first], [first, first], [altered(row, rows=5) for row in (first, second)]):
        with pytest.raises(DamagedError, match="a row twice, or one that is not in the file"):
            run([CONTROL, *came], None)


def test_file_that_the_state_still_has_does_not_come_again(two: list[Row]) -> None:
    slow = make_policy(default=Namespace(limit(messages_per_second=1)))
    _, state = run([(FrameKind.CONTROL, control_block(slow)), *two], None)
    again = (FrameKind.CONTROL, control_block(None, epoch=2, now_ms=START_MS + 1_000))
    with pytest.raises(DamagedError, match="it is of an earlier batch"):
        run([again, *two], state, now_ms=START_MS + 1_000)


def test_order_in_which_the_digests_of_a_file_come_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "FRAME_ROWS", 2)
    rows = with_helpers(pa.table({"id": [0, 1, 2, 3]}), ["t/a", "t/b", "t/c", "t/a"], [10] * 4)
    leave_as = pa.array([1, 2, 3, 0])
    rows = rows.set_column(rows.column_names.index(f"{ORDER_PREFIX}000"), f"{ORDER_PREFIX}000", leave_as)
    first, second = digests(rows)
    outcomes = [run([CONTROL, first, second], None, seed=seed) for seed in range(6)]
    assert not any(file.lies_in_order for file in answer_of(outcomes[0][0]).files), "of t/a the last row leaves first"
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_digest_that_cannot_be_read_is_refused(two: list[Row]) -> None:
    whole = two[0][1]
    for frame in (b"", whole[:-40], whole[: len(whole) // 2], bytes(99), altered(two[0], unknown=1)[1]):
        with pytest.raises(DamagedError, match=r"it cannot be read .*; run the batch again"):
            digest_of(frame)


@pytest.mark.parametrize("content", [None, b"PAR1"])
def test_staged_file_that_is_gone_or_cut_short_does_not_get_into_the_table(
    tmp_path: Path, content: bytes | None
) -> None:
    job, events = StagedJob(tmp_path, OPEN), [("t/n", n) for n in range(5)]
    pieces = job.stage(0, [events])
    (file,) = job.table.glob("part-*")
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(DamagedError, match=f"staged file {file.name} .* (it is gone|it has 4 bytes, and had)"):
        job.finish(0, pieces)
    assert not job.committed
    assert job.attempt(0, [events]), "the batch is staged anew when it is run again"
    assert job.committed == Counter(events)


def test_digests_of_another_querys_files_are_refused(tmp_path: Path) -> None:
    slow = make_policy(default=Namespace(limit(messages_per_second=1, burst_seconds=0)))
    for name, policy in {"open": OPEN, "slow": slow}.items():
        theirs, mine = (StagedJob(tmp_path / f"{name} {job}", policy) for job in "ab")
        pieces = theirs.stage(0, [[("t/n", n) for n in range(20)]])
        with pytest.raises(DamagedError, match=r"it is gone|it cannot be read"):
            mine.finish(0, pieces)
        assert not mine.committed


def test_decided_stream_refuses_files_of_another_query(tmp_path: Path) -> None:
    theirs, mine = (DecidedJob(tmp_path / name, OPEN) for name in "ab")
    frames, _ = mine.decide(0, theirs.stage(0, [[("t/n", 1)]]))
    assert decided_in((row["kind"], row["frame"]) for row in frames.rows).answer is not None
    with pytest.raises(DamagedError, match="it cannot be read"):
        list(mine.rows(0, frames.rows))
