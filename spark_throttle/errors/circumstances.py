"""What stands in the way of a call that is right: another run, a full queue, a file, another program, stored bytes.

Stored bytes stand in the way where they are missing, damaged, or of another release.
"""

from __future__ import annotations

from typing import Final

from spark_throttle.errors.throttle_error import ThrottleError


class TakenOverError(ThrottleError):
    """Another run has begun in this run's control directory."""

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"another run has begun in the control directory {location}, so this one ends: either a query was started "
            f"twice, or while a tool worked on its checkpoint, or two queries were given one control directory; let "
            f"only one of them run, and give each query a checkpoint (or control_path) of its own"
        )

    def __reduce__(self) -> tuple[type[TakenOverError], tuple[str]]:
        return (type(self), (self.location,))


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

    def __reduce__(self) -> tuple[type[QueueOverflowError], tuple[int, int, int]]:
        args = (self.waiting_messages, self.bound_messages, self.bound_bytes)
        return (type(self), args)


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

    def __reduce__(self) -> tuple[type[SourceChangedError], tuple[str, str, str]]:
        return (type(self), (self.what, self.problem, self.remedy))


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
