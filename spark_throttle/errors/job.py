"""The root of the errors, and the errors of jobs and of calls: all but those of policy stores.

First the root; then a policy or a setting that cannot work, and is to be mended; then what stands in the way of a call
that is right: another run, a full queue, a file, another program, stored bytes that are missing, damaged or of another
release; last, what was sent at a pace and did not get through.

Every parameter of an error is kept as an attribute of the same name, by which the root pickles them all.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from functools import partial
from inspect import signature
from typing import Any, Final

from spark_throttle.remedies import IN_PYTHON, Remedy, Words


class ThrottleError(Exception):
    """The root of every error that this package raises.

    Parameters
    ----------
    message
        What is wrong, and the remedy if it is the same at every door.
    door_remedy
        A remedy that each door says in words of its own; `None` if the message has it.

    Examples
    --------
    >>> from spark_throttle.remedies import Remedy
    >>> error = ThrottleError("no limit is left", Remedy.CONFIRM)
    >>> str(error), error.told({Remedy.CONFIRM: "say yes"})
    ('no limit is left; confirm it with Author(is_confirmed=True) if it is meant', 'no limit is left; say yes')
    """

    def __init__(self, message: str = "", door_remedy: Remedy | None = None) -> None:
        self.message = message
        self.door_remedy = door_remedy
        super().__init__(self.told(IN_PYTHON))

    def told(self, words: Words) -> str:
        """Return the message with its remedy in the words of a door."""
        return self.message if self.door_remedy is None else f"{self.message}; {words[self.door_remedy]}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how the error is made again, as its pickle holds it: each parameter is an attribute of its name."""
        named = {name: getattr(self, name) for name in list(signature(type(self).__init__).parameters)[1:]}
        return (partial(type(self), **named), ())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or an empty string if none is near.

    Examples
    --------
    >>> did_you_mean("mesages_per_second", ["bytes_per_second", "messages_per_second"])
    '; did you mean messages_per_second?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class PolicyError(ThrottleError):
    """A policy document cannot be applied; `path` names the field at fault.

    Examples
    --------
    >>> str(PolicyError("resource_groups.gold.publish.weight", "0 is less than 1; give a whole number"))
    'resource_groups.gold.publish.weight: 0 is less than 1; give a whole number'
    """

    def __init__(self, path: str, problem: str, door_remedy: Remedy | None = None) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem, door_remedy)


class StoredPolicyError(PolicyError):
    """The document that a store holds cannot be applied: somebody edited it, and the caller is not at fault."""


class ConfigurationError(ThrottleError):
    """A call or a job setting cannot work as given."""


class NotInstalledError(ConfigurationError):
    """Something that a query needs is not installed where it runs: install it there, then start again.

    Examples
    --------
    >>> str(NotInstalledError("pandas", "the Python of the executors", "install it there"))
    'pandas is missing in the Python of the executors: install it there (docs/install.md)'
    """

    def __init__(self, what: str, where: str, remedy: str) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(f"{what} is missing in {where}: {remedy} (docs/install.md)")


class CheckpointMismatchError(ConfigurationError):
    """The checkpoint and something that its query has written do not share one history.

    Restoring an older checkpoint undoes batches, and their numbers are then given to other rows: to go on would lose
    rows or double them. Nothing has been written.
    """

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what} {problem}: {remedy} (docs/changing-a-job.md)")


class DrainedError(ConfigurationError):
    """The waiting rows of the checkpoint were written elsewhere: a query that admits them too would double them.

    Examples
    --------
    >>> print(DrainedError(12, "/lake/waiting", "/ckpt/throttle/drained.json").args[0].partition(":")[0])
    this checkpoint was drained at batch 12
    """

    def __init__(self, batch: int, into: str, note: str, *, is_finished: bool = True) -> None:
        self.batch = batch
        self.into = into
        self.note = note
        self.is_finished = is_finished
        remedy = (
            f"start with a new checkpoint from the positions that the drain names; only to go on with this one, remove "
            f"the rows there, then {note}"
            if is_finished
            else f"drain it again into the same place; only to go on with it, remove what is there of it, then {note}"
        )
        what = "was drained" if is_finished else "was being drained"
        where = f"its waiting rows {'are' if is_finished else 'may be'} in {into}"
        super().__init__(f"this checkpoint {what} at batch {batch}: {where}; {remedy} (docs/streams.md)")


class DefinitionChangedError(ConfigurationError):
    """An uncommitted batch that is already in a sink would now be decided differently."""

    def __init__(self, batch: int, differences: str, note: str) -> None:
        self.batch = batch
        self.differences = differences
        self.note = note
        super().__init__(
            f"batch {batch} is not committed, and an earlier attempt has written rows of it that would now be decided "
            f"differently: {differences}; start once with the old definition, then with the new one (or remove {note}, "
            f"if rows of this batch may be lost and doubled)"
        )


class ForeignFilesError(ConfigurationError):
    """A Delta table takes no files that Spark did not write; through Spark's writer it takes rows.

    Examples
    --------
    >>> str(ForeignFilesError("s3://lake/orders", "it has the table feature rowTracking")).partition(";")[0]
    's3://lake/orders takes no files that Spark did not write: it has the table feature rowTracking'
    """

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(self._message())

    def _message(self) -> str:
        return (
            f"{self.what} takes no files that Spark did not write: {self.why}; restart the query to use Spark's writer"
        )


class TableOutOfReachError(ForeignFilesError):
    """The store of a Delta table does not answer this process, though it was asked again and again.

    Examples
    --------
    >>> print(TableOutOfReachError("s3://lake/orders", "Connection refused"))
    the store of the Delta table s3://lake/orders does not answer: Connection refused; start again when it does
    """

    def _message(self) -> str:
        return f"the store of the Delta table {self.what} does not answer: {self.why}; start again when it does"


class TakenOverError(ThrottleError):
    """Another run has begun in this run's control directory."""

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"another run has begun in the control directory {location}, so this one ends: either a query was started "
            f"twice, or while a tool worked on its checkpoint, or two queries were given one control directory; let "
            f"only one of them run, and give each query a checkpoint (or control_path) of its own"
        )


class QueueOverflowError(ThrottleError):
    """The queue is full, and the policy says to fail rather than to reject."""

    def __init__(self, waiting_messages: int, bound_messages: int, bound_bytes: int) -> None:
        self.waiting_messages = waiting_messages
        self.bound_messages = bound_messages
        self.bound_bytes = bound_bytes
        super().__init__(
            f"the queue would hold {waiting_messages} delayed messages, over its bound of {bound_messages} "
            f"messages or {bound_bytes} bytes, and queue.on_overflow is 'fail': raise the bound and restart"
        )


class SourceChangedError(ThrottleError):
    """A source no longer has the rows that a batch was decided for, or will be.

    Examples
    --------
    >>> str(SourceChangedError("the file /lake/a.parquet", "it is gone", "restore it"))
    'the file /lake/a.parquet is not as it was when its rows were decided: it is gone; restore it'
    """

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what} is not as it was when its rows were decided: {problem}; {remedy}")


class SignInUnavailableError(ThrottleError):
    """Whether a caller may be let in cannot be told, because the provider of its sign-in does not answer."""

    def __init__(self, issuer: str, problem: str) -> None:
        self.issuer = issuer
        self.problem = problem
        super().__init__(f"the sign-in provider {issuer} does not answer as it must: {problem}; try again later")


class FileUnusableError(ThrottleError):
    """A file of the control plane cannot be read or written as it must be.

    Examples
    --------
    >>> str(FileUnusableError("tokens.json", "it is a link; name the file that it leads to"))
    'the file tokens.json cannot be used: it is a link; name the file that it leads to'
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"the file {path} cannot be used: {problem}")


class AddressInUseError(ThrottleError):
    """A server cannot listen on its address, because another program does.

    Examples
    --------
    >>> print(AddressInUseError("127.0.0.1", 8182))
    cannot listen on 127.0.0.1, port 8182: another program listens there, maybe a server that was started before; end \
it, or give another port (--port)
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        super().__init__(
            f"cannot listen on {host}, port {port}: another program listens there, maybe a server that was started "
            f"before; end it, or give another port (--port)"
        )


class StoredFormatError(ThrottleError):
    """Stored bytes cannot be read by this version."""


class UnknownVersionError(StoredFormatError):
    """Stored bytes carry a format version that this release does not know."""

    def __init__(self, what: str, found: int, known: int) -> None:
        self.what = what
        self.found = found
        self.known = known
        super().__init__(
            f"{what} has format version {found} and this release reads up to {known}: "
            f"run the release that wrote it, or a newer one"
        )


RESTORE_CHECKPOINT: Final = "restore it from a backup of the checkpoint"
"""The remedy for a damaged file of a checkpoint."""


class DamagedError(StoredFormatError):
    """Stored bytes are truncated or altered.

    Examples
    --------
    >>> print(DamagedError("the token file tokens.json", "it is empty", "make new tokens"))
    the token file tokens.json is damaged: it is empty; make new tokens
    """

    def __init__(self, what: str, problem: str, remedy: str = RESTORE_CHECKPOINT) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what} is damaged: {problem}; {remedy}")


class EpochMissingError(ThrottleError):
    """An offset names an epoch whose file is gone."""

    def __init__(self, epoch: int, path: str) -> None:
        self.epoch = epoch
        self.path = path
        super().__init__(
            f"the offset log names epoch {epoch}, but its file {path} is missing: restore the file "
            f"(it is written once and never changes), or start a new checkpoint"
        )


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
