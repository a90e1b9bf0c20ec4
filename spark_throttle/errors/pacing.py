"""What is sent at a pace did not get through.

A limiter inside the process let a caller wait in vain, or is closed; or a destination did not take rows.
"""

from __future__ import annotations

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
