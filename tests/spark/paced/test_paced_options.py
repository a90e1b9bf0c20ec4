"""The arguments of `paced` are looked at before the query begins."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.paced import HttpSender
from spark_throttle.spark.paced.paced_options import check_send, check_travels


def of_two(rows: object, key: object) -> None:
    """Take what is sent."""


def of_three(more: object, rows: object, key: object) -> None:
    """Take what is sent, and more."""


def of_one(rows: object) -> None:
    """Take too little."""


def of_keywords(*, rows: object, key: object) -> None:
    """Take what is sent by name only."""


def generating(rows: object, key: object) -> Iterator[None]:
    yield


async def generating_later(rows: object, key: object) -> AsyncIterator[None]:
    yield


class Called:
    def __call__(self, rows: object, key: object, retries: int = 3) -> None:
        """Take what is sent."""


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (of_one, r"send takes \(rows: 'object'\)"),
        (of_keywords, r"give a function of two arguments"),
        (lambda: None, r"send takes \(\).*give a function of two arguments"),
        ("https://api.example", r"send is 'https://api.example', which cannot be called; give .* HttpSender"),
        (None, r"send is None, which cannot be called"),
        (HttpSender, r"send is the class HttpSender; give an object of it"),
        (generating, r"a generator.* would never run; leave out its yield"),
        (generating_later, r"a generator.* would never run; leave out its yield"),
        (functools.partial(generating, []), r"a generator"),
    ],
)  # fmt: skip
def test_what_could_send_nothing_is_refused(send: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_send(send)


@pytest.mark.parametrize(
    "send", [of_two, Called(), functools.partial(of_three, 1), lambda *_: None, print, HttpSender("http://api.example")]
)
def test_what_takes_rows_and_a_key_is_taken(send: Any) -> None:
    check_send(send)
    check_travels(send)


def test_what_cannot_be_sent_to_executors_is_refused_with_the_reason() -> None:
    lock = threading.Lock()

    def send(rows: object, key: object) -> None:
        with lock:
            pass

    with pytest.raises(ConfigurationError, match=r"send.* cannot be sent to the executors: cannot pickle .*lock.*; "):
        check_travels(send)
