"""The meter of a function measures the time of its calls, takes down what it says, and counts the rows it is given.

A clock is a thread's CPU time, or the time that passes. Both are differences, so nothing here tells the time of day.
The clock of a call runs while the function does, and stands while Spark has the turn. It belongs to the thread that
calls the function. A function may take its rows in a thread of its own: the clock is not touched there, as one thread's
CPU time says nothing of another's. A metered function may call another: then the clock of the outer one stands while
that of the inner one runs, so that time is charged once.

Rows come as a pandas DataFrame, an Arrow RecordBatch, as the arguments of a UDF, one series or array each, or as lists
of Spark's Row, whose names are counted one by one: into one count for as long as possible, for each count has a cost.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from spark_throttle.core.quota import MAX_UNITS, Int64s
from spark_throttle.core.reservations import LateCosts
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.rows.identities import identity_of, identity_words

ClockName = Literal["cpu", "wall"]

CLOCKS: Final[dict[ClockName, Callable[[], int]]] = {"cpu": time.thread_time_ns, "wall": time.perf_counter_ns}
"""By name: a clock in nanoseconds. That of the CPU time belongs to the thread that reads it."""

_NS_PER_SECOND: Final = 1_000_000_000
_MOST_SECONDS: Final = 2**30

Place: TypeAlias = str | int
"""Where the namespace is: the name of a column, or the position of an argument of a UDF."""

Counts: TypeAlias = tuple[pa.StringArray, Int64s]
"""Namespaces, each once, null for rows of none; and the number of rows of each."""

_TEXT: Final = frozenset((str,))


class _Blocks(threading.local):
    """The blocks of code of one thread that are being charged."""

    def __init__(self) -> None:
        self.namespaces: list[str] = []
        """From the outermost block to the innermost."""

        self.since_ns = 0
        """Until when they have been charged."""


class Meter:
    """What a metered function says itself of the time that it used; a function with a parameter `meter` is given it.

    It may be used in any thread of the function's process, until the function's call has ended. What is said for a
    namespace is charged to it in full. Of the time that was measured, only what is more than all that was said is
    divided by rows.

    Examples
    --------
    >>> meter = Meter("cpu")
    >>> meter.charge("acme/model", 0.25)
    >>> with meter.charging("acme/lookup"):
    ...     total = sum(range(1000))
    >>> meter.charged_ns["acme/model"], meter.charged_ns["acme/lookup"] > 0
    (250000000, True)
    """

    def __init__(self, clock: ClockName) -> None:
        self.read_ns = CLOCKS[clock]
        self.charged_ns = Counter[str]()
        """What was said, by namespace."""

        self.said_ns = 0
        """The sum of all that was said."""

        self._costs: list[tuple[bytes, int]] = []
        self._lock = threading.Lock()
        self._blocks = _Blocks()
        self._has_ended = False

    def charge(self, namespace: str, seconds: float) -> None:
        """Charge time to a namespace.

        Raises
        ------
        ConfigurationError
            If the time is negative or no number, the namespace is no text, or the function's call has ended.
        """
        self._check(namespace)
        self._charge_ns(namespace, _as_ns(seconds))

    def settle(self, identity: str | bytes | int, units: int) -> None:
        """Say what a row that was reserved really cost.

        Parameters
        ----------
        identity
            The row's value of the throttle's `reservation`.
        units
            Its cost, a whole number. The difference from the row's estimate is charged with the next batch, once.

        Raises
        ------
        ConfigurationError
            If the identity is no text, binary or whole number, the cost none of a row, or the function's call has
            ended.

        Examples
        --------
        >>> meter = Meter("cpu")
        >>> meter.settle("request-7", 175)
        >>> meter.costs.units.tolist()
        [175]
        """
        if not (_is_text(identity) or isinstance(identity, bytes) or _is_whole(identity)):
            raise ConfigurationError(f"{identity!r} identifies no row: give the value of its `reservation`")
        if not _is_whole(units) or not 0 <= units <= MAX_UNITS:
            raise ConfigurationError(f"{units!r} cannot be the cost of a row: give a whole number from 0 to 2**36")
        told = identity_of(identity if isinstance(identity, str | bytes) else int(identity)), int(units)
        with self._lock:
            if self._has_ended:
                raise ConfigurationError(
                    f"the cost of {identity!r} was told after the metered function's call had ended, and would be "
                    f"lost: let the function wait for its threads, and use no meter of an earlier call"
                )
            self._costs.append(told)

    @property
    def costs(self) -> LateCosts | None:
        """What was said of the costs of rows; `None` if nothing was."""
        if not self._costs:
            return None
        identities, units = zip(*self._costs, strict=True)
        return LateCosts(identity_words(pa.array(identities, pa.binary())), np.array(units, dtype=np.int64))

    @contextmanager
    def charging(self, namespace: str) -> Iterator[None]:
        """Charge what a block of code takes, by the function's clock, to a namespace.

        A block inside another is charged to its own namespace alone.
        """
        self._check(namespace)
        self.charge_blocks(self.read_ns())
        self._blocks.namespaces.append(namespace)
        try:
            yield
        finally:
            self.charge_blocks(self.read_ns())
            self._blocks.namespaces.pop()

    def charge_blocks(self, now_ns: int) -> None:
        """Charge the innermost block of code of this thread up to now."""
        blocks = self._blocks
        if blocks.namespaces:
            self._charge_ns(blocks.namespaces[-1], now_ns - blocks.since_ns)
        blocks.since_ns = now_ns

    def pass_over(self, now_ns: int) -> None:
        """Charge no block of code of this thread for the time since they were charged last until now."""
        self._blocks.since_ns = now_ns

    def end(self) -> Counter[str]:
        """Return what was said until the function's call ended, by namespace; after that nothing more can be said."""
        with self._lock:
            self._has_ended = True
        return self.charged_ns

    def _check(self, namespace: str) -> None:
        if not _is_text(namespace):
            raise ConfigurationError(f"{namespace!r} is no namespace: charge the name that the throttle decides by")

    def _charge_ns(self, namespace: str, time_ns: int) -> None:
        with self._lock:
            if self._has_ended:
                raise ConfigurationError(
                    f"time was charged to {namespace!r} after the metered function's call had ended, and would be "
                    f"lost: let the function wait for its threads, and use no meter of an earlier call"
                )
            self.charged_ns[namespace] += time_ns
            self.said_ns += time_ns


def _is_whole(number: object) -> bool:
    """Return whether a value is a whole number; numpy has its own."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _as_ns(seconds: float | str) -> int:
    """Return seconds in nanoseconds; numbers of numpy are too narrow to be multiplied as they are."""
    try:
        plain = math.nan if isinstance(seconds, str) else float(seconds)
    except (TypeError, ValueError, OverflowError):
        plain = math.nan
    if not 0 <= plain < _MOST_SECONDS:
        raise ConfigurationError(f"{seconds} seconds cannot be charged: give 0 or more, and less than 2**30")
    return round(plain * _NS_PER_SECOND)


def _is_text(value: object) -> bool:
    """Return whether a value is text that can be stored: half a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Running(threading.local):
    """The clock that runs in a thread."""

    clock: CallClock | None = None


_RUNNING = _Running()


class CallClock:
    """What a call has used, until `taken_ns` takes it.

    Examples
    --------
    >>> clock = CallClock(Meter("wall"))
    >>> clock.start()
    >>> clock.stop()
    True
    >>> clock.taken_ns() > 0, clock.taken_ns()
    (True, 0)
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._used_ns = 0
        self._since_ns = 0
        """When the clock last began to run, or to stand."""

        self._is_running = False
        self._thread: int | None = None
        self._outer: CallClock | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Let the clock run, in this thread."""
        if self._is_running:
            return
        outer = _RUNNING.clock
        if outer is not None:
            outer.suspend()
        self._outer, _RUNNING.clock = outer, self
        self.resume()

    def stop(self) -> bool:
        """Let the clock stand, and return whether it ran; what runs in another thread goes on."""
        if not self._is_running or self._thread != threading.get_ident():
            return False
        self.suspend()
        outer, self._outer = self._outer, None
        _RUNNING.clock = outer
        if outer is not None:
            outer.resume()
        return True

    def taken_ns(self) -> int:
        """Return the time that was used since this was last asked."""
        with self._lock:
            used_ns, self._used_ns = self._used_ns, 0
        return used_ns

    def resume(self) -> None:
        """Let the clock run on, where one that ran within it has stopped."""
        now_ns = self._meter.read_ns()
        thread = threading.get_ident()
        if self._thread == thread:
            self._meter.pass_over(now_ns)
        self._thread, self._since_ns, self._is_running = thread, now_ns, True

    def suspend(self) -> None:
        """Let the clock stand while another runs within it."""
        now_ns = self._meter.read_ns()
        self._meter.charge_blocks(now_ns)
        with self._lock:
            self._used_ns += now_ns - self._since_ns
        self._since_ns, self._is_running = now_ns, False


def counts_of(given: Any, place: Place) -> Counts:  # noqa: ANN401 - what Spark gives
    """Return the namespaces of rows.

    Raises
    ------
    ConfigurationError
        If the rows have no such column or argument.

    Examples
    --------
    >>> names, rows = counts_of(pa.record_batch({"ns": ["acme/a", "acme/b", "acme/a"]}), "ns")
    >>> names.to_pylist(), rows.tolist()
    (['acme/a', 'acme/b'], [2, 1])
    """
    column = _column(given, place)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        if column.dtype == object:
            return counts_by_name(Counter(column.tolist()))
        column = pa.array(column, from_pandas=True)
    counted = column.value_counts()
    names = counted.field(0)
    return names if names.type == pa.string() else names.cast(pa.string()), counted.field(1).to_numpy()


def _column(given: Any, place: Place) -> Any:  # noqa: ANN401 - what Spark gives
    if isinstance(given, tuple) or not hasattr(type(given), "columns"):
        arguments = given if isinstance(given, tuple) else (given,)
        if isinstance(place, int) and 0 <= place < len(arguments):
            return arguments[place]
        raise _missing(place, f"{len(arguments)} arguments of a UDF")
    try:
        return given[place]
    except KeyError:
        names = given.schema.names if isinstance(given, pa.RecordBatch) else list(given.columns)
        raise _missing(place, f"the columns {names}") from None


def names_of_rows(rows: list[Row], place: Place) -> Iterator[Any]:
    """Return the namespace of each row.

    Raises
    ------
    ConfigurationError
        If the rows have no such column.

    Examples
    --------
    >>> list(names_of_rows([Row(ns="acme/a", value=1), Row(ns=None, value=2)], "ns"))
    ['acme/a', None]
    """
    try:
        at = rows[0].__fields__.index(place)
    except (AttributeError, ValueError):
        raise _missing(place, f"{rows[0]}") from None
    return islice(chain.from_iterable(rows), at, None, len(rows[0]))  # to ask row by row takes up to twice as long


def counts_by_name(found: Counter[Any]) -> Counts:
    """Return the namespaces that were counted; what is no text becomes one, or null where it stands for nothing."""
    names = list(found)
    if not _TEXT.issuperset(map(type, names)):
        names = [name if isinstance(name, str) else _text(name) for name in names]
    return pa.array(names, pa.string()), np.fromiter(found.values(), np.int64, len(found))


def _text(name: Any) -> str | None:  # noqa: ANN401 - what a row holds
    """Return a namespace that is no text as one; `None` for a missing one, for which pandas also has NaN and NA."""
    import pandas as pd  # where a process has none of its values, it need not be loaded

    return None if name is None or pd.isna(name) else str(name)


def _missing(place: Place, instead: str) -> ConfigurationError:
    return ConfigurationError(
        f"the namespace of the rows of a metered function is not found at {place!r}: it is given {instead}; give "
        f"metered(…, namespace=…) the name of the rows' column, or for a UDF the position of its argument, that holds "
        f"the namespace"
    )
