"""A policy store did not carry out a request; each class says whether anything was changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_throttle.errors.job import ThrottleError
from spark_throttle.remedies import Remedy

_LONGEST_NAME: Final = 80
_MOST_LOSSES: Final = 10


class StoreError(ThrottleError):
    """A policy store did not carry out a request."""


class NotFoundError(StoreError):
    """The store holds nothing by that name."""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.hint = hint
        super().__init__(f"there is no {_entity(kind, name)}{hint}")


class DuplicateError(StoreError):
    """The entity to be created already exists."""

    def __init__(self, kind: str, name: str, problem: str, door_remedy: Remedy | None = None) -> None:
        self.kind = kind
        self.name = name
        self.problem = problem
        super().__init__(f"the {_entity(kind, name)} {problem}", door_remedy)


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


class InUseError(StoreError):
    """A resource group cannot be deleted while tenants or namespaces are attached to it."""

    def __init__(self, name: str, users: Iterable[str], *, has_more: bool = False) -> None:
        self.name = name
        self.users = tuple(users)
        self.has_more = has_more
        listed = ", ".join(self.users) + (" and more" if has_more else "")
        super().__init__(f"the {_entity('resource_group', name)} is in use by {listed}: detach these first")


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


class StoreUnavailableError(StoreError):
    """The store cannot be reached or read; nothing was changed."""

    def __init__(self, location: str, problem: str, door_remedy: Remedy | None = None) -> None:
        self.location = location
        self.problem = problem
        super().__init__(f"the policy store {location} is not available: {problem}", door_remedy)


class UnwantedError(StoreError):
    """The caller of a long piece of work has left, or its time was up; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "nobody waits any more for what takes so long, and nothing was changed; ask for less: a page, or fewer "
            "entries"
        )


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


def _entity(kind: str, name: str) -> str:
    """Return the name of an entity as messages show it, cut to a short length."""
    shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return f"{kind.replace('_', ' ')} {shown!r}" if name else kind.replace("_", " ")
