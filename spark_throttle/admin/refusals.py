"""Every error has a status of the API's answer, an exit code of a command, and an outcome in the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from typing import Final, Literal, Self, TypeAlias

from spark_throttle.errors import (
    AddressInUseError,
    ConfigurationError,
    ConflictError,
    DuplicateError,
    FileUnusableError,
    InUseError,
    NotFoundError,
    NotPermittedError,
    OutcomeUnknownError,
    PolicyError,
    StoredFormatError,
    StoredPolicyError,
    StoreUnavailableError,
    ThrottleError,
    UnconfirmedError,
    UnwantedError,
)

Outcome: TypeAlias = Literal["done", "unchanged", "unconfirmed", "refused", "failed", "unknown"]
"""`unchanged`: everything was so already. `unconfirmed`: nothing was changed, and its author was asked to confirm it.
`unknown`: nobody knows whether it was done."""


class Exit(IntEnum):
    """The exit codes of commands, which tell what to do next; `said` is what the help says of them."""

    said: str

    def __new__(cls, code: int, said: str) -> Self:
        """Return a code with its words."""
        exit_code = int.__new__(cls, code)
        exit_code._value_ = code
        exit_code.said = said
        return exit_code

    DONE = 0, "done"
    FAULT = 1, "fault"  # of the program, or stored files that it cannot read
    USAGE = 2, "usage"
    INVALID = 3, "cannot be applied"
    NOT_FOUND = 4, "not found"
    DUPLICATE = 5, "exists already"
    IN_USE = 6, "in use"
    CONFLICT = 7, "another change came first, nothing was changed"
    UNAVAILABLE = 8, "the store, a file or the port is not available, nothing was changed"
    UNKNOWN = 9, "it is unknown whether anything was changed"
    DIFFERENT = 10, "a difference"  # that `diff --check` found, or something that `import` cannot express
    SILENT = 11, "no job is listening"
    UNCONFIRMED = 12, "the change costs protection and wants --yes, nothing was changed"
    UNWRITTEN = 13, "done, but the answer could not be written"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What becomes of an error of one class."""

    status: HTTPStatus
    exit: Exit
    outcome: Outcome = "refused"
    is_of_request: bool = False
    """Whether its text is about what the caller said, or may read; others name files and the store."""


_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE
_REFUSALS: Final[dict[type[ThrottleError], Refusal]] = {
    StoredPolicyError: Refusal(_UNAVAILABLE, Exit.INVALID, "failed"),
    PolicyError: Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, Exit.INVALID, is_of_request=True),
    ConfigurationError: Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, Exit.INVALID, is_of_request=True),
    NotFoundError: Refusal(HTTPStatus.NOT_FOUND, Exit.NOT_FOUND, is_of_request=True),
    NotPermittedError: Refusal(HTTPStatus.FORBIDDEN, Exit.INVALID, is_of_request=True),
    UnconfirmedError: Refusal(HTTPStatus.PRECONDITION_REQUIRED, Exit.UNCONFIRMED, "unconfirmed", is_of_request=True),
    DuplicateError: Refusal(HTTPStatus.CONFLICT, Exit.DUPLICATE, is_of_request=True),
    InUseError: Refusal(HTTPStatus.PRECONDITION_FAILED, Exit.IN_USE, is_of_request=True),
    ConflictError: Refusal(HTTPStatus.PRECONDITION_FAILED, Exit.CONFLICT),
    StoreUnavailableError: Refusal(_UNAVAILABLE, Exit.UNAVAILABLE, "failed"),
    OutcomeUnknownError: Refusal(HTTPStatus.GATEWAY_TIMEOUT, Exit.UNKNOWN, "unknown"),
    UnwantedError: Refusal(_UNAVAILABLE, Exit.INVALID, is_of_request=True),
    StoredFormatError: Refusal(_UNAVAILABLE, Exit.FAULT, "failed"),
    FileUnusableError: Refusal(_UNAVAILABLE, Exit.UNAVAILABLE, "failed"),
    AddressInUseError: Refusal(_UNAVAILABLE, Exit.UNAVAILABLE),
    ThrottleError: Refusal(_UNAVAILABLE, Exit.INVALID),
}
"""The first class that an error is of decides."""


def refusal_of(error: ThrottleError) -> Refusal:
    """Return what becomes of an error.

    Examples
    --------
    >>> found = refusal_of(NotFoundError("tenant", "acme"))
    >>> int(found.status), int(found.exit), found.outcome
    (404, 4, 'refused')
    """
    return next(refusal for kind, refusal in _REFUSALS.items() if isinstance(error, kind))
