"""``Retry-After`` is read as RFC 9110 says: seconds, or a date in one of three forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.paced.gate import retry_after_seconds

NOW = "Sun, 06 Nov 1994 08:49:37 GMT"
DAY = 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 120 ", 120),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30),
        ("Sunday, 06-Nov-94 08:50:07 GMT", 30),
        ("Sun Nov  6 08:50:07 1994", 30),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("86401", DAY),
        ("9" * 400, DAY),
        ("Sun, 06 Nov 2094 08:50:07 GMT", DAY),
        ("120, 60", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        ("Sun, 99 Nov 1994 08:50:07 GMT", None),
    ],
)
def test_seconds_and_dates_are_read_and_anything_else_says_nothing(text: str, seconds: int | None) -> None:
    assert retry_after_seconds({"retry-after": text, "date": NOW}) == seconds


def test_answer_without_the_header_says_nothing() -> None:
    assert retry_after_seconds({"date": NOW}) is None


def test_date_of_an_answer_without_its_own_date_is_compared_with_the_clock() -> None:
    assert retry_after_seconds({"retry-after": NOW}) == 0
    assert retry_after_seconds({"retry-after": "Fri, 31 Dec 2999 00:00:00 GMT"}) == DAY


@pytest.mark.slow
@given(st.text(max_size=40))
def test_no_text_is_an_error(text: str) -> None:
    found = retry_after_seconds({"retry-after": text, "date": text})
    assert found is None or found >= 0
