"""A batch that is run again is told from another batch of the same number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.batch_mark import BatchMark, identity_of, parse_mark
from spark_throttle.core.usage import UsageReport, pack_usage, unpack_usage
from spark_throttle.errors import CheckpointMismatchError
from tests.status.test_status import report

REPORT = report({"acme/a": (5, 3, 1, 1)})


def test_identity_is_the_same_for_a_batch_that_is_run_again() -> None:
    assert identity_of(unpack_usage(pack_usage(REPORT), "it")) == identity_of(REPORT)
    assert len(identity_of(REPORT)) == 32


CHANGES: list[Callable[[UsageReport], UsageReport]] = [
    lambda r: replace(r, now_ms=r.now_ms + 1),
    lambda r: replace(r, epoch=r.epoch + 1),
    lambda r: replace(r, invalid_messages=1),
    lambda r: replace(r, names=pa.array(["acme/ax"])),
    *(
        lambda r, name=name: replace(r, **{name: getattr(r, name) + np.array([[0, 1, 0]])})
        for name in ("offered", "admitted", "rejected", "waiting")
    ),
]


@pytest.mark.parametrize("change", CHANGES)
def test_identity_differs_where_anything_that_left_or_came_does(change: Callable[[UsageReport], UsageReport]) -> None:
    assert identity_of(REPORT) not in (identity_of(change(REPORT)), identity_of(None))


def test_identity_tells_names_apart_that_join_to_the_same_text() -> None:
    pair = report({"ab": (1, 1, 0, 0), "c": (1, 1, 0, 0)})
    assert identity_of(pair) != identity_of(replace(pair, names=pa.array(["a", "bc"])))


def test_mark_is_read_back_and_other_texts_are_none() -> None:
    mark = BatchMark("q-1/usage", 12, "f00")
    assert parse_mark(mark.to_text()) == mark
    assert [parse_mark(text) for text in (None, "", "7", "[]", '{"throttle": 1}', '{"throttle": {}}')] == [None] * 6


@pytest.mark.parametrize(("newest", "identity"), [(7, "a"), (7, ""), (7, None), (6, "b")])
def test_sink_that_has_the_batch_or_not_yet_is_no_mismatch(newest: int, identity: str | None) -> None:
    BatchMark("q", 7, "a").check("the table", newest, identity)


@pytest.mark.parametrize(("newest", "identity"), [(8, "a"), (8, None), (7, "b")])
def test_sink_that_has_another_batch_is_refused_with_the_remedy(newest: int, identity: str | None) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"the table already has .* put this sink back as well"):
        BatchMark("q", 7, "a").check("the table", newest, identity)
