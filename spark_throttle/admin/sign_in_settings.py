"""The settings of a sign-in by OpenID Connect: whom the server believes, and what claims make of a caller.

Rules fail closed: whoever no rule fits has no role, and a claim of another form than a rule expects fits no rule.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spark_throttle.admin.caller import Role, is_name, is_tenant
from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.yaml_text import read_yaml

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"
]
"""Signatures that only the provider can make. A shared secret (HS256) could be anybody's, and `none` is nobody's."""

MOST_RULES: Final = 1000
_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
ClaimPath: TypeAlias = _Text | Annotated[list[_Text], Field(min_length=1, max_length=8)]
"""The name of a claim, or the names that lead to it through nested ones."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RoleRule(_Part):
    """Gives a role to callers of whom a claim says something."""

    claim: ClaimPath
    value: _Text
    """What the claim must be, or contain if it is a list."""

    role: Role
    tenant: str | None = None
    """The tenant of a tenant admin."""

    tenant_claim: ClaimPath | None = None
    """The claim that names the tenant, if that differs between callers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in ("tenant", "tenant_claim") if getattr(self, name) is not None]
        if self.role == "tenant_admin" and len(given) != 1:
            raise ValueError("a tenant_admin needs either tenant or tenant_claim")
        if self.role != "tenant_admin" and given:
            raise ValueError(f"the role {self.role} has no tenant; leave {' and '.join(given)} out")
        if self.tenant is not None and not is_tenant(self.tenant):
            raise ValueError(f"{self.tenant!r} does not name a single tenant")
        return self


class SignInSettings(_Part):
    """Whom the server believes, and what it makes of what they say.

    Examples
    --------
    >>> settings = SignInSettings.model_validate(
    ...     {
    ...         "issuer": "https://login.example.org",
    ...         "audience": "spark-throttle",
    ...         "roles": [{"claim": "groups", "value": "platform", "role": "admin"}],
    ...     }
    ... )
    >>> settings.role_of({"groups": ["staff", "platform"]}), settings.role_of({"groups": "staff"})
    (('admin', None), None)
    """

    issuer: _Text
    """The provider's URL, exactly as its tokens have it in `iss`."""

    audience: _Text | Annotated[list[_Text], Field(min_length=1)]
    """What a token must have in `aud`: the name under which the provider knows this server."""

    roles: Annotated[list[RoleRule], Field(min_length=1, max_length=MOST_RULES)]
    """The first rule that fits decides."""

    name_claim: ClaimPath = "preferred_username"
    """What callers are called in the history; the subject, if they have no such claim."""

    algorithms: Annotated[list[Algorithm], Field(min_length=1)] = ["RS256", "PS256", "ES256", "ES384", "EdDSA"]
    leeway_seconds: Annotated[int, Field(ge=0, le=300)] = 30
    """How far the provider's clock may be from the server's."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = urlsplit(self.issuer)
        if parts.query or parts.fragment or not is_safe_url(self.issuer):
            raise ValueError(
                f"the issuer {self.issuer!r} is no https URL without a query, so its keys could be anybody's; plain "
                f"http is for a provider on loopback"
            )
        return self

    @property
    def audiences(self) -> list[str]:
        """The audiences, of which a token must have one."""
        return [self.audience] if isinstance(self.audience, str) else list(self.audience)

    def role_of(self, claims: dict[str, Any]) -> tuple[Role, str | None] | None:
        """Return the role and the tenant that claims give; `None` if they give no role.

        If the first rule that fits takes the tenant from a claim that names none, there is no role: a later rule is for
        others.
        """
        for rule in self.roles:
            if not _says(claim_at(claims, rule.claim), rule.value):
                continue
            if rule.tenant_claim is None:
                return rule.role, rule.tenant
            tenant = claim_at(claims, rule.tenant_claim)
            if isinstance(tenant, str) and is_tenant(tenant) and is_name(tenant):
                return rule.role, tenant
            return None
        return None


def read_settings(path: str) -> SignInSettings:
    """Return the settings in a YAML file.

    Raises
    ------
    ConfigurationError
        If it cannot be read, or a setting cannot work as given.
    """
    try:
        values = read_yaml(Path(path).read_bytes())
        return SignInSettings.model_validate(values)
    except OSError as error:
        raise ConfigurationError(f"the sign-in settings {path} cannot be read: {error.strerror}") from error
    except PolicyError as error:
        raise ConfigurationError(f"the sign-in settings {path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"the sign-in settings {path}: {where}: {first['msg']}".replace(": :", ":")) from error


def claim_at(claims: dict[str, Any], path: ClaimPath) -> object:
    """Return the value of a claim; `None` where there is none."""
    value: object = claims
    for name in [path] if isinstance(path, str) else path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def is_safe_url(url: str) -> bool:
    """Return whether nobody between here and a URL's host can change what it answers.

    Examples
    --------
    >>> [is_safe_url(url) for url in ("https://a.example", "http://a.example", "http://127.0.0.1:9/x", "file:///x")]
    [True, False, True, False]
    """
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url)))
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Return whether a URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _says(claim: object, value: str) -> bool:
    return claim == value if isinstance(claim, str) else isinstance(claim, list) and value in claim
