"""Waiting rows outside the state: against a list, through checkpoints that are put back, and with damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.state import DELETED_FILES, NO_FILES, QueueFiles, StoredState
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import unpack
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.queue_frames import (
    FOLDER,
    INLINE_BYTES,
    FramePlace,
    QueueFolder,
    QueueFrames,
    QueueStorage,
)
from spark_throttle.spark.rows.frames import FRAME_BYTES, FrameKind
from spark_throttle.testing.simulation.disk import MemoryDirectory
from tests.effort import examples
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.spark.move.played import START_MS, PlayedDecider, State, column, group_state, state_in, with_helpers
from tests.spark.move.test_decider import KEY, batch, ids_of, pieces
from tests.spark.move.test_decider_batch import ids
from tests.spark.move.test_queue_frames import table


class CountedDirectory(MemoryDirectory):
    """A directory in memory that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__({}, lambda _: None, "memory")
        self.parts: list[tuple[str, int, int]] = []
        self.written: list[str] = []

    def read_part(self, name: str, first_byte: int, size_bytes: int) -> bytes | None:
        self.parts.append((name, first_byte, size_bytes))
        return super().read_part(name, first_byte, size_bytes)

    def write(self, name: str, content: bytes) -> None:
        self.written.append(name)
        super().write(name, content)


def folder_of(directory: Directory, inline_bytes: int = 0, kept_epochs: int = 3) -> QueueFolder:
    return QueueFolder(directory, inline_bytes=inline_bytes, kept_epochs=kept_epochs)


def everyone(queue: QueueFrames) -> np.ndarray:
    return np.ones(len(queue.frame_of_row), dtype=np.bool_)


def rows_of(queue: QueueFrames, directory: Directory) -> list[int]:
    tables = queue.rows(everyone(queue), folder_of(directory))
    return [row for part in tables for row in part.column(0).to_pylist()]


def bytes_in_state(queue: QueueFrames) -> int:
    return sum(len(frame) for frame in queue.frames if FramePlace.of(frame) is None)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 20, 4_000]), st.integers(0, 2**32)), max_size=8),
    st.sampled_from([0, 2_000, 100_000]),
)
def test_queue_with_files_is_a_list_of_rows(steps: list[tuple[int, int, int]], inline_bytes: int) -> None:
    directory, queue, files = CountedDirectory(), QueueFrames.empty(), NO_FILES
    expected, total = list[int](), 0
    for epoch, (joining, width, seed) in enumerate(steps, 1):
        folder = folder_of(directory, inline_bytes)
        rng = np.random.default_rng(seed)
        stays = rng.random(len(expected)) < rng.choice([0, 0.3, 0.9, 1])
        leaving = [row for part in queue.rows(~stays, folder) for row in part.column(0).to_pylist()]
        assert leaving == [i for i, stay in zip(expected, stays, strict=True) if not stay]
        new = list(range(total, total + joining))
        total += joining
        queue, files = queue.after(stays, table(new, width=width) if new else None, folder).moved(files, epoch, folder)
        folder.delete(files.deletable)
        expected = [i for i, stay in zip(expected, stays, strict=True) if stay] + new
        assert rows_of(queue, directory) == expected
        assert (np.diff(queue.frame_of_row) >= 0).all()
        assert bytes_in_state(queue) <= inline_bytes
        assert {f"{FOLDER}/{name}" for name in (*files.waiting, *(name for name, _ in files.left))} == set(
            directory.files
        )


def filled(directory: Directory, *, rows: int = 40, width: int = 9_000, inline_bytes: int = 0) -> QueueFrames:
    folder = folder_of(directory, inline_bytes)
    queue = QueueFrames.empty().after(np.zeros(0, np.bool_), table(list(range(rows)), width=width), folder)
    return queue.moved(NO_FILES, 1, folder)[0]


@pytest.mark.slow
def test_frames_of_one_batch_go_to_one_file() -> None:
    directory = CountedDirectory()
    queue = filled(directory, rows=4_000)
    assert len(queue.frames) > 20
    assert len(directory.written) == 1
    assert sum(map(len, queue.frames)) < 150 * len(queue.frames)


def test_file_of_the_same_number_with_other_rows_is_another_file() -> None:
    # As after a checkpoint was put back: a run that is not dead yet may still need the first one.
    directory = CountedDirectory()
    first, second = filled(directory, rows=10), filled(directory, rows=20)
    assert rows_of(first, directory) == list(range(10))
    assert rows_of(second, directory) == list(range(20))


def test_few_bytes_stay_in_the_state() -> None:
    directory = CountedDirectory()
    queue = filled(directory, rows=100, inline_bytes=INLINE_BYTES)
    assert directory.written == []
    assert bytes_in_state(queue) > 100 * 9_000


def test_queue_without_a_bound_stays_in_the_state_and_reads_what_lies_in_files() -> None:
    directory = CountedDirectory()
    queue = filled(directory, rows=10)
    folder = QueueFolder(directory, inline_bytes=None)
    queue = queue.after(everyone(queue), table(list(range(10, 2_000)), width=2_000), folder)
    queue, _ = queue.moved(QueueFiles(1), 2, folder)
    assert len(directory.written) == 1
    assert rows_of(queue, directory) == list(range(2_000))


def test_batch_reads_neighbouring_frames_at_once_and_each_frame_once() -> None:
    directory = CountedDirectory()
    queue = filled(directory, rows=2_000)
    folder = folder_of(directory)
    leaves = np.zeros(2_000, dtype=np.bool_)
    leaves[:300] = leaves[1_900:] = True
    assert len(queue.rows(leaves, folder)) >= 3
    assert len(directory.parts) == 2
    queue.after(~leaves, None, folder)
    assert len(directory.parts) == 2
    assert sum(size for _, _, size in directory.parts) < sum(map(len, directory.files.values())) // 2


def test_batch_of_which_no_row_leaves_reads_no_file() -> None:
    directory = CountedDirectory()
    queue = filled(directory)
    folder = folder_of(directory)
    queue.after(everyone(queue), table([99]), folder).moved(QueueFiles(1), 2, folder)
    assert directory.parts == []


def test_what_small_frames_leave_is_joined_to_frames_of_the_usual_size() -> None:
    directory, queue, files = CountedDirectory(), QueueFrames.empty(), NO_FILES
    for step in range(30):  # frames of 90 kB each, of which one row in ten stays
        folder = folder_of(directory, inline_bytes=1 << 30)
        queue = queue.after(everyone(queue), table([10 * step + i for i in range(10)], width=9_000), folder)
    folder = folder_of(directory, inline_bytes=1 << 30)
    queue = queue.after(np.arange(300) % 10 == 0, None, folder)
    assert len(queue.frames) == 30
    queue, files = queue.moved(files, 1, folder_of(directory, inline_bytes=200_000))
    assert len(queue.frames) == 2  # the last one is small, and stays in the state
    assert rows_of(queue, directory) == list(range(0, 300, 10))


def test_rows_of_another_schema_are_not_joined() -> None:
    directory, folder = CountedDirectory(), folder_of(CountedDirectory(), 1 << 30)
    queue = QueueFrames.empty()
    for number, name in enumerate("abba"):
        queue = queue.after(everyone(queue), table([number], column=name), folder)
    queue = queue.after(everyone(queue), table([4], width=80_000), folder)
    queue, _ = queue.moved(NO_FILES, 1, folder_of(directory, 20_000))
    found = queue.rows(everyone(queue), folder_of(directory))
    assert [part.column_names[0] for part in found] == ["a", "b", "a", "id"]


@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_file_that_is_not_as_it_was_written_stops_the_batch(tmp_path: Path, damage: str) -> None:
    directory = Directory(str(tmp_path))
    queue = filled(directory)
    (path,) = (tmp_path / FOLDER).iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if damage == "flipped" else bytes(content[: len(content) // 2]))
    if damage == "gone":
        path.unlink()
    with pytest.raises(DamagedError, match=rf"the file of waiting rows .*{path.name}.* restore it from a backup"):
        rows_of(queue, directory)


# The decider's state


POLICY = make_policy(default=Namespace(limit(messages_per_second=100, burst_seconds=1)))


def play(decider: PlayedDecider, directory: Directory, first: int, count: int, **given: int) -> list[object]:
    """Offer rows to a decider whose queue lies in files, and return those that leave."""
    rows = ids(count, ["a/x"], [1], start=first) if count else None
    decider.folder = folder_of(directory, **given)
    return column(decider.batch(rows).admitted, "id")


@pytest.mark.slow
def test_state_does_not_grow_with_the_payload_of_waiting_rows(tmp_path: Path) -> None:
    wide, narrow = PlayedDecider(POLICY), PlayedDecider(POLICY)
    rows = table(list(range(3_000)), width=2_000)
    helped = with_helpers(rows, ["a/x"] * 3_000, [1] * 3_000)
    wide.folder = folder_of(Directory(str(tmp_path)), 1 << 16)
    wide.batch(helped)
    narrow.batch(helped)
    assert wide.state is not None
    assert narrow.state is not None
    assert len(narrow.state) > 2_900 * 2_000
    assert len(wide.state) < 60_000
    assert unpack(StoredState, narrow.state, "it").state.queue.size_bytes.tolist() == (
        unpack(StoredState, wide.state, "it").state.queue.size_bytes.tolist()
    )


GROUP = make_policy(
    groups={"gold": limit(messages_per_second=150)},
    namespaces={f"a/{number}": Namespace(limit(weight=1 + number % 3), "gold") for number in range(50)},
)
OWN = make_policy(
    namespaces={f"a/{number}": Namespace(limit(messages_per_second=1 + number % 3)) for number in range(50)},
)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [GROUP, OWN], ids=["group", "namespaces"])
def test_batch_reads_little_of_a_long_queue_though_rows_of_every_namespace_leave(policy: CompiledPolicy) -> None:
    rows = table(list(range(10_000)), width=1_000)
    names = [f"a/{number * 7 % 50}" for number in range(10_000)]
    decider, directory = PlayedDecider(policy), CountedDirectory()
    decider.folder = folder_of(directory, 1 << 16)
    decider.batch(with_helpers(rows, names, [1_000] * 10_000))
    file_bytes = sum(map(len, directory.files.values()))
    for _ in range(5):
        directory.parts.clear()
        decider.folder = folder_of(directory, 1 << 16)
        left = column(decider.batch().admitted, "id")
        assert 90 <= len(left) <= 200
        assert len({names[row] for row in left}) == 50  # type: ignore[call-overload]
        assert 0 < sum(size for _, _, size in directory.parts) <= file_bytes * 3 // 10


def test_queue_that_an_older_release_left_in_the_state_moves_to_a_file(tmp_path: Path) -> None:
    decider, directory = PlayedDecider(POLICY), Directory(str(tmp_path))
    first = column(decider.batch(ids(5_000, ["a/x"], [1])).admitted, "id")
    assert not decider.stored.files.written
    first += play(decider, directory, 0, 0, inline_bytes=0)
    assert decider.stored.files.waiting
    assert first + play(decider, directory, 0, 0) == list(range(301))


@pytest.mark.slow
@examples(5, in_search=100)
@given(st.integers(0, 2**32))
def test_checkpoint_that_is_put_back_finds_its_files(seed: int) -> None:
    draw, directory = random.Random(seed), CountedDirectory()
    kept, number, decider = 4, 0, PlayedDecider(POLICY)
    total, left = 0, list[object]()
    retained: dict[int, tuple[bytes | None, int, int, int]] = {}
    for _ in range(40):
        if retained and draw.random() < 0.2:
            number = draw.choice(sorted(retained))
            decider.state, total, decider.now_ms, taken = retained[number]
            del left[taken:]
        # As Spark does, forget the batches to which no checkpoint can be put back any more.
        retained = {batch: each for batch, each in retained.items() if number - kept < batch < number}
        retained[number] = decider.state, total, decider.now_ms, len(left)
        number += 1
        decider.epoch = number
        again = decider.state, decider.now_ms
        count = draw.choice([0, 0, 30, 400])
        found = play(decider, directory, total, count, kept_epochs=kept)
        if draw.random() < 0.3:  # the batch runs again
            state = decider.state
            decider.state, decider.now_ms = again
            assert play(decider, directory, total, count, kept_epochs=kept) == found
            assert decider.state == state
        total += count
        left += found
    assert left == list(range(len(left)))


def test_file_is_deleted_when_no_checkpoint_needs_it_and_not_before() -> None:
    decider, directory = PlayedDecider(POLICY), CountedDirectory()
    decider.epoch, emptied = 1, 0
    play(decider, directory, 0, 350, kept_epochs=3)
    while not emptied:
        decider.epoch += 1
        if not play(decider, directory, 0, 0, kept_epochs=3) or not len(decider.stored.state.queue):
            emptied = decider.epoch
    counts = []
    for _ in range(5):
        decider.epoch += 1
        play(decider, directory, 0, 0, kept_epochs=3)
        counts.append(len(directory.files))
    assert counts[2:] == [0, 0, 0]
    assert min(counts[:2]) > 0


def test_batch_deletes_few_files_though_many_were_left_at_once() -> None:
    names = [f"0/{number:03d}" for number in range(100)]
    files = QueueFiles(100, tuple(names)).after((), 100, epoch=1, kept_epochs=3)
    deleted = list[str]()
    for epoch in range(2, 30):
        files = files.after((), 100, epoch, kept_epochs=3)
        assert len(files.deletable) <= DELETED_FILES
        deleted += files.deletable
    assert deleted == names
    assert files.left == ()


@pytest.mark.slow
def test_decider_keeps_waiting_rows_in_the_control_directory_and_deletes_them_there(tmp_path: Path) -> None:
    decider = DigestDecider(QueueStorage(str(tmp_path), kept_epochs=2, inline_bytes=0), 2, keeps_order=True)
    state: State | None = None
    left, has_files = list[int](), list[bool]()
    for step in range(12):
        group = group_state(state, START_MS + 1_000 * step)
        rows = batch(list(range(90)) if step == 0 else [], step=step)
        out = [
            (FrameKind(kind), bytes(frame))
            for piece in decider((KEY,), pieces(rows, random.Random(step)), group)
            for kind, frame in zip(piece["kind"], piece["frame"], strict=True)
        ]
        state = state_in(group)
        left += ids_of(out, FrameKind.ADMITTED)
        has_files.append(any(path.is_file() for path in (tmp_path / FOLDER).iterdir()))
    assert sorted(left) == list(range(90))
    assert has_files[0]
    assert not has_files[-1]


def test_frames_are_no_larger_than_usual() -> None:
    directory = CountedDirectory()
    queue = filled(directory, rows=1_000)
    places = [FramePlace.of(frame) for frame in queue.frames]
    assert all(place.size_bytes <= FRAME_BYTES * 11 // 10 for place in places if place is not None)
    assert pa.concat_tables(queue.rows(everyone(queue), folder_of(directory))).num_rows == 1_000


@pytest.mark.slow
@pytest.mark.parametrize("fast_rows", [1, 9])
def test_rows_that_wait_for_long_do_not_keep_the_files_of_others(fast_rows: int) -> None:
    directory, queue, files = CountedDirectory(), QueueFrames.empty(), NO_FILES
    for epoch in range(1, 101):  # a small row that stays, and large ones that leave in the next batch
        folder, waiting = folder_of(directory, 20_000), rows_of(queue, directory)
        width, first = 90_000 // fast_rows, 10 * epoch
        joining = pa.concat_tables([table([first]), table(list(range(first + 1, first + 1 + fast_rows)), width=width)])
        stays = np.array([row % 10 == 0 for row in waiting], dtype=np.bool_)
        queue, files = queue.after(stays, joining, folder).moved(files, epoch, folder)
    assert len(rows_of(queue, directory)) == 100 + fast_rows
    assert sum(len(directory.files[f"{FOLDER}/{name}"]) for name in files.waiting) < 3 * 90_000
    assert len(queue.frames) < 10
