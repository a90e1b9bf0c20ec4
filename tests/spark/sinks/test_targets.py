"""Targets behave as the table of formats says; the parts that need no JVM."""

from __future__ import annotations

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.sinks.taken_batch import FOLDERS, SINK, TABLE, has_rows
from spark_throttle.spark.sinks.targets import (
    FORMATS,
    SinkFormat,
    Target,
    refuse_branches,
    refuse_dead_letters,
    refuse_shared_places,
    targets_of,
)
from spark_throttle.spark.sinks.transactional import MARKED

LETTERS = Target("parquet", path="/letters")


@pytest.mark.parametrize("known", FORMATS.values(), ids=lambda known: known.name)
def test_sink_that_promises_exactly_once_can_be_asked_for_a_batch(known: SinkFormat) -> None:
    """A sink that cannot be asked would accept a batch twice, decided by different definitions."""
    words = targets_of(Target(known.name, path="/out"), LETTERS, None)[SINK]
    is_asked_itself = words.partition(" ")[0] in MARKED
    assert (words.startswith((TABLE, FOLDERS)) or is_asked_itself) == (known.promise == "exactly once")
    assert has_rows("q", 1, words) == is_asked_itself or words.startswith(TABLE)


def test_table_without_a_format_is_deltas_and_a_path_without_one_is_not() -> None:
    assert Target(None, table="catalog.t").is_delta
    assert not Target(None, path="/out").is_delta


def test_format_that_nobody_knows_is_another_system() -> None:
    target = Target("jdbc", path="/out")
    assert (target.promise, target.is_paid_by_bytes, target.has_batch_folders) == ("at least once", False, False)


@pytest.mark.parametrize("name", ["csv", "text"])
def test_format_without_structs_takes_no_dead_letters(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^dead letters cannot be '{name}' files, .* give 'delta', 'parquet'"):
        refuse_dead_letters(name)


@pytest.mark.parametrize(
    "branch", [Target("iceberg", {"Branch": "audit"}, table="db.t"), Target("iceberg", table="lake.db.t.branch_audit")]
)
def test_branch_of_an_iceberg_table_is_refused(branch: Target) -> None:
    with pytest.raises(ConfigurationError, match=r"a branch of the Iceberg table .*db\.t"):
        refuse_branches(LETTERS, branch)


def test_dead_letters_in_files_have_a_folder_a_batch() -> None:
    known = {name for name in FORMATS if Target(name, path="/letters").has_batch_folders}
    assert known >= {"parquet", "json", "orc", "csv", "avro", "text", "xml"}
    assert not known & {"delta", "console", "noop", "memory"}


@pytest.mark.parametrize(
    ("admitted", "rejected", "usage", "said"),
    [
        (
            Target("delta", path="/lake/t"),
            LETTERS,
            "file:/lake/t/",
            "the usage table and the sink are both /lake/t: give",
        ),
        (
            Target("json", path="/out"),
            Target("delta", path="/d"),
            "/d",
            "the usage table and the dead letters are both",
        ),
        (
            Target("parquet", path="/letters/"),
            LETTERS,
            None,
            "the dead letters and the sink are both /letters: give each",
        ),
    ],
)
def test_rows_of_two_kinds_that_nobody_could_tell_apart_are_refused(
    admitted: Target, rejected: Target, usage: str | None, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        refuse_shared_places(admitted, rejected, None if usage is None else Target("delta", path=usage))


def test_one_table_may_take_admitted_rows_and_dead_letters() -> None:
    table = Target("delta", path="/lake/t")
    refuse_shared_places(table, table, None)
    refuse_shared_places(Target("kafka", path="/letters"), LETTERS, Target("delta", path="/usage"))
    refuse_shared_places(Target(None, table="a.t"), Target(None, table="a.u"), Target("delta", path="/usage"))
