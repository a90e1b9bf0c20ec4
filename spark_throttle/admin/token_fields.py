"""What the token file holds of each token, and what each field must be.

Roles fail closed. Every field is checked, and a file with a wrong one is damaged: nobody is let in. A role that this
release does not know, such as one of a newer release, may do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Final

from spark_throttle.admin.caller import LONGEST_NAME, ROLES, Caller, is_name, is_tenant
from spark_throttle.core.names.shown_text import visible
from spark_throttle.errors import ConfigurationError, did_you_mean

_ID = re.compile(r"[0-9a-f]{12}")
_SALT = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLE = re.compile(r"[a-z_]{1,30}")
_LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: a calendar goes no further."""

MOST_DAYS: Final = 36_500
MOST_OVERLAP_MINUTES: Final = 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class Token:
    """The file's entry for one token."""

    id: str
    name: str
    role: str
    tenant: str | None
    created_ms: int
    expires_ms: int | None
    """When the token expires; `None` if never."""

    salt: str
    digest: str
    replaced_by: str | None = None
    """Id of the token that a rotation put in its place, while this one is still accepted."""

    @property
    def caller(self) -> Caller:
        """The caller that this token identifies."""
        return Caller(self.id, self.name, self.role, self.tenant)

    def has_expired(self, now_ms: int) -> bool:
        """Return whether nobody is let in with it any more."""
        return self.expires_ms is not None and self.expires_ms <= now_ms

    @property
    def lasts_ms(self) -> int | None:
        """How long the token was made for; `None` if for ever."""
        return None if self.expires_ms is None else self.expires_ms - self.created_ms


def tokens_of(listed: object) -> dict[str, Token]:
    """Return the tokens that a file lists, each field checked.

    Raises
    ------
    ValueError
        If a field is wrong; the message names it, and holds neither its value nor a salt or digest.
    """
    if not isinstance(listed, list):
        raise TypeError("tokens is not a list")
    tokens: dict[str, Token] = {}
    known = {field.name for field in dataclass_fields(Token)}
    for at, fields in enumerate(listed):
        if not isinstance(fields, dict):
            raise TypeError(f"tokens[{at}] is not a mapping")
        if odd := sorted(fields.keys() ^ known):
            problem = "is missing" if odd[0] in known else "is no field of a token"
            raise ValueError(f"tokens[{at}].{visible(odd[0])} {problem}")
        token = Token(**fields)
        wrong = next((name for name, is_right in _verdicts(token) if not is_right), None)
        if wrong is None and token.id in tokens:
            wrong = "id"
        if wrong is not None:
            raise ValueError(f"tokens[{at}].{wrong} is not what a token file holds there")
        tokens[token.id] = token
    return tokens


def _verdicts(token: Token) -> Iterator[tuple[str, bool]]:
    """Yield each field of a token, and whether it may be as it is."""
    yield "id", _is_text(token.id, _ID)
    yield "name", is_name(token.name)
    yield "role", _is_text(token.role, _ROLE)
    has_tenant = is_tenant(token.tenant)
    # What a tenant means to an unknown role is unknown too, and acts on nothing.
    fits_role = has_tenant == (token.role == "tenant_admin") if token.role in ROLES else True
    yield "tenant", (has_tenant or token.tenant is None) and fits_role
    yield "created_ms", _is_time(token.created_ms)
    yield "expires_ms", token.expires_ms is None or _is_time(token.expires_ms)
    yield "salt", _is_text(token.salt, _SALT)
    yield "digest", _is_text(token.digest, _DIGEST)
    yield "replaced_by", token.replaced_by is None or _is_text(token.replaced_by, _ID)


def _is_text(value: object, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LATEST_MS


def check_name(name: str) -> None:
    """Refuse a name that nobody can tell from another by looking at it.

    Raises
    ------
    ConfigurationError
        If it is so.
    """
    if not is_name(name):
        raise ConfigurationError(f"a token needs the name of its owner, of 1 to {LONGEST_NAME} visible characters")


def check_new(role: str, tenant: str | None, days: int | None) -> None:
    """Refuse a token that makes no sense.

    Raises
    ------
    ConfigurationError
        If the arguments contradict each other.
    """
    if role not in ROLES:
        raise ConfigurationError(f"the role {role!r} is none of {', '.join(ROLES)}{did_you_mean(role, ROLES)}")
    if (tenant is None) == (role == "tenant_admin"):
        raise ConfigurationError("a tenant_admin needs a tenant, and the other roles must have none")
    if tenant is not None and not is_tenant(tenant):
        raise ConfigurationError(f"{tenant!r} does not name a single tenant: write the part before the first '/'")
    if days is not None and not 1 <= days <= MOST_DAYS:
        raise ConfigurationError(f"a token cannot last {days} days; give 1 to {MOST_DAYS}")


def check_overlap(minutes: int) -> None:
    """Refuse an overlap that makes no sense.

    Raises
    ------
    ConfigurationError
        If it is negative, or so long that two tokens would live on side by side.
    """
    if not 0 <= minutes <= MOST_OVERLAP_MINUTES:
        raise ConfigurationError(
            f"a token cannot be accepted for {minutes} more minutes; give 0 to {MOST_OVERLAP_MINUTES}, which is a week"
        )
