"""Every error spark-throttle raises: the class says what the caller should do.

::

    ThrottleError
    ├── PolicyError                 fix the policy document, then try again
    │   └── StoredPolicyError       correct the document that a store holds
    ├── ConfigurationError          fix the call or the job's settings, then try again
    │   ├── ShardCountChangedError  restore the shard count, or start a new checkpoint
    │   ├── CheckpointMismatchError put the checkpoint and its sinks back to the same batch
    │   ├── DefinitionChangedError  start once with the old definition
    │   └── NativeWriterError       use Spark's writer for the table
    ├── TakenOverError              let the newer run go on, or stop it and start again
    ├── StoredFormatError           stop: the stored bytes were written by another version, or are damaged
    │   ├── UnknownVersionError
    │   └── DamagedError
    ├── EpochMissingError           restore the file, or start a new checkpoint
    ├── QueueOverflowError          raise the bounds, then restart: nothing was lost
    ├── SignInUnavailableError      try again later: the sign-in provider does not answer
    ├── FileUnusableError           make the file what it must be, as the message says
    ├── AddressInUseError           end what listens there, or choose another address
    └── StoreError                  a policy store did not carry out a request
        ├── NotFoundError           ask for an entity that exists, or create it first
        ├── DuplicateError          update it instead, or choose another name
        ├── NotPermittedError       ask an administrator: the change is not its author's to make
        ├── UnconfirmedError        look at what the change costs, then confirm it: nothing was changed
        ├── InUseError              detach the users that it names, then try again
        ├── ConflictError           read it again, then decide whether to try again: nothing was changed
        ├── StoreUnavailableError   try again later, or repair the store: nothing was changed
        └── OutcomeUnknownError     check whether the change was committed before trying again

Messages carry the value, the bound it broke and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Final

from spark_throttle.remedies import IN_PYTHON, Remedy, Words

_LONGEST_NAME = 80
_MOST_LOSSES = 10


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

    def __reduce__(self) -> tuple[type[PolicyError], tuple[str, str, Remedy | None]]:
        return (type(self), (self.path, self.problem, self.door_remedy))


class StoredPolicyError(PolicyError):
    """The document that a store holds cannot be applied: somebody edited it, and the caller is not at fault."""


class ConfigurationError(ThrottleError):
    """A call or a job setting cannot work as given."""


class ShardCountChangedError(ConfigurationError):
    """The checkpoint was written with a different number of shards."""

    def __init__(self, stored_shards: int, asked_shards: int) -> None:
        self.stored_shards = stored_shards
        self.asked_shards = asked_shards
        super().__init__(
            f"this checkpoint holds {stored_shards} shards, but {asked_shards} were requested; its queues and "
            f"balances are kept by shard: set shards={stored_shards}, or start a new checkpoint"
        )

    def __reduce__(self) -> tuple[type[ShardCountChangedError], tuple[int, int]]:
        return (type(self), (self.stored_shards, self.asked_shards))


class CheckpointMismatchError(ConfigurationError):
    """The checkpoint and something that its query has written do not share one history.

    Restoring an older checkpoint undoes batches, and their numbers are then given to other rows: to go on would lose
    rows or double them. Nothing has been written.
    """

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what} {problem}: {remedy} (docs/checkpoints.md)")

    def __reduce__(self) -> tuple[type[CheckpointMismatchError], tuple[str, str, str]]:
        return (type(self), (self.what, self.problem, self.remedy))


class TakenOverError(ThrottleError):
    """Another run has begun in this run's control directory."""

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"another run has begun in the control directory {location}, so this one ends: either a query was started "
            f"twice, or two queries were given one control directory; let only one of them run, and give each query a "
            f"checkpoint (or control_path) of its own"
        )

    def __reduce__(self) -> tuple[type[TakenOverError], tuple[str]]:
        return (type(self), (self.location,))


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

    def __reduce__(self) -> tuple[type[DefinitionChangedError], tuple[int, str, str]]:
        return (type(self), (self.batch, self.differences, self.note))


class NativeWriterError(ConfigurationError):
    """The native Delta writer cannot write as asked, but Spark's can.

    Examples
    --------
    >>> str(NativeWriterError("s3://lake/orders", "it has the table feature rowTracking")).partition(";")[0]
    'the native Delta writer cannot write s3://lake/orders: it has the table feature rowTracking'
    """

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(
            f"the native Delta writer cannot write {what}: {why}; use Spark's writer: leave "
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

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str]]:
        return (type(self), (self.what, self.problem, self.remedy))


class EpochMissingError(ThrottleError):
    """An offset names an epoch whose file is gone."""

    def __init__(self, epoch: int, path: str) -> None:
        self.epoch = epoch
        self.path = path
        super().__init__(
            f"the offset log names epoch {epoch}, but its file {path} is missing: restore the file "
            f"(it is written once and never changes), or start a new checkpoint"
        )

    def __reduce__(self) -> tuple[type[EpochMissingError], tuple[int, str]]:
        return (type(self), (self.epoch, self.path))


class QueueOverflowError(ThrottleError):
    """The queue is full, and the policy says to fail rather than to reject."""

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


class SignInUnavailableError(ThrottleError):
    """Whether a caller may be let in cannot be told, because the provider of its sign-in does not answer."""

    def __init__(self, issuer: str, problem: str) -> None:
        self.issuer = issuer
        self.problem = problem
        super().__init__(f"the sign-in provider {issuer} does not answer as it must: {problem}; try again later")

    def __reduce__(self) -> tuple[type[SignInUnavailableError], tuple[str, str]]:
        return (type(self), (self.issuer, self.problem))


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

    def __reduce__(self) -> tuple[type[FileUnusableError], tuple[str, str]]:
        return (type(self), (self.path, self.problem))


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

    def __reduce__(self) -> tuple[type[AddressInUseError], tuple[str, int]]:
        return (type(self), (self.host, self.port))


class StoreError(ThrottleError):
    """A policy store did not carry out a request."""


class NotFoundError(StoreError):
    """The store holds nothing by that name."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.hint = hint
        super().__init__(f"there is no {_entity(kind, name)}{hint}")

    def __reduce__(self) -> tuple[type[NotFoundError], tuple[str, str, str]]:
        return (type(self), (self.kind, self.name, self.hint))


class DuplicateError(StoreError):
    """The entity to be created already exists."""

    def __init__(self, kind: str, name: str, problem: str, door_remedy: Remedy | None = None) -> None:
        self.kind = kind
        self.name = name
        self.problem = problem
        super().__init__(f"the {_entity(kind, name)} {problem}", door_remedy)

    def __reduce__(self) -> tuple[type[DuplicateError], tuple[str, str, str, Remedy | None]]:
        return (type(self), (self.kind, self.name, self.problem, self.door_remedy))


class NotPermittedError(StoreError):
    """The change is not its author's to make; nothing was changed.

    Examples
    --------
    >>> str(NotPermittedError("namespace", "acme/x", "only an administrator removes it", path="locked"))
    "the namespace 'acme/x' stays as it is: locked: only an administrator removes it"
    """

    def __init__(self, kind: str, name: str, problem: str, *, path: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.problem = problem
        self.path = path
        super().__init__(f"the {_entity(kind, name)} stays as it is: {f'{path}: ' if path else ''}{problem}")

    def __reduce__(self) -> tuple[Callable[..., NotPermittedError], tuple[str, str, str, str | None]]:
        return (_not_permitted, (self.kind, self.name, self.problem, self.path))


def _not_permitted(kind: str, name: str, problem: str, path: str | None) -> NotPermittedError:
    return NotPermittedError(kind, name, problem, path=path)


class UnconfirmedError(StoreError):
    """The change costs protection, and its author has not confirmed that; nothing was changed.

    Examples
    --------
    >>> print(UnconfirmedError(["no limit is left"]))
    this costs protection, and nothing was changed: no limit is left; confirm it with Author(is_confirmed=True) if it is
    meant
    """

    def __init__(self, losses: Iterable[str]) -> None:
        self.losses = tuple(losses)
        unlisted = len(self.losses) - _MOST_LOSSES
        listed = [*self.losses[:_MOST_LOSSES], *([f"and {unlisted} more"] if unlisted > 0 else [])]
        super().__init__(f"this costs protection, and nothing was changed: {'; '.join(listed)}", Remedy.CONFIRM)

    def __reduce__(self) -> tuple[type[UnconfirmedError], tuple[tuple[str, ...]]]:
        return (type(self), (self.losses,))


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
    """Another change came first; this one changed nothing.

    Examples
    --------
    >>> print(ConflictError("tenant acme", 3, 0, is_entry=True))
    tenant acme does not exist, and the change was made for revision 3: nothing was changed; read it again, then \
decide whether to try again
    """

    def __init__(
        self,
        what: str,
        expected_revision: int | None,
        found_revision: int,
        *,
        is_entry: bool = False,
        mismatch: str | None = None,
    ) -> None:
        self.what = what
        self.expected_revision = expected_revision
        """`None` for any: the change requires that the entry exists."""

        self.found_revision = found_revision
        self.is_entry = is_entry
        """Whether it is an entry, which does not exist at revision 0, and not a store, which is empty then."""

        self.mismatch = mismatch
        """What does not fit, if it is not the number of the revision; it follows `what`."""

        found = f"{what} is at revision {found_revision}"
        expected = f"the change was made for revision {expected_revision}"
        if is_entry and not found_revision:
            found = f"{what} does not exist,"
        if expected_revision is None:
            expected = "the change requires that it does"
        elif is_entry and not expected_revision:
            found, expected = f"{what} exists, at revision {found_revision},", "the change requires that it does not"
        said = f"{found} and {expected}" if mismatch is None else f"{what}{mismatch}"
        super().__init__(f"{said}: nothing was changed; read it again, then decide whether to try again")

    def __reduce__(self) -> tuple[Callable[..., ConflictError], tuple[str, int | None, int, bool, str | None]]:
        return (_conflict, (self.what, self.expected_revision, self.found_revision, self.is_entry, self.mismatch))


def _conflict(what: str, expected: int | None, found: int, is_entry: bool, mismatch: str | None) -> ConflictError:  # noqa: FBT001 - by pickle
    return ConflictError(what, expected, found, is_entry=is_entry, mismatch=mismatch)


class StoreUnavailableError(StoreError):
    """The store cannot be reached or read; nothing was changed."""

    def __init__(self, location: str, problem: str, door_remedy: Remedy | None = None) -> None:
        self.location = location
        self.problem = problem
        super().__init__(f"the policy store {location} is not available: {problem}", door_remedy)

    def __reduce__(self) -> tuple[type[StoreUnavailableError], tuple[str, str, Remedy | None]]:
        return (type(self), (self.location, self.problem, self.door_remedy))


class OutcomeUnknownError(StoreError):
    """A commit was sent, and no answer came: it may have happened, or may still happen."""

    def __init__(self, location: str, revision: int, problem: str) -> None:
        self.location = location
        self.revision = revision
        self.problem = problem
        super().__init__(
            f"the policy store {location} did not say whether revision {revision} was committed ({problem}): check "
            f"its history before trying again"
        )

    def __reduce__(self) -> tuple[type[OutcomeUnknownError], tuple[str, int, str]]:
        return (type(self), (self.location, self.revision, self.problem))


def _entity(kind: str, name: str) -> str:
    """Return the name of an entity as messages show it, cut to a short length."""
    shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return f"{kind.replace('_', ' ')} {shown!r}" if name else kind.replace("_", " ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or an empty string if none is near.

    Examples
    --------
    >>> did_you_mean("mesages_per_second", ["bytes_per_second", "messages_per_second"])
    '; did you mean messages_per_second?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
