"""What is sent at a pace did not get through.

A limiter inside the process let a caller wait in vain, or is closed; or a destination did not take rows, now or at all.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from spark_throttle.errors.configuration import ConfigurationError
from spark_throttle.errors.throttle_error import ThrottleError


class TurnTimeoutError(ThrottleError, TimeoutError):
    """A producer's turn did not come within the time that the call was given; nothing was charged.

    `TimeoutError` is a base, so that code which knows only the standard library's name catches it too.

    Examples
    --------
    >>> print(TurnTimeoutError(250, ("acme", "api")))
    no turn within 250 ms: throttled by acme, api; wait longer, send less, or raise a limit
    """

    def __init__(self, waited_ms: int, throttled_by: tuple[str, ...]) -> None:
        self.waited_ms = waited_ms
        self.throttled_by = throttled_by
        by = f"throttled by {', '.join(throttled_by)}" if throttled_by else "others are before this caller"
        super().__init__(f"no turn within {waited_ms} ms: {by}; wait longer, send less, or raise a limit")

    def __reduce__(self) -> tuple[type[TurnTimeoutError], tuple[int, tuple[str, ...]]]:
        return (type(self), (self.waited_ms, self.throttled_by))


class PacerClosedError(ThrottleError):
    """The pacer was closed before the producer's turn came; nothing was charged.

    Examples
    --------
    >>> print(PacerClosedError())
    the pacer is closed, so no producer gets a turn any more: nothing was charged; make a new pacer
    """

    def __init__(self) -> None:
        super().__init__(
            "the pacer is closed, so no producer gets a turn any more: nothing was charged; make a new pacer"
        )

    def __reduce__(self) -> tuple[type[PacerClosedError], tuple[()]]:
        return (type(self), ())


class DeliveryError(ThrottleError):
    """A destination did not take the rows of a call; the batch is not committed.

    Examples
    --------
    >>> print(DeliveryError("https://api.example/events", "q/7/9a3e/acme/0", "it answered 400", 1))
    https://api.example/events did not take the rows of call q/7/9a3e/acme/0: it answered 400 (attempt 1); repair the \
destination and start the query again, which sends the batch again with the same keys
    """

    def __init__(self, destination: str, key: str, problem: str, attempts: int) -> None:
        self.destination = destination
        self.key = key
        self.problem = problem
        self.attempts = attempts
        super().__init__(
            f"{destination} did not take the rows of call {key}: {problem} (attempt {attempts}); repair the "
            f"destination and start the query again, which sends the batch again with the same keys"
        )

    def __reduce__(self) -> tuple[type[DeliveryError], tuple[str, str, str, int]]:
        return (type(self), (self.destination, self.key, self.problem, self.attempts))


class Backpressure(ThrottleError):  # noqa: N818 - the destination's word, which the caller passes on
    """A destination says "not now": what raises it is called again, if by `paced` with the same rows and the same key.

    Functions that send for `ThrottledStreamWriter.paced` raise it; `HttpSender` does for HTTP 429 and 503. A function
    for `foreachBatch` may raise it if it has taken no row of its call: it is called again with the batch's number, and
    without the rows for the destination if the policy names it.

    Parameters
    ----------
    retry_after_seconds
        The time after which the destination wants to be asked again; `None` if it did not say.
    scope
        The destination that says it; the one of the call's rows unless given.
    problem
        What was seen, for the error that ends the batch if the destination never takes the rows.
    may_be_taken
        Whether the rows may have been taken all the same, as where no answer came. `paced` then keeps the call's key
        until it is accepted; rows that nobody took go back to their queue, and get another key.

    Raises
    ------
    ConfigurationError
        If the time is below 0, or no number.

    Examples
    --------
    >>> print(Backpressure(retry_after_seconds=2.5, scope="api", problem="it answered 429"))
    the destination api does not take rows now: it answered 429; it asks to wait 2.5 s; call it again later, with the \
same key
    """

    def __init__(
        self,
        retry_after_seconds: float | None = None,
        scope: str | None = None,
        problem: str = "it is busy",
        *,
        may_be_taken: bool = False,
    ) -> None:
        if retry_after_seconds is not None and not 0 <= retry_after_seconds < math.inf:
            raise ConfigurationError(
                f"retry_after_seconds is {retry_after_seconds!r}; give a number of seconds from 0 on, or leave it out"
            )
        self.retry_after_seconds = retry_after_seconds
        self.scope = scope
        self.problem = problem
        self.may_be_taken = may_be_taken
        asks = "" if retry_after_seconds is None else f"; it asks to wait {retry_after_seconds} s"
        super().__init__(
            f"the destination{'' if scope is None else f' {scope}'} does not take rows now: {problem}{asks}; call it "
            f"again later, with the same key"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        build = partial(type(self), may_be_taken=self.may_be_taken)
        return (build, (self.retry_after_seconds, self.scope, self.problem))
