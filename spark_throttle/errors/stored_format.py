"""Stored bytes are missing, damaged, or of another release."""

from __future__ import annotations

from typing import Final

from spark_throttle.errors.throttle_error import ThrottleError


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
