"""The options of the streaming sink ``throttle_paced``, and of a query that sends at a pace; and where it sends to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.definition import digest
from spark_throttle.errors import ConfigurationError, did_you_mean
from spark_throttle.spark.paced.http_sender import HttpSender, shown_url
from spark_throttle.spark.paced.paced_sink import SendOptions
from spark_throttle.spark.paced.sending import OpenedPerTask

_HEADER: Final = "header."
_KNOWN: Final = ("url", "timeout_seconds", "attempts", "concurrency", "rows_per_call", "in_order", "patience_seconds")


def send_options(concurrency: int, rows_per_call: int, *, in_order: bool, patience_seconds: float) -> SendOptions:
    """Return how calls are made.

    Raises
    ------
    ConfigurationError
        If a number is none, or too small.
    """
    for name, value in (("concurrency", concurrency), ("rows_per_call", rows_per_call)):
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"{name} is {value!r}; give a whole number from 1 on")
    if type(in_order) is not bool:
        raise ConfigurationError(f"in_order is {in_order!r}; give True or False")
    _check_patience(patience_seconds)
    return SendOptions(concurrency, rows_per_call, in_order, patience_seconds)


def http_sender(options: Mapping[str, str]) -> tuple[HttpSender, SendOptions]:
    """Return what the options of the sink ``throttle_paced`` describe.

    Raises
    ------
    ConfigurationError
        If the option ``url`` is missing, or another is not known or cannot be read.

    Examples
    --------
    >>> sender, calls = http_sender({"url": "http://api.example", "header.X-Team": "data", "concurrency": "4"})
    >>> sender.headers, calls.concurrency
    ({'X-Team': 'data'}, 4)
    """
    headers = {name[len(_HEADER) :]: value for name, value in options.items() if name.startswith(_HEADER)}
    given = {name: value for name, value in options.items() if not name.startswith(_HEADER)}
    for name in given:
        if name not in _KNOWN:
            raise ConfigurationError(f"throttle_paced has no option {name!r}{did_you_mean(name, _KNOWN)}")
    if "url" not in given:
        raise ConfigurationError("throttle_paced needs option('url', …), or call paced(send) with a function")
    sender: dict[str, Any] = {
        name: _number(kind, name, given[name])
        for name, kind in (("timeout_seconds", float), ("attempts", int))
        if name in given
    }
    patience_seconds = _number(float, "patience_seconds", given.get("patience_seconds", "60"))
    calls = {name: _number(int, name, given[name]) for name in ("concurrency", "rows_per_call") if name in given}
    plain = SendOptions()
    in_order = given.get("in_order", "true")
    if in_order not in ("true", "false"):
        raise ConfigurationError(f"option in_order is {in_order!r}; give true or false")
    return HttpSender(given["url"], headers, **sender), send_options(
        calls.get("concurrency", plain.concurrency),
        calls.get("rows_per_call", plain.rows_per_call),
        in_order=in_order == "true",
        patience_seconds=patience_seconds,
    )


def patience(text: str | None) -> float:
    """Return for how many seconds a function for `foreachBatch` may refuse a batch, by the option's text.

    Raises
    ------
    ConfigurationError
        If it is no number, or below 0.
    """
    found = SendOptions().patience_seconds if text is None else float(_number(float, "throttle.patience_seconds", text))
    _check_patience(found)
    return found


def check_send(send: object) -> None:
    """Refuse what takes no call, before a query begins that could send nothing.

    Raises
    ------
    ConfigurationError
        If it cannot be called with rows and a key, or is a generator, whose body would not run.

    Examples
    --------
    >>> check_send(lambda rows: None)
    Traceback (most recent call last):
    spark_throttle.errors.ConfigurationError: send takes (rows), and is called with two arguments; give \
a function of two arguments, the list of rows and the call's key
    """
    if isinstance(send, type) and hasattr(send, "opened"):
        raise ConfigurationError(f"send is the class {send.__name__}; give an object of it, {send.__name__}(…)")
    if isinstance(send, OpenedPerTask):
        return
    if not callable(send):
        raise ConfigurationError(
            f"send is {send!r}, which cannot be called; give a function of a list of rows and a key, or an HttpSender"
        )
    for each in (send, send.__call__):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigurationError("send is a generator, whose body would never run; leave out its yield")
    try:
        signature = inspect.signature(send)
    except (TypeError, ValueError):  # of some functions that are not written in Python
        return
    try:
        signature.bind([], None)
    except TypeError:
        raise ConfigurationError(
            f"send takes {signature}, and is called with two arguments; give a function of two arguments, the list of "
            "rows and the call's key"
        ) from None


def check_travels(send: Callable[..., Any] | OpenedPerTask) -> None:
    """Refuse what Spark cannot send to the executors, before the first batch does.

    Raises
    ------
    ConfigurationError
        With what could not be pickled.
    """
    try:
        cloudpickle.dumps(send)  # type: ignore[no-untyped-call]
    except Exception as error:  # a class of anyone's may raise anything
        raise ConfigurationError(
            f"send, {words_of(send)}, cannot be sent to the executors: {error}; make what it holds, such as a lock or "
            "a client, inside it when it is first called there"
        ) from error


def _check_patience(patience_seconds: object) -> None:
    if type(patience_seconds) not in {int, float} or not patience_seconds >= 0:  # type: ignore[operator]
        raise ConfigurationError(f"patience_seconds is {patience_seconds!r}; give a number from 0 on")


def _number(kind: type, name: str, text: str) -> Any:  # noqa: ANN401 - of the kind
    try:
        return kind(text)
    except ValueError as error:
        number = "a whole number" if kind is int else "a number"
        raise ConfigurationError(f"option {name} is {text!r}; give {number}") from error


def interval_ms(spark: SparkSession, trigger: Mapping[str, Any]) -> int | None:
    """Return the interval of a trigger as Spark reads it; `None` if batches follow one another without one."""
    text = trigger.get("processingTime")
    if text is None:
        return None
    literal = str(text).strip().lower().removeprefix("interval ").replace("'", "")
    elapsed = F.expr(f"unix_millis(timestamp_seconds(0) + INTERVAL '{literal}')")
    found = int(spark.range(1).select(elapsed).collect()[0][0])
    return found or None


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
        shown = shown_url(send.url)
        return shown if shown == send.url else f"{shown} ({digest(send.url)})"
    named: Any = send if hasattr(send, "__qualname__") else getattr(send, "func", type(send))
    return f"the function {named.__module__}.{named.__qualname__}"
