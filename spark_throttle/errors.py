"""Every error spark-throttle raises: the class says what the caller should do.

::

    ThrottleError
    ├── PolicyError                 fix the policy document, then try again
    ├── ConfigurationError          fix the call or the job's settings, then try again
    │   ├── ShardCountChangedError  restore the shard count, or start a new checkpoint
    │   ├── CheckpointMismatchError put the checkpoint and its sinks back to the same batch
    │   ├── DefinitionChangedError  start once with the old definition
    │   └── NativeWriterError       let Spark's writer write the table
    ├── TakenOverError              let the newer run go on, or stop it and start again
    ├── StoredFormatError           stop: what is stored was written by another version or is damaged
    │   ├── UnknownVersionError
    │   └── DamagedError
    ├── EpochMissingError           restore the file, or start a new checkpoint
    ├── QueueOverflowError          raise the bounds, then restart: nothing was lost
    └── StoreError                  a policy store did not do what was asked of it
        ├── NotFoundError           ask for what there is, or create it first
        ├── DuplicateError          update it instead, or take another name
        ├── InUseError              detach those it names, then try again
        ├── ConflictError           read it again, then decide whether to try again: nothing was changed
        ├── StoreUnavailableError   try again later, or mend the store: nothing was changed
        └── OutcomeUnknownError     look whether the change is there before trying again

Messages carry the value, the bound it broke and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

_LONGEST_NAME = 80


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


class CheckpointMismatchError(ConfigurationError):
    """The checkpoint and something that its query has written are not of the same history.

    Batches that were undone by putting a checkpoint back get the same numbers again, for other rows: going on would
    lose rows or double them. Nothing has been written.
    """

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what} {problem}: {remedy} (docs/checkpoints.md)")

    def __reduce__(self) -> tuple[type[CheckpointMismatchError], tuple[str, str, str]]:
        return (type(self), (self.what, self.problem, self.remedy))


class TakenOverError(ThrottleError):
    """Another run has begun in the control directory of this one."""

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"another run has begun in the control directory {location}, and this one ends: a query was started "
            f"twice, or two queries were given one control directory; let one of them run, and give each query a "
            f"checkpoint (or control_path) of its own"
        )

    def __reduce__(self) -> tuple[type[TakenOverError], tuple[str]]:
        return (type(self), (self.location,))


class DefinitionChangedError(ConfigurationError):
    """A batch that stands in a sink and is not committed would be decided otherwise than it was."""

    def __init__(self, batch: int, differences: str, note: str) -> None:
        self.batch = batch
        self.differences = differences
        self.note = note
        super().__init__(
            f"batch {batch} is not committed, and an attempt before has written of it what would now be decided "
            f"otherwise: {differences}; start once with the old definition, then with the new one (or remove {note}, "
            f"if rows of this batch may be lost and doubled)"
        )

    def __reduce__(self) -> tuple[type[DefinitionChangedError], tuple[int, str, str]]:
        return (type(self), (self.batch, self.differences, self.note))


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


class StoreError(ThrottleError):
    """A policy store did not do what was asked of it."""


class NotFoundError(StoreError):
    """The store holds nothing of that name."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.hint = hint
        super().__init__(f"there is no {_entity(kind, name)}{hint}")

    def __reduce__(self) -> tuple[type[NotFoundError], tuple[str, str, str]]:
        return (type(self), (self.kind, self.name, self.hint))


class DuplicateError(StoreError):
    """What should be created is there already."""

    def __init__(self, kind: str, name: str, remedy: str) -> None:
        self.kind = kind
        self.name = name
        self.remedy = remedy
        super().__init__(f"the {_entity(kind, name)} {remedy}")

    def __reduce__(self) -> tuple[type[DuplicateError], tuple[str, str, str]]:
        return (type(self), (self.kind, self.name, self.remedy))


class InUseError(StoreError):
    """A resource group cannot be deleted while tenants or namespaces are attached to it."""

    def __init__(self, name: str, users: Iterable[str], *, has_more: bool = False) -> None:
        self.name = name
        self.users = tuple(users)
        self.has_more = has_more
        listed = ", ".join(self.users) + (" and more" if has_more else "")
        super().__init__(f"the {_entity('resource_group', name)} is in use by {listed}: detach these first")

    def __reduce__(self) -> tuple[Callable[..., InUseError], tuple[str, tuple[str, ...], bool]]:
        return (_in_use, (self.name, self.users, self.has_more))


def _in_use(name: str, users: tuple[str, ...], has_more: bool) -> InUseError:  # noqa: FBT001 - called by pickle
    return InUseError(name, users, has_more=has_more)


class ConflictError(StoreError):
    """Another change came first; nothing was changed."""

    def __init__(self, what: str, expected_revision: int, found_revision: int) -> None:
        self.what = what
        self.expected_revision = expected_revision
        self.found_revision = found_revision
        super().__init__(
            f"{what} is at revision {found_revision} and the change was made for revision {expected_revision}: "
            f"nothing was changed; read it again, then decide whether to try again"
        )

    def __reduce__(self) -> tuple[type[ConflictError], tuple[str, int, int]]:
        return (type(self), (self.what, self.expected_revision, self.found_revision))


class StoreUnavailableError(StoreError):
    """The store cannot be reached or read; nothing was changed."""

    def __init__(self, location: str, problem: str) -> None:
        self.location = location
        self.problem = problem
        super().__init__(f"the policy store {location} is not available: {problem}")

    def __reduce__(self) -> tuple[type[StoreUnavailableError], tuple[str, str]]:
        return (type(self), (self.location, self.problem))


class OutcomeUnknownError(StoreError):
    """A commit was sent and no answer came: it may have happened, or may yet."""

    def __init__(self, location: str, revision: int, problem: str) -> None:
        self.location = location
        self.revision = revision
        self.problem = problem
        super().__init__(
            f"the policy store {location} did not say whether revision {revision} was committed ({problem}): look "
            f"into its history before trying again"
        )

    def __reduce__(self) -> tuple[type[OutcomeUnknownError], tuple[str, int, str]]:
        return (type(self), (self.location, self.revision, self.problem))


def _entity(kind: str, name: str) -> str:
    """Return how a message names an entity, short."""
    shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return f"{kind.replace('_', ' ')} {shown!r}" if name else kind.replace("_", " ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known name, or an empty string.

    Examples
    --------
    >>> did_you_mean("mesages_per_second", ["bytes_per_second", "messages_per_second"])
    '; did you mean messages_per_second?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
