"""The job calls Spark and the throttle as its settings say; doubles write down the calls."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from demos.demo import offered_rows
from jobs import throttle_stream
from jobs.settings import JobSettings, parse_settings
from jobs.wiring import (
    read_events,
    read_stream,
    start_query,
    stop_between_batches,
)
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import file_system
from spark_throttle.spark import Throttle
from spark_throttle.store import policy_location
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.policy_location import PolicyLocation, load_policies
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.jobs.test_settings import CONF, SMALL


class Recorder:
    """Answers every call with itself and remembers it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Recorder:
            self.calls.append((name, args, kwargs))
            return self

        return call

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


class Session:
    """A session whose reader is a recorder."""

    def __init__(self) -> None:
        self.readStream = Recorder()
        self.dataSource = Recorder()


class Progress:
    """What a query says of its last batch."""

    def __init__(self, batch_id: int, *offsets: str | None) -> None:
        self.batchId = batch_id
        self.sources = [Source(offset) for offset in offsets]


class Source:
    def __init__(self, offset: str | None) -> None:
        self.endOffset = offset


class Query:
    """A query that starts, then is busy, until so many waits, in batches of `batch` waits each."""

    def __init__(self, busy: int = 0, batch: int = 10**6, starting: int = 0) -> None:
        self.waits = 0
        self.starting = starting
        self.busy = busy
        self.batch = batch
        self.waits_before_stop: int | None = None
        self.isActive = True

    @property
    def status(self) -> dict[str, Any]:
        is_starting = self.waits < self.starting
        message = "Initializing sources" if is_starting else "Waiting for next trigger"
        return {"message": message, "isTriggerActive": not is_starting and self.waits < self.busy}

    @property
    def lastProgress(self) -> Progress | None:  # noqa: N802
        done = self.waits // self.batch
        return Progress(done - 1) if done else None

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        assert seconds > 0
        self.waits += 1
        return False

    def stop(self) -> None:
        self.waits_before_stop = self.waits
        self.isActive = False


def settings_of(**changes: Any) -> JobSettings:
    return parse_settings(SMALL | changes)


def started(settings: JobSettings) -> Recorder:
    throttle = Recorder()
    start_query(cast("Any", throttle), cast("Any", "the events"), settings)
    return throttle


def test_load_is_registered_and_read_with_its_options() -> None:
    spark = Session()
    read_events(cast("Any", spark), settings_of(source={"format": "throttle_load", "options": {"limit": 5}}).source)
    assert [call[0] for call in spark.dataSource.calls] == ["register"]
    assert spark.readStream.calls == [
        ("format", ("throttle_load",), {}),
        ("options", (), {"limit": "5"}),
        ("load", (), {}),
    ]


def test_files_are_read_with_their_schema_from_their_path_through_the_selection() -> None:
    spark = Session()
    source = {"format": "json", "path": "in", "schema": "a INT", "select": ["a AS id", "a"]}
    read_events(cast("Any", spark), settings_of(source=source).source)
    assert spark.dataSource.calls == []
    assert spark.readStream.calls[2:] == [
        ("schema", ("a INT",), {}),
        ("load", ("in",), {}),
        ("selectExpr", ("a AS id", "a"), {}),
    ]


@pytest.mark.parametrize(
    ("format_name", "decide_on", "size", "is_referred_to"),
    [
        ("delta", "auto", "size", True),
        ("delta", "auto", "length(value)", False),
        ("delta", "references", "length(value)", True),
        ("delta", "staged", "size", False),
        ("parquet", "auto", "size", False),
        ("parquet", "references", "size", True),
        ("json", "auto", "size", False),
    ],
)
def test_source_is_read_for_references_where_that_is_asked_for_or_safe(
    format_name: str, decide_on: str, size: str, is_referred_to: bool
) -> None:
    spark, throttle = Session(), Recorder()
    source = {"format": format_name, "path": "in", "schema": "a INT", "select": ["a"], "decide_on": decide_on}
    settings = settings_of(source=source, throttle={**SMALL["throttle"], "size": size})
    read_stream(cast("Any", throttle), cast("Any", spark), settings)
    assert bool(throttle.called("read_stream")) == is_referred_to
    assert bool(spark.readStream.calls) != is_referred_to
    assert (throttle if is_referred_to else spark.readStream).calls[-2:] == [
        ("load", ("in",), {}),
        ("selectExpr", ("a",), {}),
    ]


def test_query_is_written_as_the_settings_say() -> None:
    throttle = started(
        settings_of(
            sink={"format": "delta", "path": "out", "options": {"mergeSchema": True}, "partition_by": ["day"]},
            rejected={"format": "parquet", "path": "bad", "options": {"compression": "zstd"}},
            usage="used",
            query_name="q",
        )
    )
    assert throttle.calls == [
        ("write_stream", ("the events",), {}),
        ("format", ("delta",), {}),
        ("options", (), {"mergeSchema": "true"}),
        ("option", ("checkpointLocation", "checkpoint"), {}),
        ("queryName", ("q",), {}),
        ("trigger", (), {"processingTime": "1 second"}),
        ("partitionBy", ("day",), {}),
        ("rejected", ("parquet",), {"path": "bad", "compression": "zstd"}),
        ("usage", ("used",), {}),
        ("start", ("out",), {}),
    ]


def test_rows_are_settled_by_the_stream_that_the_settings_name() -> None:
    settings = settings_of(
        throttle={**SMALL["throttle"], "units": "estimate", "reservation": "id"},
        costs={"format": "delta", "path": "told", "identity": "of", "units": "cost"},
    )
    throttle = Recorder()
    start_query(cast("Any", throttle), cast("Any", "the events"), settings, cast("Any", "the costs"))
    assert throttle.called("settled_by") == [(("the costs", "of", "cost"), {})]


def test_what_is_not_set_is_not_called() -> None:
    throttle = started(settings_of())
    optional = ("partitionBy", "rejected", "usage", "toTable", "settled_by")
    assert not [name for name, _, _ in throttle.calls if name in optional]


def test_table_and_sinks_without_a_path_are_started_as_such() -> None:
    assert started(settings_of(sink={"format": "delta", "table": "t"})).calls[-1] == ("toTable", ("t",), {})
    assert started(settings_of(sink={"format": "kafka"})).calls[-1] == ("start", (), {})


def test_available_now_is_asked_for_alone() -> None:
    throttle = started(settings_of(trigger={"processing_time": None, "available_now": True}))
    assert throttle.called("trigger") == [((), {"availableNow": True})]


def test_idle_query_is_stopped_at_once() -> None:
    query = Query()
    stop_between_batches(cast("Any", query))
    assert query.waits_before_stop == 0


def test_query_is_stopped_when_its_trigger_rests() -> None:
    query = Query(busy=3)
    stop_between_batches(cast("Any", query))
    assert query.waits_before_stop == 3


def test_query_that_starts_is_stopped_behind_its_first_batch() -> None:
    query = Query(starting=2, busy=5)
    stop_between_batches(cast("Any", query))
    assert query.waits_before_stop == 5


def test_query_that_never_rests_is_stopped_after_a_batch() -> None:
    query = Query(busy=10**6, batch=7)
    stop_between_batches(cast("Any", query))
    assert query.waits_before_stop == 7


def test_batch_that_does_not_end_is_interrupted() -> None:
    query = Query(busy=10**6)
    stop_between_batches(cast("Any", query), patience_seconds=2)
    assert query.waits_before_stop == 40


def test_offered_rows_are_read_from_the_progress() -> None:
    class Started(Query):
        lastProgress = Progress(4, None, '{"epoch": 3}', '{"rows": 17}')  # noqa: N815

    assert offered_rows(cast("Any", Started())) == 17
    assert offered_rows(cast("Any", Query())) == 0


def test_wrong_setting_ends_the_job_before_spark_starts(caplog: pytest.LogCaptureFixture) -> None:
    assert throttle_stream.main(["--conf", str(CONF), "--set", "throttle.direct=publish"]) == 2
    assert "throttle.direct: unknown key; did you mean direction?" in caplog.text


def test_log_of_the_job_has_no_line_of_py4j_for_each_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert throttle_stream.main(["--conf", str(CONF), "--set", "throttle.direct=publish"]) == 2
    assert not logging.getLogger("py4j.clientserver").isEnabledFor(logging.INFO)


def test_missing_policy_file_ends_the_job_before_spark_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = tmp_path / "nowhere.yaml"
    assert throttle_stream.main(["--conf", str(CONF), "--set", f"throttle.policies={missing}"]) == 2
    assert "nowhere.yaml" in caplog.text


def test_stream_that_spark_does_not_read_ends_the_job_with_its_section(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise AnalysisException("[DELTA_SCHEMA_NOT_SET] Table schema is not set.\n'Plan")

    for name in ("open_session", "read_stream"):
        monkeypatch.setattr(throttle_stream, name, lambda *_: None)
    monkeypatch.setattr(throttle_stream, "read_events", refuse)
    settings = ["throttle.reservation=id", "costs={format: delta, path: /nowhere, identity: id, units: n}"]
    arguments = ["--conf", str(CONF), "--set", "throttle.units=1"]
    assert throttle_stream.main([*arguments, *(part for each in settings for part in ("--set", each))]) == 2
    (said,) = caplog.messages
    assert said.startswith("costs: Spark does not read delta at /nowhere ([DELTA_SCHEMA_NOT_SET] Table schema is not")
    assert said.endswith("; correct its path, format or select")


def test_refused_start_ends_the_job_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise ConfigurationError("the column is none")

    for name in ("open_session", "read_stream"):
        monkeypatch.setattr(throttle_stream, name, lambda *_: None)
    monkeypatch.setattr(throttle_stream, "start_query", refuse)
    assert throttle_stream.main(["--conf", str(CONF)]) == 2
    assert caplog.messages == ["the column is none"]


DOCUMENT = "tenants: {t: {publish: {messages_per_second: 7}}}"


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[Throttle]:
    """Every throttle that the job makes; no session starts."""
    made: list[Throttle] = []

    def keep(throttle: Any, *_: Any) -> Any:
        made.append(throttle)
        return Query()

    monkeypatch.setattr(throttle_stream, "open_session", lambda _settings: Session())
    monkeypatch.setattr(throttle_stream, "read_stream", lambda *_: "the events")
    monkeypatch.setattr(throttle_stream, "start_query", keep)
    monkeypatch.setattr(throttle_stream, "_follow", lambda *_: None)
    monkeypatch.setattr(Query, "id", "0", raising=False)
    return made


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("file", "{tmp}/p.yaml"),
        ("file", "{tmp}/{{env}}/p.yaml"),
        ("store", "delta:{tmp}/policies"),
        ("store", "file:{tmp}/p.yaml"),
        ("document", "{{tenants: {{t: {{publish: {{messages_per_second: 7}}}}}}}}"),
        ("document", "'{{tenants: {{t: {{publish: {{messages_per_second: 7}}}}}}}}'"),
    ],
)
def test_job_takes_policies_of_each_kind(tmp_path: Path, followed: list[Throttle], kind: str, written: str) -> None:
    for path in (tmp_path / "p.yaml", tmp_path / "{env}" / "p.yaml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(DOCUMENT)
    PolicyService(DeltaStore.create(str(tmp_path / "policies")), clock_ms=lambda: 0).apply(
        load_policies(DOCUMENT), Author("ann", "a test")
    )
    override = f"throttle.policies={written.format(tmp=tmp_path)}"
    assert throttle_stream.main(["--conf", str(CONF), "--set", override]) == 0
    (throttle,) = followed
    assert throttle.policies.kind == kind
    assert throttle.policies.load() == load_policies(DOCUMENT)


def test_job_takes_a_file_on_an_object_store(
    tmp_path: Path, followed: list[Throttle], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.yaml").write_text(DOCUMENT)
    monkeypatch.setattr(
        policy_location, "file_system", lambda uri: file_system(uri.replace("s3://bucket", str(tmp_path)))
    )
    assert throttle_stream.main(["--conf", str(CONF), "--set", "throttle.policies=s3://bucket/p.yaml"]) == 0
    (throttle,) = followed
    assert throttle.policies == PolicyLocation("object", "s3://bucket/p.yaml")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("delta:{tmp}/nowhere", "there is no policy store"),
        ("file:{tmp}/nowhere.yaml", "there is no such file"),
        ("{tmp}/nowhere.yaml", "was understood as the path of a file, which does not exist"),
        ("https://host/p.yaml", "the scheme https: cannot be followed"),
        ("{{tenants: {{t: {{publish: {{message_per_second: 7}}}}}}}}", "did you mean messages_per_second"),
    ],
)
def test_job_ends_before_spark_starts_where_there_are_no_policies(
    tmp_path: Path, followed: list[Throttle], caplog: pytest.LogCaptureFixture, written: str, said: str
) -> None:
    override = f"throttle.policies={written.format(tmp=tmp_path)}"
    assert throttle_stream.main(["--conf", str(CONF), "--set", override]) == 2
    assert said in caplog.text
    assert not followed
