"""What sends the rows of a query, as text, by which two runs of the query are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from spark_throttle.checkpoint.definition import digest
from spark_throttle.spark.paced.http_sender import HttpSender
from spark_throttle.spark.paced.sending import OpenedPerTask


def words_of(send: Callable[..., Any] | OpenedPerTask) -> str:
    """Return what a sender sends to: an `HttpSender`'s URL, without its secrets, or the name of a function or a class.

    Functions of one name are taken to be the same.

    Examples
    --------
    >>> words_of(HttpSender("https://api.example/events"))
    'https://api.example/events'
    >>> words_of(HttpSender("https://me:secret@api.example/events?key=1")).partition(" ")[0]
    'https://api.example/events'
    """
    if isinstance(send, HttpSender):
        parts = urlsplit(send.url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        return shown if shown == send.url else f"{shown} ({digest(send.url)})"
    named: Any = send if hasattr(send, "__qualname__") else getattr(send, "func", type(send))
    return f"the function {named.__module__}.{named.__qualname__}"
