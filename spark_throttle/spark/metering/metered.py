"""The wrapper of a user's function: it measures the function's calls, and charges the namespaces of their rows.

Spark calls functions in three forms. A function for `foreachBatch` is called on the driver, once per batch. One for
`foreachPartition`, `mapInPandas` and `mapInArrow`, or an iterator UDF, takes an iterator and is called once per task. A
UDF that takes series or arrays is called for each batch of a task; it is turned into an iterator UDF, as only that is
told when its task ends, which is when its charges are written.

The clock stands while Spark produces the rows that a function takes next, and while Spark takes what it returned.

Laws: all that was measured is charged, in whole nanoseconds. The time between two results of an iterator is divided
among the rows that were taken for them: those since the last result, or, if there are none, the rows taken before.

A function is wrapped before its query starts, and is told where to write its charges when Spark packs it for the
executors, which is after the query has got its control directory.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row

from spark_throttle.core.time_charges import Lot, TimeCharges
from spark_throttle.core.usage import admitted_messages
from spark_throttle.errors import Backpressure, ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.charging import (
    DRIVER,
    RunningTask,
    Tally,
    charge_driver,
    charge_task,
    note_refusal,
    report_of_running,
)
from spark_throttle.spark.metering.meter import (
    CLOCKS,
    CallClock,
    ClockName,
    Counts,
    Meter,
    Place,
    counts_by_name,
    counts_of,
    names_of_rows,
)

Function = Callable[..., Any]

_METER: Final = "meter"
_ROWS_AT_A_TIME: Final = 1000
"""Rows of Spark come one by one; they are taken from it, and counted, by so many."""

_MOST_COUNTS: Final = 256
_ARRAYS: Final = frozenset((("pandas", "Series"), ("pandas", "DataFrame"), ("pyarrow", "Array")))


class MeteredQuery:
    """The control directory of the only query of a throttle that has metered functions."""

    def __init__(self, control_path: str | None = None) -> None:
        self._control_paths = [] if control_path is None else [control_path]
        self.is_metered = False
        """Whether any function was metered for it."""

    def begin(self, control_path: str) -> None:
        """Take down that a query of the throttle is about to start.

        Raises
        ------
        ConfigurationError
            If functions are metered that would not know which of two queries to charge.
        """
        if control_path not in self._control_paths:
            self._control_paths.append(control_path)
        if self.is_metered:
            self._check()

    @property
    def control_path(self) -> str:
        """The query's control directory.

        Raises
        ------
        ConfigurationError
            If no query has begun, or several have.
        """
        self._check()
        if not self._control_paths:
            raise ConfigurationError(
                "a metered function was given to Spark before its query was: meter what runs after the throttle, as in "
                "foreachBatch or on the rows of apply; rows that were not yet admitted may wait or be rejected"
            )
        return self._control_paths[0]

    def _check(self) -> None:
        if len(self._control_paths) > 1:
            raise ConfigurationError(
                f"a throttle with metered functions has the queries of {self._control_paths[:2]}, and a function "
                f"cannot know which of them to charge; give each query a Throttle of its own"
            )


class Metered:
    """A function that is measured when it is called; `Throttle.metered` makes it and documents it."""

    def __init__(self, function: Function, clock: ClockName, namespace: Place | None, query: MeteredQuery) -> None:
        if clock not in CLOCKS:
            raise ConfigurationError(f"clock is {clock!r}; give 'cpu' or 'wall'")
        if not callable(function):
            raise ConfigurationError(f"{function!r} is no function; give metered(…) the function itself")
        if namespace is not None and not _is_place(namespace):
            raise ConfigurationError(
                f"namespace is {namespace!r}; give the name of the column, or the position of the UDF's argument (0 is "
                f"the first), that holds the namespace"
            )
        self._function = function
        self._clock = clock
        self._namespace = namespace
        self._query = query
        query.is_metered = True
        signature, hints = _signature(function), _hints(function)
        self._takes_meter = signature is not None and _METER in signature.parameters
        arrays = _array_hints(signature, hints)
        self._is_called_per_batch = arrays is not None
        functools.update_wrapper(self, function)
        if arrays is not None:
            _look_like_iterator(self, *arrays)
        elif signature is not None:
            kept = [each for name, each in signature.parameters.items() if name != _METER]
            self.__signature__ = signature.replace(parameters=kept)
            self.__annotations__ = {name: hint for name, hint in hints.items() if name != _METER}

    def __reduce__(self) -> tuple[type[Metered], tuple[Function, ClockName, Place | None, MeteredQuery]]:
        """Return what travels to another process: with the query's control directory, which must be known by then."""
        return type(self), (self._function, self._clock, self._namespace, MeteredQuery(self._query.control_path))

    def __call__(self, *given: Any) -> Any:  # noqa: ANN401 - as the function
        """Call the function, and charge what it used."""
        if given and isinstance(given[0], DataFrame):
            directory = Directory(self._query.control_path)
            rows, batch = given
            return self.of_batch(rows, batch, directory)
        task = RunningTask.current()
        if task is None:  # the user tries the function out
            return self._function(*given, **self._keywords(Meter(self._clock)))
        if len(given) == 1 and isinstance(given[0], Iterator):
            return self._of_task(given[0], task)
        raise ConfigurationError(
            f"the metered function {self} was called with {len(given)} arguments that are no iterator: meter a "
            f"function for foreachBatch, foreachPartition, mapInPandas or mapInArrow, or a scalar pandas or Arrow UDF "
            f"with type hints"
        )

    def of_batch(self, rows: DataFrame, batch: int, directory: Directory) -> Any:  # noqa: ANN401 - as the function
        """Call the function on the driver for a batch, whose report says how many rows each namespace has in it."""
        meter = Meter(self._clock)
        clock = CallClock(meter)
        clock.start()
        try:
            result = self._function(rows, batch, **self._keywords(meter))
        finally:
            clock.stop()
        said_ns = meter.end()
        used_ns = max(0, clock.taken_ns() - said_ns.total())
        report = report_of_running(directory, batch)
        used = TimeCharges.common(used_ns, *admitted_messages([] if report is None else [report]))
        said = TimeCharges.of(dict(said_ns), costs=meter.costs)
        charge_driver(directory, batch, TimeCharges.sum_of([used, said]), DRIVER)
        return result

    def _of_task(self, rows: Iterator[Any], task: RunningTask) -> Iterator[Any] | None:
        if self._namespace is None:
            raise ConfigurationError(
                f"the metered function {self} does not know the namespaces of its rows, because the throttle computes "
                f"them by an expression: give metered(…, namespace=…) the column, or the position of the UDF's "
                f"argument, that holds them"
            )
        meter = Meter(self._clock)
        call = _TaskCall(meter, self._namespace)
        function = functools.partial(_each, self._function) if self._is_called_per_batch else self._function
        with self._noting_refusal(task):
            results = call.begin(functools.partial(function, call.taking(rows), **self._keywords(meter)))
        if isinstance(results, Iterable) and not isinstance(results, Collection):
            return self._results(results, call, task)
        self._end(call, task)
        return results

    def _results(self, results: Iterable[Any], call: _TaskCall, task: RunningTask) -> Iterator[Any]:
        """Yield what was returned; what works only while it is iterated has not yet begun."""
        with self._noting_refusal(task):
            yield from call.returning(call.begin(functools.partial(iter, results)))
        self._end(call, task)

    @contextmanager
    def _noting_refusal(self, task: RunningTask) -> Iterator[None]:
        """Let the driver know if the function says that a destination does not take rows now."""
        try:
            yield
        except Backpressure as refusal:
            note_refusal(Directory(self._query.control_path), task.batch, refusal)
            raise

    def _end(self, call: _TaskCall, task: RunningTask) -> None:
        said = TimeCharges.of(dict(call.meter.end()), costs=call.meter.costs)
        call.close_lot()
        if call.has_rows or len(said.names) or said.costs is not None:
            charge_task(self._query.control_path, task, TimeCharges.sum_of([call.tally.charges(), said]))

    def _keywords(self, meter: Meter) -> dict[str, Meter]:
        return {_METER: meter} if self._takes_meter else {}

    def __str__(self) -> str:
        """Return the function's name."""
        return str(getattr(self._function, "__qualname__", self._function))


class _TaskCall:
    """The call of a function for a task, which takes rows and returns results in turn."""

    def __init__(self, meter: Meter, namespace: Place) -> None:
        self.meter = meter
        self.tally = Tally()
        self.has_rows = False
        self._namespace = namespace
        self._taken: list[Counts] = []
        """The rows of the present lot, except those of Spark's type."""

        self._names = Counter[Any]()
        """The namespaces of the present lot's rows of Spark's type."""

        self._has_returned = False
        """Whether a result was returned since rows were taken last."""

        self._clock = CallClock(meter)
        self._said_ns = 0

    def begin(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the function returned
        """Call the function; a generator has not yet begun when it is returned."""
        self._clock.start()
        try:
            return function()
        finally:
            self._clock.stop()

    def taking(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Return the rows for the function to take, whose clock stands while Spark makes them."""
        return chain.from_iterable(self._taking(rows))

    def _taking(self, rows: Iterator[Any]) -> Iterator[Sequence[Any]]:
        while True:
            has_run = self._clock.stop()
            try:
                given = self._next(rows)
            finally:
                if has_run:
                    self._clock.start()
            if given is None:
                return
            yield given

    def _next(self, rows: Iterator[Any]) -> Sequence[Any] | None:
        """Take rows from Spark, and note their namespaces; `None` at the end."""
        for first in rows:
            is_row = isinstance(first, Row)
            given = [first, *islice(rows, _ROWS_AT_A_TIME - 1)] if is_row else first
            if self._has_returned:
                self.close_lot()
            if is_row:
                self._names.update(names_of_rows(given, self._namespace))
            else:
                self._take(counts_of(given, self._namespace))
            self.has_rows = True
            return given if is_row else (given,)
        return None

    def returning(self, results: Iterator[Any]) -> Iterator[Any]:
        """Yield what the function returns; its clock stands meanwhile."""
        while True:
            self._clock.start()
            try:
                result = next(results)
            except StopIteration:
                break
            finally:
                self._clock.stop()
            self._has_returned = True
            yield result

    def _take(self, counts: Counts) -> None:
        self._taken.append(counts)
        if len(self._taken) >= _MOST_COUNTS:
            self._taken = [_together(self._taken)]

    def close_lot(self) -> None:
        """Charge the time that was used since the last lot, but for what the function said, to the rows taken since."""
        said_ns = self.meter.said_ns
        used_ns = max(0, self._clock.taken_ns() - (said_ns - self._said_ns))
        if self._names:
            self._taken.append(counts_by_name(self._names))
            self._names = Counter()
        self.tally.add(Lot(used_ns, *_together(self._taken)))
        self._taken, self._has_returned, self._said_ns = [], False, said_ns


def _together(counts: Sequence[Counts]) -> Counts:
    if len(counts) == 1:
        return counts[0]
    names = pa.concat_arrays([pa.array([], pa.string()), *(names for names, _ in counts)])
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for _, rows in counts)])
    summed = pa.table({"names": names, "rows": rows}).group_by("names", use_threads=False).aggregate([("rows", "sum")])
    return summed.column("names").combine_chunks(), summed.column("rows_sum").to_numpy()


def _each(function: Function, batches: Iterator[Any], **keywords: Meter) -> Iterator[Any]:
    """Call a function that takes series or arrays for each batch of a task."""
    for given in batches:
        arguments = given if isinstance(given, tuple) else (given,)
        yield function(*arguments, **keywords)


def _is_place(namespace: object) -> bool:
    """Return whether rows may have a namespace there."""
    return namespace != "" if isinstance(namespace, str) else type(namespace) is int and namespace >= 0


def _signature(function: Function) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # as of some functions of C
        return None


def _hints(function: Function) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return get_type_hints(target)
    except (NameError, TypeError):  # as of a name that only the type checker imports
        return {}


def _array_hints(signature: inspect.Signature | None, hints: dict[str, Any]) -> tuple[tuple[Any, ...], Any] | None:
    """Return the hints of a function from series or arrays to one; `None` for any other function."""
    if signature is None:
        return None
    names = [name for name in signature.parameters if name != _METER]
    given = tuple(hints.get(name) for name in names)
    if given and all(_is_array(hint) for hint in (*given, hints.get("return"))):
        return given, hints["return"]
    return None


def _is_array(hint: Any) -> bool:  # noqa: ANN401 - any hint
    """Return whether a hint is a series, a frame or an Arrow array, or one of several of them."""
    choices = get_args(hint)
    if choices:
        return get_origin(hint) in (Union, UnionType) and all(_is_array(choice) for choice in choices)
    module = str(getattr(hint, "__module__", "")).partition(".")[0]
    return (module, getattr(hint, "__name__", "")) in _ARRAYS


def _look_like_iterator(metered: Metered, given: tuple[Any, ...], returned: Any) -> None:  # noqa: ANN401 - a hint
    """Give a wrapper the hints by which Spark knows an iterator UDF."""
    takes = Iterator[given[0] if len(given) == 1 else tuple[given]]  # type: ignore[misc, valid-type]
    returns = Iterator[returned]
    parameter = inspect.Parameter("batches", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=takes)
    metered.__signature__ = inspect.Signature([parameter], return_annotation=returns)
    metered.__annotations__ = {"batches": takes, "return": returns}
