"""A batch that may stand in a sink is decided by one definition; one that stands in none, by any."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.definition import (
    FUNCTION,
    NAME,
    Definition,
    OpenBatch,
    begin,
    decided_digest,
    read_open_batch,
    write_open_batch,
)
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import DamagedError, DefinitionChangedError, UnknownVersionError
from spark_throttle.files.storage import Directory

OLD = Definition(
    {"namespace": "ns", "order_by[0]": "id"},
    (("id", "bigint"), ("ns", "string")),
    "abcd",
    {"spark.sql.session.timeZone": "UTC"},
    {"the sink": "Delta /lake/a", "the dead letters": "folders in /lake/d"},
)
CHANGES = {
    "another expression": (
        replace(OLD, expressions={"namespace": "ns", "order_by[0]": "negative(id)"}),
        "order_by[0] was `id` and is `negative(id)`",
    ),
    "an expression more": (
        replace(OLD, expressions={**OLD.expressions, "size": "length(ns)"}),
        "size was `not there` and is `length(ns)`",
    ),
    "a column more": (
        replace(OLD, columns=(*OLD.columns, ("x", "int")), ties="efgh"),
        "column x was `not there` and is `int`",
    ),
    "a column less": (replace(OLD, columns=(("id", "bigint"),)), "column ns was `string` and is `not there`"),
    "another type": (
        replace(OLD, columns=(("id", "int"), ("ns", "string"))),
        "column id was `bigint` and is `int`",
    ),
    "another order of the columns": (
        replace(OLD, columns=(("ns", "string"), ("id", "bigint")), ties="efgh"),
        "the order of the columns was `id, ns` and is `ns, id`",
    ),
    "another hash": (replace(OLD, ties="efgh"), "the hash of a row was `abcd` and is `efgh`"),
    "another time zone": (
        replace(OLD, settings={"spark.sql.session.timeZone": "Asia/Tokyo"}),
        "spark.sql.session.timeZone was `UTC` and is `Asia/Tokyo`",
    ),
}


def report(names: list[str], counts: list[tuple[int, int, int]], **changes: Any) -> UsageReport:
    offered, admitted, rejected = (
        np.array([[row[at], 100 * row[at], 0] for row in counts], dtype=np.int64).reshape(-1, 3) for at in range(3)
    )
    nothing = np.zeros_like(offered)
    zeros = np.zeros(len(names), dtype=np.int64)
    found = UsageReport(
        1,
        "r",
        5,
        pa.array(names, pa.string()),
        zeros,
        zeros,
        zeros,
        offered,
        admitted,
        rejected,
        nothing,
        nothing,
        zeros,
        zeros,
        np.zeros((1, 2), dtype=np.int64),
        NEVER_MS,
        NEVER_MS,
        NEVER_MS,
    )
    return replace(found, **changes)


@pytest.mark.parametrize(("new", "words"), CHANGES.values(), ids=CHANGES.keys())
def test_batch_that_a_sink_has_is_refused_under_another_definition(tmp_path: Path, new: Definition, words: str) -> None:
    directory = Directory(str(tmp_path))
    begin(directory, 7, OLD, lambda *_: False)
    with pytest.raises(DefinitionChangedError) as refused:
        begin(directory, 7, new, lambda kind, target: (kind, target) == ("the sink", "Delta /lake/a"))
    text = str(refused.value)
    assert text.startswith("batch 7 is not committed")
    assert f": {words}; start once with the old definition" in text
    assert str(tmp_path / NAME) in text
    assert read_open_batch(directory) == OpenBatch(7, "", OLD)


@pytest.mark.parametrize(("new", "_"), CHANGES.values(), ids=CHANGES.keys())
def test_batch_that_no_sink_has_is_decided_by_any_definition(tmp_path: Path, new: Definition, _: str) -> None:
    directory = Directory(str(tmp_path))
    begin(directory, 7, OLD, lambda *_: False)
    begin(directory, 7, new, lambda *_: False)
    assert read_open_batch(directory) == OpenBatch(7, "", new)


@pytest.mark.parametrize(("new", "_"), CHANGES.values(), ids=CHANGES.keys())
def test_definition_may_change_between_batches(tmp_path: Path, new: Definition, _: str) -> None:
    directory = Directory(str(tmp_path))
    begin(directory, 7, OLD, lambda *_: True)
    begin(directory, 8, new, lambda *_: True)
    assert read_open_batch(directory) == OpenBatch(8, "", new)


def test_same_definition_is_taken_again(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    for _ in range(2):
        begin(directory, 0, OLD, lambda *_: True, "1234")
    assert read_open_batch(directory) == OpenBatch(0, "1234", OLD)


def test_rows_that_are_decided_otherwise_are_refused_though_the_definition_is_the_same(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    begin(directory, 3, OLD, lambda *_: True, "1234")
    with pytest.raises(DefinitionChangedError, match=r"the digest of each namespace's rows was `1234`"):
        begin(directory, 3, OLD, lambda *_: True, "5678")
    begin(directory, 3, OLD, lambda *_: True)  # whoever has not seen all rows compares none
    begin(directory, 3, OLD, lambda *_: False, "5678")


def test_target_may_move_unless_the_old_one_has_the_batch(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    begin(directory, 3, OLD, lambda *_: True)
    elsewhere = replace(OLD, targets={**OLD.targets, "the dead letters": "folders in /lake/e"})
    with pytest.raises(
        DefinitionChangedError, match="the dead letters was `folders in /lake/d` and is `folders in /lake/e`"
    ):
        begin(directory, 3, elsewhere, lambda kind, _: kind == "the dead letters")
    begin(directory, 3, elsewhere, lambda kind, _: kind == "the sink")
    more = replace(elsewhere, targets={**elsewhere.targets, "the usage table": "Delta /lake/u"})
    begin(directory, 3, more, lambda *_: True)
    begin(directory, 3, elsewhere, lambda *_: True)


def test_what_a_function_was_given_may_go_elsewhere(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    begin(directory, 3, replace(OLD, targets={"the sink": FUNCTION}), lambda *_: True)
    begin(directory, 3, OLD, lambda *_: True)


def test_batch_begun_under_a_newer_release_or_damaged_is_named(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    assert read_open_batch(directory) is None
    write_open_batch(directory, OpenBatch(3, "1234", OLD))
    written = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**written, "format": 2}))
    with pytest.raises(UnknownVersionError, match=f"the begun batch {tmp_path / NAME} has format version 2"):
        read_open_batch(directory)
    for damaged in (b"", b"{}", json.dumps({**written, "definition": {"columns": 1}}).encode()):
        (tmp_path / NAME).write_bytes(damaged)
        with pytest.raises(DamagedError, match=NAME):
            read_open_batch(directory)


def test_digest_of_what_was_decided_sees_who_came_and_left() -> None:
    names, counts = ["t/a", "t/b", "t/c"], [(3, 2, 1), (5, 0, 0), (0, 0, 0)]
    found = decided_digest(report(names, counts))
    assert found == decided_digest(report(names[::-1], counts[::-1]))
    assert found == decided_digest(report(names[:2], counts[:2]))
    others = [
        report(["t/a", "t/x"], counts[:2]),
        report(names, [(3, 2, 1), (4, 0, 0), (0, 0, 0)]),
        report(names, [(3, 1, 1), (5, 0, 0), (0, 0, 0)]),
        report(names, [(3, 2, 0), (5, 0, 0), (0, 0, 0)]),
        report(names, counts, invalid_messages=1),
    ]
    assert len({found, *(decided_digest(other) for other in others)}) == 6


def test_digest_takes_names_that_are_no_text() -> None:
    broken = pa.array([b"t/\xff", b"t/a"]).view(pa.string())
    assert decided_digest(replace(report(["t/x", "t/a"], [(1, 0, 0), (1, 1, 0)]), names=broken))
