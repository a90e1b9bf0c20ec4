"""The control source's reader without Spark: offsets, replay, and waiting without a clock that runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spark_throttle.checkpoint.manifest import Drained, write_drained
from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import EpochName
from spark_throttle.control.notes import read_next_policies, read_sign_of_life
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy
from spark_throttle.core.state import ControlRow
from spark_throttle.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    DamagedError,
    DrainedError,
    EpochMissingError,
    TakenOverError,
)
from spark_throttle.files.storage import Directory
from spark_throttle.record import to_json, unpack
from spark_throttle.sharing.member import member_in
from spark_throttle.sharing.settings import ExchangeOptions
from spark_throttle.sharing.status import Observation, read_observation, write_observation
from spark_throttle.spark.rows.frames import FrameKind
from spark_throttle.spark.sources.control_source import ThrottleControlReader, ThrottleControlSource
from spark_throttle.spark.start.start_check import Sinks
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.policy_table import TableRows
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.object_store import object_store
from tests.spark.sources.driver import LIMIT, POLICIES, START_MS, Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path / "control")
    yield driver
    driver.reader.stop()


def test_source_is_named_and_gives_frames() -> None:
    source = ThrottleControlSource({})
    assert source.name() == "throttle_control"
    assert source.schema() == "key int, kind int, frame binary"


def test_initial_offset_is_always_the_same(driver: Driver) -> None:
    first = driver.reader.initialOffset()
    assert driver.reader.initialOffset() == first
    driver.latest(first)
    driver.start()
    assert driver.reader.initialOffset() == first == {"epoch": 0, "file": ""}


def test_first_epoch_brings_the_decider_its_policy(driver: Driver) -> None:
    start = driver.reader.initialOffset()
    end = driver.latest(start)
    assert end["epoch"] == 1
    assert json.loads(json.dumps(end)) == end
    (row,) = driver.rows(start, end)
    assert row["kind"] == FrameKind.CONTROL
    control = unpack(ControlRow, row["frame"], "it")
    assert control.epoch == 1
    assert unpack(CompiledPolicy, control.policy or b"", "it").namespace_names.to_pylist() == ["a/x", "b/y", "c/z"]


def test_epoch_of_the_same_policy_brings_none(driver: Driver) -> None:
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(moved=3, due_ms=driver.now_ms)
    second = driver.latest(first)
    assert second["epoch"] == 2
    (row,) = driver.rows(first, second)
    assert unpack(ControlRow, row["frame"], "it").policy is None


def test_batch_that_leaves_no_row_waiting_is_followed_by_no_epoch(driver: Driver) -> None:
    first = driver.latest(driver.reader.initialOffset())
    for _ in range(3):
        driver.batch(moved=3)
        assert driver.latest(first) == first


def test_nothing_due_returns_the_start(driver: Driver) -> None:
    first = driver.latest(driver.reader.initialOffset())
    driver.batch()
    for _ in range(20):
        driver.now_ms += 10
        assert driver.latest(first) == first
    assert driver.rows(first, first) == []
    assert driver.pauses == []


def test_replay_gives_the_same_bytes_whatever_is_in_force_by_then(driver: Driver, tmp_path: Path) -> None:
    offsets = [driver.reader.initialOffset()]
    for step in range(4):
        if step == 2:
            driver.start(policytext="{job: {publish: {messages_per_second: 7}}}")
        offsets.append(driver.latest(offsets[-1]))
        driver.batch(moved=10 * step + 1, due_ms=driver.now_ms)
        driver.now_ms += 1_000
    spans = list(pairwise(offsets))
    before = [driver.rows(*span) for span in spans]
    driver.start(policytext="{job: {publish: {messages_per_second: 1}}}")
    driver.now_ms += 86_400_000
    assert [driver.rows(*span) for span in spans] == before
    assert [len(rows) for rows in before] == [1] * 4
    # Spark plans the partitions of offsets that it logged long ago, in one span too.
    assert driver.rows(offsets[0], offsets[-1])[0]["frame"] != before[-1][0]["frame"]


def test_replay_without_the_epochs_file_is_refused(driver: Driver) -> None:
    start = driver.reader.initialOffset()
    end = driver.latest(start)
    (driver.path / "epochs" / end["file"]).unlink()
    driver.start()
    with pytest.raises(EpochMissingError, match="epoch 1"):
        driver.reader.partitions(start, end)


# Policies that are read by batches alone


def test_rows_that_wait_have_a_batch_every_ten_seconds_where_policies_are_in_a_table(tmp_path: Path) -> None:
    shut = TableRows.of("t", "run", [("job", None, '{"publish": {"messages_per_second": 0}}'), ("tenants", "a", None)])
    driver = Driver(tmp_path, {"policytable": to_json(shut).decode()})
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(moved=1, waiting=1)
    driver.now_ms += 9_999
    assert driver.latest(first) == first
    driver.now_ms += 1
    second = driver.latest(first)
    assert second["epoch"] == 2
    driver.batch()
    driver.now_ms += 3_600_000
    assert driver.latest(second) == second, "nothing waits"
    driver.reader.stop()


def test_bounded_run_ends_though_its_policies_are_in_a_table(tmp_path: Path) -> None:
    shut = TableRows.of("t", "run", [("job", None, '{"publish": {"messages_per_second": 0}}')])
    driver = Driver(tmp_path, {"policytable": to_json(shut).decode()})
    driver.reader.prepareForTriggerAvailableNow()
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(moved=1, waiting=1)
    assert driver.latest(first) == first
    driver.reader.stop()


# A bounded run


def test_bounded_run_waits_with_its_rows_until_a_bucket_that_stops_them_is_filled(driver: Driver) -> None:
    driver.reader.prepareForTriggerAvailableNow()
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(due_ms=START_MS + 5, filled_ms=START_MS + 2_350)
    second = driver.latest(first)
    assert second["epoch"] == 2
    assert driver.pauses == [1.0, 1.0, 0.35]
    assert driver.now_ms == START_MS + 2_350


def test_bounded_run_ends_when_all_is_drained_or_never_will_be(driver: Driver) -> None:
    driver.reader.prepareForTriggerAvailableNow()
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(due_ms=NEVER_MS)
    assert driver.latest(first) == first
    assert driver.pauses == []


def test_policy_that_changes_while_a_bounded_run_waits_acts_at_once(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text("{job: {publish: {messages_per_second: 1}}}")
    driver.start(policyfile=str(path))
    driver.reader.prepareForTriggerAvailableNow()
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(due_ms=START_MS + 3_600_000)
    driver.on_pause = lambda: path.write_text("{job: {publish: {messages_per_second: 9}}}")
    second = driver.latest(first)
    assert second["epoch"] == 2
    assert driver.pauses == [1.0]
    assert driver.rows(first, second)[0]["frame"] != driver.rows(driver.reader.initialOffset(), first)[0]["frame"]


@pytest.mark.slow
def test_policy_file_that_hangs_leaves_the_last_policies_in_force(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(POLICIES)
    driver.start(policyfile=str(path))
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(moved=1, due_ms=driver.now_ms)
    path.unlink()
    os.mkfifo(path)  # whoever opens it waits for someone who writes
    second = driver.latest(first)
    assert second["epoch"] == 2
    followed = read_next_policies(Directory(str(driver.path)))
    assert followed is not None
    assert "not read within 2 s; the store or the mount seems to hang" in str(followed.problem)
    assert driver.reader.plane().epochs.load(EpochName(2, second["file"])).revision == followed.revision
    path.write_text(POLICIES)  # lets the reader go


def test_unbounded_query_never_waits(driver: Driver) -> None:
    first = driver.latest(driver.reader.initialOffset())
    driver.batch(due_ms=START_MS + 5_000)
    assert driver.latest(first) == first
    assert driver.pauses == []


# Starting


def test_reader_is_bound_to_its_checkpoint(driver: Driver) -> None:
    driver.reader.initialOffset()
    driver.start(direction="dispatch")
    with pytest.raises(ConfigurationError, match="set direction='publish'"):
        driver.reader.initialOffset()


def test_offset_that_names_an_epoch_begins_no_new_query(driver: Driver) -> None:
    """As where a checkpoint came back without its control directory: sinks would take again what they have."""
    first = driver.latest(driver.reader.initialOffset())
    driver.reader.stop()
    shutil.rmtree(driver.path)
    start = {"epoch": 0, "file": ""}
    calls: list[Callable[[ThrottleControlReader], object]] = [
        lambda reader: reader.latestOffset(first, LIMIT),
        lambda reader: reader.partitions(start, first),
        lambda reader: reader.commit(first),
    ]
    for call in calls:
        driver.start()
        with pytest.raises(DamagedError, match=r"manifest\.json is missing"):
            call(driver.reader)
        assert not (driver.path / "manifest.json").exists()


def test_checkpoint_that_has_planned_a_batch_begins_no_new_query(driver: Driver, tmp_path: Path) -> None:
    """Nor where its first batch is run again, and no offset before names an epoch."""
    driver.latest(driver.reader.initialOffset())
    driver.reader.stop()
    shutil.rmtree(driver.path)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    driver.start(sinks=Sinks(str(tmp_path)).to_json())
    with pytest.raises(DamagedError, match=r"manifest\.json is missing"):
        driver.reader.initialOffset()
    assert not (driver.path / "manifest.json").exists()


def test_run_that_is_refused_takes_nothing_over(driver: Driver, tmp_path: Path) -> None:
    driver.latest(driver.reader.initialOffset())
    running = driver.reader
    (tmp_path / "dead" / "batch=7").mkdir(parents=True)
    driver.start(sinks=Sinks(str(tmp_path), dead_letters=str(tmp_path / "dead")).to_json())
    with pytest.raises(CheckpointMismatchError, match="holds batches up to 7"):
        driver.latest(driver.offset)
    driver.reader = running
    driver.batch(moved=1, due_ms=driver.now_ms)
    assert running.latestOffset(driver.offset, LIMIT)["epoch"] == 2


def test_second_query_in_a_control_directory_ends_the_first_or_is_refused(driver: Driver) -> None:
    first = driver.latest(driver.reader.initialOffset())
    running = driver.reader
    driver.batch(moved=1, due_ms=driver.now_ms)
    driver.start()
    with pytest.raises(ConfigurationError, match=r"has run batch 0.* give this one a control directory of its own"):
        driver.latest(driver.reader.initialOffset())
    driver.start()
    assert driver.latest(first)["epoch"] == 2
    with pytest.raises(TakenOverError, match="another run has begun in the control directory"):
        running.latestOffset(first, LIMIT)


def test_checkpoint_that_a_tool_drains_while_a_query_starts_is_not_begun(driver: Driver) -> None:
    """It is closed after the query has looked, and before the query owns the control directory."""
    directory, start = Directory(str(driver.path)), driver.reader.initialOffset()
    write_drained(directory, Drained(3, "/lake/waiting", "delta", "5eed"))
    with pytest.raises(DrainedError, match=r"was being drained at batch 3: .* /lake/waiting"):
        driver.latest(start)
    with pytest.raises(TakenOverError):
        driver.latest(start)
    assert read_sign_of_life(directory) is None


def test_policies_that_cannot_be_read_bind_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "control", {"policyfile": str(tmp_path / "nowhere.yaml")})
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"nowhere\.yaml"):
            driver.reader.initialOffset()
    assert not driver.path.exists()


@pytest.mark.parametrize("call", ["partitions", "commit"])
def test_batch_that_spark_plans_is_looked_for_at_once_although_looks_are_seldom(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """On an object store an idle query looks once a second; a batch of new rows may end sooner."""
    monkeypatch.setattr(Directory, "is_on_disk", property(lambda _: False))
    start = driver.reader.initialOffset()
    first = driver.latest(start)
    driver.rows(start, first)
    driver.batch()
    assert driver.latest(first) == first
    if call == "partitions":
        driver.rows(first, first)
    else:
        driver.reader.commit(first)
    driver.batch(moved=1, due_ms=driver.now_ms)
    driver.now_ms += 10
    assert driver.latest(first)["epoch"] == 2


def test_policies_on_a_store_are_looked_at_once_a_second_though_the_checkpoint_is_on_a_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with object_store(monkeypatch) as store:
        store.objects["policies.yaml"] = b"{}"
        driver = Driver(tmp_path / "control", {"policyobject": "s3://lake/policies.yaml"})
        first = driver.latest(driver.reader.initialOffset())
        driver.batch()
        assert driver.latest(first) == first
        asked = len(store.requests)
        for _ in range(150):
            driver.now_ms += 10
            assert driver.latest(first) == first
        assert len(store.requests) <= asked + 4  # two looks; until its time has settled, the object is also read
        store.objects["policies.yaml"] = b"{job: {publish: {messages_per_second: 7}}}"
        driver.now_ms += 1_000
        assert driver.latest(first)["epoch"] == 2


def test_commit_forgets_old_epochs_and_may_come_twice(driver: Driver) -> None:
    first = driver.latest(driver.reader.initialOffset())
    for _ in range(2):
        driver.reader.commit({"epoch": 1_100, "file": "000000001100-0123456789abcdef"})
    assert not (driver.path / "epochs" / first["file"]).exists()
    assert driver.reader.reportLatestOffset() is None


@pytest.mark.slow
def test_policy_store_is_followed_and_a_lost_one_changes_nothing(tmp_path: Path) -> None:
    where, control = tmp_path / "store", Directory(str(tmp_path / "control"))
    service = PolicyService(DeltaStore.create(str(where)), clock_ms=lambda: 0)
    service.put("job", "", {"publish": {"messages_per_second": 100}}, Author("ann"))
    options = {
        "controlpath": str(tmp_path / "control"), "direction": "publish",
        "batchesretained": "100", "policystore": f"delta:{where}",
    }  # fmt: skip
    reader = ThrottleControlReader(options, clock=lambda: START_MS)
    first = reader.latestOffset(reader.initialOffset(), LIMIT)
    service.put("job", "", {"publish": {"messages_per_second": 7}}, Author("ann"))
    second = reader.latestOffset(first, LIMIT)
    policy = reader.plane().epochs.policy_for(EpochName(*first.values()), EpochName(*second.values()))
    assert policy is not None
    assert policy.shared.rate_micro_per_ms.tolist() == [[7000, -1, -1, -1]]
    shutil.rmtree(where)
    third = reader.latestOffset(second, LIMIT)
    assert (
        third == second
        or reader.plane().epochs.policy_for(EpochName(*second.values()), EpochName(*third.values())) is None
    )
    followed = read_next_policies(control)
    assert followed is not None
    assert followed.store_revision == 2
    assert "there is no policy store" in (followed.problem or "")


# Shared quotas


def test_exchange_is_visited_by_a_thread_of_the_readers_and_shares_stand_in_control_rows(tmp_path: Path) -> None:
    options = ExchangeOptions.parse({"path": str(tmp_path / "exchange"), "job": "mine", "interval": 0.05, "lease": 60})
    policies = "{resource_groups: {gold: {publish: {messages_per_second: 100}}}, defaults: {resource_group: gold}}"
    driver = Driver(tmp_path / "control", {"policytext": policies, "exchange": options.to_json()}, clock=Clock.system())
    end = driver.latest(driver.reader.initialOffset())
    (row,) = driver.rows(driver.reader.initialOffset(), end)
    share = unpack(ControlRow, row["frame"], "it").share_micro_per_ms
    assert share is not None
    assert share[1].tolist() == [0, -1, -1, -1]
    pause = threading.Event()
    directory = Directory(str(tmp_path / "control"))
    while (seen := read_observation(directory)) is None or not seen.lease_left_ms:
        pause.wait(0.01)
        driver.latest(end)
    assert seen.problem == ""
    (register,) = Directory(str(tmp_path / "exchange")).names(".")
    member, run, kind = register.split(".")
    assert (member, kind) == (member_in(directory), "head")
    assert 0 < int(run, 16) < 2**62
    assert directory.read("incarnation") == b"1"
    driver.reader.stop()


def test_reader_of_a_copied_checkpoint_shares_as_a_member_of_its_own(tmp_path: Path) -> None:
    options = ExchangeOptions.parse({"path": str(tmp_path / "exchange"), "job": "mine", "interval": 0.05, "lease": 60})
    more = {"policytext": "{}", "exchange": options.to_json()}
    driver, pause = Driver(tmp_path / "control", dict(more)), threading.Event()
    driver.latest(driver.reader.initialOffset())
    being_written = shutil.ignore_patterns(".*")  # by the thread of the first, which goes on
    shutil.copytree(tmp_path / "control", tmp_path / "copy", ignore=being_written)
    copy = Driver(tmp_path / "copy", dict(more))
    copy.latest(copy.reader.initialOffset())
    exchange = Directory(str(tmp_path / "exchange"))
    while len(registers := exchange.names(".")) < 2:
        pause.wait(0.01)
    driver.reader.stop()
    copy.reader.stop()
    members = {member_in(Directory(str(tmp_path / place))) for place in ("control", "copy")}
    assert {each.partition(".")[0] for each in registers} == members
    assert len(members) == 2


def test_reader_whose_exchange_was_taken_away_says_no_more_of_it(tmp_path: Path) -> None:
    directory, none, nothing = Directory(str(tmp_path)), np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
    observation = Observation(none, nothing, nothing, nothing, (), none, none, nothing, nothing, True, 5, 10)
    write_observation(directory, observation)
    driver = Driver(tmp_path)
    driver.latest(driver.reader.initialOffset())
    assert read_observation(directory) is None


def test_reader_without_an_exchange_keeps_nothing_of_it(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.latest(driver.reader.initialOffset())
    driver.reader.stop()
    expected = ["alive.json", "epochs", "followed.json", "manifest.json", "policies", "run"]
    assert sorted(each.name for each in tmp_path.iterdir()) == expected


def test_reader_gives_signs_of_life_from_its_first_epoch_to_its_end(driver: Driver) -> None:
    directory = Directory(str(driver.path))
    start = driver.reader.initialOffset()
    assert read_sign_of_life(directory) is None
    driver.latest(start)
    driver.reader.stop()
    sign = read_sign_of_life(directory)
    assert sign is not None
    assert (sign.run.encode(), sign.wall_ms, sign.has_ended) == (directory.read("run"), START_MS, True)


def test_signal_that_ends_the_process_of_a_source_lets_it_say_that_the_query_has_ended(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    driver.reader.initialOffset()
    assert signal.getsignal(signal.SIGTERM) is before, "this process is pytest's"
    runner = ModuleSpec("pyspark.sql.streaming.python_streaming_source_runner", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", runner)
    reader = Driver(driver.path).reader
    try:
        reader.initialOffset()
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        plane = reader.plane()
        end = plane.stop

        def interrupted() -> None:
            signal.raise_signal(signal.SIGTERM)
            end()

        monkeypatch.setattr(plane, "stop", interrupted)
        reader.stop()
    finally:
        signal.signal(signal.SIGTERM, before)
