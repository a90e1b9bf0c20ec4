"""A caller of the admin API has one of a few roles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from spark_throttle.core.names.visible_text import is_visible

Role: TypeAlias = Literal["admin", "tenant_admin", "viewer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

READS_ALL: Final = ("admin", "viewer")
"""The roles that may see what belongs to no single tenant."""

NO_ROLE: Final = ""
"""The role of a caller whom a sign-in identifies and no rule gives a role."""

LONGEST_NAME: Final = 100
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, as a token or a sign-in identifies it."""

    token_id: str
    """Id of the token, or what stands for one: the subject and the issuer of a sign-in."""

    name: str
    role: str
    """A role of `ROLES`, or one that this release does not know, which may do nothing."""

    tenant: str | None
    """The only tenant that a tenant admin may see and change; `None` for the other roles."""

    is_signed_in: bool = False
    """Whether an OpenID Connect provider identified the caller, and not a token of the server's own."""

    @property
    def who(self) -> str:
        """Name of the caller in the history.

        Examples
        --------
        >>> Caller("0123456789ab", "ann", "admin", None).who
        'ann (token 0123456789ab)'
        """
        return f"{self.name} ({self.identity})"

    @property
    def identity(self) -> str:
        """What identifies the caller: two callers may have one name."""
        return f"signed in as {self.token_id}" if self.is_signed_in else f"token {self.token_id}"


def is_name(name: object) -> bool:
    """Return whether a value can be the name of a caller: 1 to `LONGEST_NAME` visible characters."""
    return isinstance(name, str) and bool(name.strip()) and len(name) <= LONGEST_NAME and is_visible(name)


def is_tenant(tenant: object) -> bool:
    """Return whether a value names a single tenant.

    Examples
    --------
    >>> [is_tenant(value) for value in ("acme", "acme/x", "ac*", "", None, ["acme"])]
    [True, False, False, False, False, False]
    """
    return isinstance(tenant, str) and bool(tenant) and "/" not in tenant and not _GLOB.search(tenant)
