"""Checkpoints that were put back, restored in part or copied, against what their sinks have: right, or refused.

Without Spark: the checkpoint's logs are made up, and the Delta tables are real.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_throttle.checkpoint.batch_mark import BatchMark, mark_of
from spark_throttle.checkpoint.batch_records import forget_undone
from spark_throttle.checkpoint.manifest import Manifest, bind, bound_manifest
from spark_throttle.control.reports import newest_batch, write_report
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError
from spark_throttle.files.storage import Directory, write_block
from spark_throttle.spark.start.start_check import Sinks, check_start
from tests.spark.delta.delta_tables import rows_of
from tests.spark.sinks.test_file_table import USAGE, file_table, files_of
from tests.status.test_status import POLICY, report

pytestmark = pytest.mark.slow

BATCH_MS = 60_000
START_MS = 1_760_000_000_000


class Job:
    """A query whose batches go to Delta tables, and whose checkpoint is made up."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint = Directory(str(root / "checkpoint"))
        self.control = Directory(str(root / "checkpoint" / "throttle"))
        self.manifest = bind(self.control, direction="publish")
        write_block(self.control, f"policies/{POLICY.revision}", POLICY)
        self.files = {name: file_table(root / name) for name in ("admitted", "rejected")}
        self.files["usage"] = file_table(root / "usage", USAGE)
        self.tables = {name: str(root / name) for name in self.files}
        parts = {"": "admitted", "rejected": "rejected", "usage": "usage"}
        self.sinks = Sinks(self.checkpoint.location, tuple((part, self.tables[name]) for part, name in parts.items()))
        self.attempt = 0
        self.has_usage = True

    def start(self, sinks: Sinks | None = None) -> str:
        """Begin a run, and return the name that it goes on under."""
        self.attempt += 1
        return check_start(self.control, bound_manifest(self.control), sinks or self.sinks).query

    def batch(
        self, number: int, admitted: Sequence[int], rejected: Sequence[int] = (), *, commits: bool = True
    ) -> None:
        """Run a batch; its time tells it from another of the same number."""
        now_ms = START_MS + number * BATCH_MS + self.attempt
        if self.checkpoint.read(f"offsets/{number}") is None:
            self.checkpoint.write(f"offsets/{number}", f'v1\n{{"batchTimestampMs":{now_ms}}}\n'.encode())
        logged = (self.checkpoint.read(f"offsets/{number}") or b"").splitlines()[1]
        usage = replace(report({"acme/0": (len(admitted), len(admitted), len(rejected), 0)}),
                        now_ms=json.loads(logged)["batchTimestampMs"])  # fmt: skip
        mark = mark_of(self.manifest_of_run, number, usage)
        if admitted or rejected or number == 0:
            self._append("admitted", mark, admitted)
        if rejected:
            self._append("rejected", mark.of_part("rejected"), rejected)
        if self.has_usage:
            self.files["usage"].append_usage(self.control, mark.of_part("usage"), usage, self.manifest_of_run)
        write_report(self.control, number, pack_usage(usage))
        if commits:
            self.checkpoint.write(f"commits/{number}", b"v1")

    def _append(self, name: str, mark: BatchMark, ids: Sequence[int]) -> None:
        self.files[name].append(mark, lambda: files_of(self.files[name], ids) if ids else [])

    @property
    def manifest_of_run(self) -> Manifest:
        return bound_manifest(self.control)

    def put_back(self, newest: int, *, is_committed: bool = True, with_control: bool = False) -> None:
        """Put Spark's part of the checkpoint back to a batch, and the control directory too."""
        for log, last in (("offsets", newest), ("commits", newest if is_committed else newest - 1)):
            for name in self.checkpoint.names(log):
                if int(name) > last:
                    self.checkpoint.delete(f"{log}/{name}")
        if with_control:
            forget_undone(self.control, newest)

    def restore_tables(self, newest: int, names: Sequence[str] = ("admitted", "rejected", "usage")) -> None:
        """Restore tables to what they were after a batch."""
        for name in names:
            table = DeltaTable(self.tables[name])
            table.restore(self._version(name, newest))

    def _version(self, name: str, newest: int) -> int:
        found = 0
        for path in sorted(Path(self.tables[name], "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            batches = [action["txn"]["version"] for action in actions if "txn" in action]
            if batches and batches[0] <= newest:
                found = int(path.stem)
        return found

    def ids(self, name: str = "admitted") -> list[int]:
        return [row[0] for row in rows_of(Path(self.tables[name]), "id")]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.start()
    for number in range(5):
        job.batch(number, [number], [100 + number])
    return job


def test_checkpoint_that_only_went_forward_starts_under_its_name(job: Job) -> None:
    assert job.start() == job.manifest.query
    job.batch(5, [5])
    assert job.ids() == [0, 1, 2, 3, 4, 5]


def test_batch_that_was_not_committed_is_skipped_by_the_tables_that_have_it(job: Job) -> None:
    job.put_back(4, is_committed=False)
    assert job.start() == job.manifest.query
    job.batch(4, [4], [104])
    assert (job.ids(), job.ids("rejected")) == ([0, 1, 2, 3, 4], [100, 101, 102, 103, 104])


@pytest.mark.parametrize("with_control", [False, True])
@pytest.mark.parametrize("newest", [0, 2, 3])
def test_checkpoint_that_was_put_back_alone_is_refused_with_the_version_to_restore(
    job: Job, newest: int, *, with_control: bool
) -> None:
    job.put_back(newest, with_control=with_control)
    restores = [f"RESTORE TABLE delta\\.`{path}` TO VERSION AS OF {newest + 1}" for path in job.tables.values()]
    remedy = "; ".join(restores)
    with pytest.raises(
        CheckpointMismatchError,
        match=rf"has batch 4 of this query, and the checkpoint knows batches up to {newest}; .*{remedy}",
    ):
        job.start()
    assert job.ids() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("with_control", [False, True])
def test_checkpoint_that_was_put_back_with_its_tables_goes_on(job: Job, *, with_control: bool) -> None:
    """A restore leaves the transactions as they were: under the old name the tables would skip the new batches."""
    job.put_back(2, with_control=with_control)
    job.restore_tables(2)
    name = job.start()
    assert name == bound_manifest(job.control).query == f"{job.manifest.query}-1"
    assert newest_batch(job.control) <= 2
    for number in range(3, 6):
        job.batch(number, [10 * number], [200 + number])
    assert job.ids() == [0, 1, 2, 30, 40, 50]
    assert job.ids("rejected") == [100, 101, 102, 203, 204, 205]
    assert job.start() == name


def test_line_that_was_put_back_is_put_back_again(job: Job) -> None:
    for turn in (1, 2):
        job.put_back(2)
        job.restore_tables(2)
        assert job.start() == f"{job.manifest.query}-{turn}"
        for number in (3, 4, 5):
            job.batch(number, [100 * turn + number])
    assert job.ids() == [0, 1, 2, 203, 204, 205]


def test_backup_of_an_older_line_is_refused_until_the_newer_one_is_undone(job: Job) -> None:
    backup = job.root / "backup"
    shutil.copytree(job.root / "checkpoint", backup)
    job.put_back(2)
    job.restore_tables(2)
    job.start()
    for number in (3, 4, 5):
        job.batch(number, [30 + number])
    shutil.rmtree(job.root / "checkpoint")
    shutil.copytree(backup, job.root / "checkpoint")
    with pytest.raises(CheckpointMismatchError, match=r"has batches of \S+-1, the name under which this query went on"):
        job.start()
    job.put_back(2)
    job.restore_tables(2)
    assert job.start() == f"{job.manifest.query}-2"
    job.batch(3, [77])
    assert job.ids() == [0, 1, 2, 77]


def test_tables_that_were_not_all_put_back_are_refused(job: Job) -> None:
    job.put_back(2)
    job.restore_tables(2, ["admitted", "usage"])
    with pytest.raises(CheckpointMismatchError, match="rejected has batch 4 of this query"):
        job.start()
    job.restore_tables(2, ["rejected"])
    assert job.start() == f"{job.manifest.query}-1"


def test_table_that_was_put_back_too_far_is_refused(job: Job) -> None:
    job.put_back(3)
    job.restore_tables(1)
    with pytest.raises(CheckpointMismatchError, match=r"was restored to before batches .* committed \(up to 3\)"):
        job.start()
    job.restore_tables(3)
    assert job.start() == f"{job.manifest.query}-1"
    job.batch(4, [40])
    assert job.ids() == [0, 1, 2, 3, 40]


def test_batch_that_a_restore_took_out_before_it_was_committed_is_written_again(job: Job) -> None:
    job.put_back(4, is_committed=False)
    job.restore_tables(3)
    assert job.start() == f"{job.manifest.query}-1"
    job.batch(4, [4], [104])
    assert (job.ids(), job.ids("rejected")) == ([0, 1, 2, 3, 4], [100, 101, 102, 103, 104])


def test_batch_that_a_restore_took_out_of_one_table_only_is_refused(job: Job) -> None:
    job.put_back(4, is_committed=False)
    job.restore_tables(3, ["admitted"])
    with pytest.raises(CheckpointMismatchError, match=r"rejected has batch 4, which the checkpoint has not committed"):
        job.start()
    job.restore_tables(3, ["rejected", "usage"])
    job.start()
    job.batch(4, [4], [104])
    assert (job.ids(), job.ids("rejected")) == ([0, 1, 2, 3, 4], [100, 101, 102, 103, 104])


def test_restore_that_was_itself_undone_changes_nothing(job: Job) -> None:
    job.put_back(4, is_committed=False)
    newest = DeltaTable(job.tables["admitted"]).version()
    job.restore_tables(1, ["admitted"])
    DeltaTable(job.tables["admitted"]).restore(newest)
    assert job.start() == job.manifest.query
    job.batch(4, [4], [104])
    assert job.ids() == [0, 1, 2, 3, 4]


def test_restore_to_a_time_cannot_be_told_and_is_refused(job: Job) -> None:
    job.put_back(2)
    job.restore_tables(2)
    log = max(Path(job.tables["admitted"], "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace('"version":"3"', '"version":null,"timestamp":"2026-01-01 00:00:00"'))
    with pytest.raises(CheckpointMismatchError, match="its log does not say which of them a restore took out"):
        job.start()


def clone_of(job: Job, tmp_path: Path) -> Job:
    """Copy the checkpoint of a job; the copy writes to the same tables."""
    copy = object.__new__(Job)
    copy.__dict__ = dict(vars(job))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copied")
    copy.checkpoint = Directory(str(tmp_path / "copied"))
    copy.control = Directory(str(tmp_path / "copied" / "throttle"))
    copy.sinks = replace(job.sinks, checkpoint=copy.checkpoint.location)
    copy.start()
    return copy


@pytest.mark.parametrize(
    ("first", "second"), [(([], [150]), ([5], [])), (([5], []), ([], [150])), (([], [105]), ([], [150]))]
)
def test_clone_is_refused_even_where_the_two_write_to_different_tables(
    job: Job, tmp_path: Path, first: tuple[list[int], list[int]], second: tuple[list[int], list[int]]
) -> None:
    job.has_usage = False  # which has every batch
    copy = clone_of(job, tmp_path)
    job.batch(5, *first)
    copy.attempt += 1
    before = job.ids(), job.ids("rejected")
    with pytest.raises(CheckpointMismatchError, match="already has a batch 5 of this query"):
        copy.batch(5, *second)
    assert (job.ids(), job.ids("rejected")) == before


def test_clone_on_the_same_tables_is_refused_by_whoever_comes_second(job: Job, tmp_path: Path) -> None:
    copy = clone_of(job, tmp_path)
    job.batch(5, [5])
    copy.attempt += 1
    with pytest.raises(CheckpointMismatchError, match="already has a batch 5 of this query, decided from other rows"):
        copy.batch(5, [50])
    job.batch(6, [6])
    with pytest.raises(CheckpointMismatchError, match="has batch 6 of this query"):
        copy.start()
    assert job.ids() == [0, 1, 2, 3, 4, 5, 6]


def test_clone_on_tables_of_its_own_starts(job: Job, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copied")
    own = file_table(tmp_path / "own").location
    sinks = Sinks(str(tmp_path / "copied"), (("", own),))
    control = Directory(str(tmp_path / "copied" / "throttle"))
    job.batch(5, [5])
    assert check_start(control, bound_manifest(control), sinks).query == job.manifest.query


def test_table_that_an_older_release_wrote_is_refused_when_it_is_ahead(job: Job) -> None:
    """Its commits carry no identity, and their numbers are enough."""
    for path in Path(job.tables["admitted"], "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.get("commitInfo", {}).pop("userMetadata", None)
        path.write_text("\n".join(map(json.dumps, lines)))
    job.put_back(2)
    with pytest.raises(CheckpointMismatchError, match="has batch 4 of this query"):
        job.start()


# Tables that forget (delta.setTransactionRetentionDuration)


def forget(job: Job, name: str, newest: int) -> None:
    """Let a table forget its transactions: those that it has were made an hour ago, and it keeps them for a minute."""
    log = Path(job.tables[name], "_delta_log")
    for path in log.glob("*.json"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "txn" in line:
                line["txn"]["lastUpdated"] -= 3_600_000
            if "metaData" in line:
                line["metaData"]["configuration"] = {"delta.setTransactionRetentionDuration": "interval 1 minute"}
        path.write_text("\n".join(map(json.dumps, lines)))
    found = DeltaTable(job.tables[name]).transaction_version(job.manifest.query)
    assert found is None, (found, newest)


def test_table_that_has_forgotten_the_uncommitted_batch_is_reminded(job: Job) -> None:
    forget(job, "admitted", 4)
    job.put_back(4, is_committed=False)
    assert job.start() == job.manifest.query
    assert DeltaTable(job.tables["admitted"]).transaction_version(job.manifest.query) == 4
    job.batch(4, [4], [104])
    assert job.ids() == [0, 1, 2, 3, 4]


def test_table_that_has_forgotten_undone_batches_is_refused_by_its_log(job: Job) -> None:
    forget(job, "admitted", 4)
    job.put_back(2)
    with pytest.raises(
        CheckpointMismatchError, match="has batch 4 of this query, and the checkpoint knows batches up to 2"
    ):
        job.start(replace(job.sinks, tables=job.sinks.tables[:1]))


def test_table_that_has_forgotten_all_and_its_log_too_is_refused_with_what_to_do(job: Job) -> None:
    forget(job, "admitted", 4)
    table = DeltaTable(job.tables["admitted"])
    table.create_checkpoint()
    for path in Path(job.tables["admitted"], "_delta_log").glob("*.json"):
        path.unlink()
    job.put_back(4, is_committed=False)
    with pytest.raises(CheckpointMismatchError, match=r"its log no longer goes back to batch 4, .* txnVersion 4"):
        job.start()


def test_table_that_forgets_and_never_had_the_batch_takes_it(job: Job) -> None:
    forget(job, "admitted", 4)
    job.checkpoint.write("offsets/5", b'v1\n{"batchTimestampMs":%d}\n' % (START_MS + 5 * BATCH_MS))
    assert job.start() == job.manifest.query
    job.batch(5, [5])
    assert job.ids() == [0, 1, 2, 3, 4, 5]


# Reports, dead letters in folders, functions


def dead_letters(root: Path, batches: Sequence[int]) -> str:
    for batch in batches:
        folder = root / f"batch={batch}"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(b"PAR1")
    return str(root)


def test_reports_of_undone_batches_are_forgotten(job: Job) -> None:
    job.put_back(2)
    job.start(replace(job.sinks, tables=()))
    assert newest_batch(job.control) == 2


def test_reports_of_undone_batches_are_forgotten_where_the_log_has_other_batches_of_their_numbers(job: Job) -> None:
    """Spark's part is put back, goes on, and is then restored from a backup of what was undone."""
    logged = {name: job.checkpoint.read(name) or b"" for name in ("offsets/3", "offsets/4", "commits/3", "commits/4")}
    job.put_back(2)
    job.restore_tables(2)
    job.start()
    job.attempt += 1
    for number in (3, 4):
        job.batch(number, [10 * number])
    assert newest_batch(job.control) == 4
    for name, content in logged.items():
        job.checkpoint.write(name, content)
    job.start(replace(job.sinks, tables=()))
    assert newest_batch(job.control) == 2


def test_dead_letters_of_undone_batches_inside_the_checkpoint_are_set_aside(job: Job) -> None:
    folder = Path(job.control.path("rejected"))
    sinks = replace(job.sinks, tables=(), dead_letters=dead_letters(folder, range(5)))
    job.put_back(2)
    job.start(sinks)
    assert sorted(path.name for path in folder.iterdir()) == [".undone", "batch=0", "batch=1", "batch=2"]
    assert len(list((folder / ".undone").rglob("*.parquet"))) == 2
    job.start(sinks)
    assert len(list((folder / ".undone").rglob("*.parquet"))) == 2


def test_query_that_is_given_anothers_control_directory_is_refused_before_it_touches_the_dead_letters(
    job: Job, tmp_path: Path
) -> None:
    folder = Path(job.control.path("rejected"))
    sinks = Sinks(str(tmp_path / "another"), dead_letters=dead_letters(folder, range(5)))
    with pytest.raises(ConfigurationError, match="if that query runs, give this one a control directory of its own"):
        job.start(sinks)
    assert sorted(path.name for path in folder.iterdir()) == [f"batch={batch}" for batch in range(5)]


@pytest.mark.parametrize("is_new", [False, True])
def test_dead_letters_elsewhere_that_the_checkpoint_does_not_know_are_refused(
    job: Job, tmp_path: Path, *, is_new: bool
) -> None:
    """Batches get their numbers again, and would overwrite them, or leave them beside rows that are decided anew."""
    sinks = replace(job.sinks, tables=(), dead_letters=dead_letters(tmp_path / "dead", range(5)))
    job.start(sinks)
    job.put_back(-1 if is_new else 2, with_control=True)
    with pytest.raises(CheckpointMismatchError, match=r"holds batches up to 4, .* move these folders away, or give"):
        job.start(sinks)
    assert len(list((tmp_path / "dead").glob("batch=*"))) == 5


def test_folder_of_dead_letters_takes_one_query_also_while_it_is_empty(job: Job, tmp_path: Path) -> None:
    """Two queries that are started together would replace each other's letters of the same batch."""
    sinks = replace(job.sinks, tables=(), dead_letters=str(tmp_path / "dead"))
    assert job.start(sinks) == job.start(sinks)
    another = Directory(str(tmp_path / "another" / "throttle"))
    theirs = replace(sinks, checkpoint=str(tmp_path / "another"))
    manifest = bind(another, direction="publish")
    with pytest.raises(CheckpointMismatchError, match=r"another query, by the mark .*give this query a folder"):
        check_start(another, manifest, theirs)
    (tmp_path / "dead").rename(tmp_path / "elsewhere")
    check_start(another, manifest, theirs)
    with pytest.raises(CheckpointMismatchError, match="belongs to another query"):
        job.start(sinks)


def test_function_that_was_given_undone_batches_is_refused_until_its_user_says_so(job: Job) -> None:
    sinks = replace(job.sinks, tables=(), has_function=True)
    job.put_back(2)
    with pytest.raises(
        CheckpointMismatchError,
        match=r"was given batches up to 4, .* remove their files below .*throttle/batches",
    ):
        job.start(sinks)
    job.put_back(2, with_control=True)
    assert job.start(sinks) == job.manifest.query


def test_sinks_travel_as_text(job: Job) -> None:
    sinks = replace(job.sinks, dead_letters="x", has_function=True)
    assert Sinks.from_json(sinks.to_json()) == sinks


def test_table_that_cannot_be_read_here_is_left_to_its_commits(job: Job) -> None:
    assert (
        job.start(replace(job.sinks, tables=(("", "nowhere://lake/t"), ("", str(job.root / "none")))))
        == job.manifest.query
    )
