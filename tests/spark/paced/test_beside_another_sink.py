"""A query has one sink: what is given beside `paced` is refused, in whichever order, and not ignored."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.writer import ThrottledStreamWriter


def send(rows: Any, key: Any) -> None:
    """Take rows."""


def writer() -> ThrottledStreamWriter:
    return ThrottledStreamWriter(SimpleNamespace(events=None), lambda _: None, lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "other"),
    [
        (lambda: writer().paced(send).format("delta").start(), r"format\('delta'\)"),
        (lambda: writer().format("delta").paced(send).start(), r"format\('delta'\)"),
        (lambda: writer().paced(send).start(format="parquet"), r"format\('parquet'\)"),
        (lambda: writer().paced(send).foreachBatch(send).start(), "foreachBatch"),
        (lambda: writer().foreachBatch(send).paced(send).start(), "foreachBatch"),
        (lambda: writer().paced(send).start("/lake/out"), "the place '/lake/out'"),
        (lambda: writer().paced(send).option("path", "/lake/out").start(), "the place '/lake/out'"),
        (lambda: writer().paced(send).toTable("out"), r"format\('delta'\)"),
        (lambda: writer().paced(send).toTable("out", format="throttle_paced"), "the place 'out'"),
    ],
)
def test_second_sink_is_refused(start: Callable[[], Any], other: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"paced\(send\) is the query's sink, and so is {other}; leave out"):
        start()


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: writer().paced(send).option("throttle.patience", 5).start(),
         r"there is no option 'throttle.patience'; did you mean throttle.patience_seconds\?"),
        (lambda: writer().paced(send).option("rows_a_call", 5).start(),
         r"paced\(send\) has no use for the option 'rows_a_call'; give paced\(…\) its arguments.*rows_per_call"),
        (lambda: writer().paced(send).option("throttle.patience_seconds", 5).start(),
         r"'throttle.patience_seconds' is for a function of foreachBatch; paced\(…\) .* take patience_seconds"),
        (lambda: writer().format("delta").option("Throttle.Patience_Seconds", 5).start(), "for a function of foreach"),
        (lambda: writer().paced(send).option("header.A", "data").start(), r"no use for the option 'header.A'"),
    ],
)  # fmt: skip
def test_option_that_would_do_nothing_is_refused(start: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start()
