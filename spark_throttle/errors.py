"""Every error spark-throttle raises: the class says what the caller should do.

::

    ThrottleError
    ├── PolicyError                 fix the policy document, then try again
    ├── ConfigurationError          fix the call or the job's settings, then try again
    │   ├── ShardCountChangedError  restore the shard count, or start a new checkpoint
    │   └── NativeWriterError       let Spark's writer write the table
    ├── StoredFormatError           stop: what is stored was written by another version or is damaged
    │   ├── UnknownVersionError
    │   └── DamagedError
    ├── EpochMissingError           restore the file, or start a new checkpoint
    └── QueueOverflowError          raise the bounds, then restart: nothing was lost

Messages carry the value, the bound it broke and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ThrottleError(Exception):
    """Root of every error of this package."""


class PolicyError(ThrottleError):
    """A policy document cannot be applied; `path` names the field that is wrong.

    Examples
    --------
    >>> str(PolicyError("resource_groups.gold.publish.weight", "0 is less than 1; give a whole number"))
    'resource_groups.gold.publish.weight: 0 is less than 1; give a whole number'
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)

    def __reduce__(self) -> tuple[type[PolicyError], tuple[str, str]]:
        return (type(self), (self.path, self.problem))


class ConfigurationError(ThrottleError):
    """A call or a job setting cannot work as given."""


class ShardCountChangedError(ConfigurationError):
    """The checkpoint was written with another number of shards."""

    def __init__(self, stored_shards: int, asked_shards: int) -> None:
        self.stored_shards = stored_shards
        self.asked_shards = asked_shards
        super().__init__(
            f"this checkpoint holds {stored_shards} shards and {asked_shards} were asked for; its queues and "
            f"balances are kept by shard: set shards={stored_shards}, or start a new checkpoint"
        )

    def __reduce__(self) -> tuple[type[ShardCountChangedError], tuple[int, int]]:
        return (type(self), (self.stored_shards, self.asked_shards))


class NativeWriterError(ConfigurationError):
    """The native Delta writer cannot write as asked, and Spark's can.

    Examples
    --------
    >>> str(NativeWriterError("s3://lake/orders", "it has the table feature rowTracking")).partition(";")[0]
    'the native Delta writer cannot write s3://lake/orders: it has the table feature rowTracking'
    """

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(
            f"the native Delta writer cannot write {what}: {why}; let Spark's do it: leave "
            f"option('throttle.writer', …) out, or set it to 'spark'"
        )

    def __reduce__(self) -> tuple[type[NativeWriterError], tuple[str, str]]:
        return (type(self), (self.what, self.why))


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

    def __reduce__(self) -> tuple[type[UnknownVersionError], tuple[str, int, int]]:
        return (type(self), (self.what, self.found, self.known))


class DamagedError(StoredFormatError):
    """Stored bytes are truncated or altered."""

    def __init__(self, what: str, problem: str) -> None:
        self.what = what
        self.problem = problem
        super().__init__(f"{what} is damaged: {problem}; restore it from a backup of the checkpoint")

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str]]:
        return (type(self), (self.what, self.problem))


class EpochMissingError(ThrottleError):
    """An offset names an epoch whose file is gone."""

    def __init__(self, epoch: int, path: str) -> None:
        self.epoch = epoch
        self.path = path
        super().__init__(
            f"epoch {epoch} is named by the offset log and its file {path} is missing: restore the file "
            f"(it is written once and never changes), or start a new checkpoint"
        )

    def __reduce__(self) -> tuple[type[EpochMissingError], tuple[int, str]]:
        return (type(self), (self.epoch, self.path))


class QueueOverflowError(ThrottleError):
    """The queue is full and the policy says to fail rather than to reject."""

    def __init__(self, shard: int, waiting_messages: int, bound_messages: int, bound_bytes: int) -> None:
        self.shard = shard
        self.waiting_messages = waiting_messages
        self.bound_messages = bound_messages
        self.bound_bytes = bound_bytes
        super().__init__(
            f"shard {shard} would hold {waiting_messages} delayed messages, over its bound of {bound_messages} "
            f"messages or {bound_bytes} bytes, and queue.on_overflow is 'fail': raise the bound and restart"
        )

    def __reduce__(self) -> tuple[type[QueueOverflowError], tuple[int, int, int, int]]:
        args = (self.shard, self.waiting_messages, self.bound_messages, self.bound_bytes)
        return (type(self), args)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known name, or an empty string.

    Examples
    --------
    >>> did_you_mean("mesages_per_second", ["bytes_per_second", "messages_per_second"])
    '; did you mean messages_per_second?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
