"""Who may call the admin API: bearer tokens, of which the server knows only the hashes.

A token is ``throttle_<id>_<secret>``. The id names the token in lists and in the audit, and is not secret; the secret
is 256 random bits, shown once. The file keeps a BLAKE2b hash of the secret, keyed with a salt of its own. A slow hash
guards passwords, which can be guessed; nobody guesses 256 random bits, and a slow hash at every request would help
anybody who wants to keep the server busy.

Roles fail closed. Every field of the file is checked, and a file with a wrong one is damaged: nobody is let in. A role
that this release does not know, such as one of a newer release, may do nothing.

The file is read again when it changes, so a revoked token is refused from its next request. The file is replaced as a
whole, and only its owner can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from spark_throttle.errors import ConfigurationError, NotFoundError, did_you_mean
from spark_throttle.files import file_lock
from spark_throttle.files.versioned_json import parse_versioned, versioned

Role: TypeAlias = Literal["admin", "tenant_admin", "viewer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
FORMAT: Final = 1

_TOKEN = re.compile(r"throttle_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_GLOB = re.compile(r"[*?\[]")
_NO_DIGEST: Final = bytes(32)
_LONGEST_NAME: Final = 100
_ID = re.compile(r"[0-9a-f]{12}")
_SALT = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLE = re.compile(r"[a-z_]{1,30}")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    token_id: str
    name: str
    role: str
    """A role of `ROLES`, or one that this release does not know, which may do nothing."""

    tenant: str | None
    """The only tenant that a tenant admin may see and change; `None` for the other roles."""

    @property
    def who(self) -> str:
        """Name of the caller in the audit."""
        return f"{self.name} (token {self.token_id})"


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

    @property
    def caller(self) -> Caller:
        """The caller that this token identifies."""
        return Caller(self.id, self.name, self.role, self.tenant)


class TokenFile:
    """The tokens of a server; safe for use by several threads and processes.

    Parameters
    ----------
    path
        A JSON file; a file that does not exist holds no token.
    clock_ms
        The wall clock, for the times of creation and expiry.

    Examples
    --------
    >>> import tempfile
    >>> tokens = TokenFile(Path(tempfile.mkdtemp()) / "tokens.json", clock_ms=lambda: 0)
    >>> text = tokens.create("ann", "admin")
    >>> tokens.caller(text).name
    'ann'
    >>> tokens.revoke(tokens.list()[0].id)
    >>> tokens.caller(text) is None
    True
    """

    def __init__(self, path: str | os.PathLike[str], *, clock_ms: Callable[[], int]) -> None:
        self.path = Path(path)
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}

    def create(self, name: str, role: str, *, tenant: str | None = None, days: int | None = None) -> str:
        """Create a token and return its text, which is stored nowhere.

        Parameters
        ----------
        name
            Name of the owner in the audit.
        tenant
            The tenant of a tenant admin; the other roles have none.
        days
            Days after which the token expires; by default it never does.

        Raises
        ------
        ConfigurationError
            If the arguments contradict each other.
        """
        _check(name, role, tenant, days)
        token_id, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16)
        now_ms = self._clock_ms()
        expires_ms = None if days is None else now_ms + days * 86_400_000
        known_role: Role = next(known for known in ROLES if known == role)
        digest = _digest(secret, salt).hex()
        with self._changing() as tokens:
            tokens[token_id] = Token(token_id, name, known_role, tenant, now_ms, expires_ms, salt.hex(), digest)
        return f"throttle_{token_id}_{secret}"

    def revoke(self, token_id: str) -> None:
        """Remove a token; requests that carry it are refused from then on.

        Raises
        ------
        NotFoundError
            If there is no token of that id.
        """
        with self._changing() as tokens:
            if tokens.pop(token_id, None) is None:
                raise NotFoundError("token", token_id, did_you_mean(token_id, tokens))

    def list(self) -> list[Token]:
        """Return all tokens, oldest first."""
        return sorted(self._current().values(), key=lambda token: (token.created_ms, token.id))

    def caller(self, text: str) -> Caller | None:
        """Return the caller that a token identifies, or `None` if the token is unknown or has expired."""
        parts = _TOKEN.fullmatch(text)
        if parts is None:
            return None
        token = self._current().get(parts[1])
        salt, digest = (bytes.fromhex(token.salt), bytes.fromhex(token.digest)) if token else (bytes(16), _NO_DIGEST)
        is_right = hmac.compare_digest(_digest(parts[2], salt), digest)
        if token is None or not is_right:
            return None
        if token.expires_ms is not None and token.expires_ms <= self._clock_ms():
            return None
        return token.caller

    def _current(self) -> dict[str, Token]:
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                self._tokens = self._read()
                self._seen = seen
            return self._tokens

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> dict[str, Token]:
        what = f"the token file {self.path}"
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        return parse_versioned(text, what, FORMAT, lambda fields: _tokens_of(fields["tokens"]))

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Token]]:
        """Yield the current tokens, and write them back with their changes; one process at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock.held(self.path.with_name(self.path.name + ".lock")):
            tokens = self._read()
            yield tokens
            text = versioned(FORMAT, {"tokens": [asdict(token) for token in tokens.values()]})
            written = self.path.with_name(self.path.name + ".tmp")
            written.unlink(missing_ok=True)
            with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text + b"\n")
            written.replace(self.path)


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), key=salt, digest_size=32).digest()


def _tokens_of(listed: object) -> dict[str, Token]:
    """Return the tokens that a file lists, each field checked.

    Raises
    ------
    ValueError
        If a field is wrong; the message names it, and holds neither its value nor a salt or digest.
    """
    if not isinstance(listed, list):
        raise TypeError("tokens is not a list")
    tokens: dict[str, Token] = {}
    for at, fields in enumerate(listed):
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
    yield "name", _is_name(token.name)
    yield "role", _is_text(token.role, _ROLE)
    has_tenant = _is_tenant(token.tenant)
    # What a tenant means to an unknown role is unknown too, and acts on nothing.
    fits_role = has_tenant == (token.role == "tenant_admin") if token.role in ROLES else True
    yield "tenant", (has_tenant or token.tenant is None) and fits_role
    yield "created_ms", _is_time(token.created_ms)
    yield "expires_ms", token.expires_ms is None or _is_time(token.expires_ms)
    yield "salt", _is_text(token.salt, _SALT)
    yield "digest", _is_text(token.digest, _DIGEST)


def _is_text(value: object, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _is_time(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= _LONGEST_NAME and name.isprintable()


def _is_tenant(tenant: object) -> bool:
    return isinstance(tenant, str) and bool(tenant) and "/" not in tenant and not _GLOB.search(tenant)


def _check(name: str, role: str, tenant: str | None, days: int | None) -> None:
    if not _is_name(name):
        raise ConfigurationError(f"a token needs the name of its owner, of 1 to {_LONGEST_NAME} printable characters")
    if role not in ROLES:
        raise ConfigurationError(f"the role {role!r} is none of {', '.join(ROLES)}{did_you_mean(role, ROLES)}")
    if (tenant is None) == (role == "tenant_admin"):
        raise ConfigurationError("a tenant_admin needs a tenant, and the other roles must have none")
    if tenant is not None and not _is_tenant(tenant):
        raise ConfigurationError(f"{tenant!r} does not name a single tenant: write the part before the first '/'")
    if days is not None and days < 1:
        raise ConfigurationError(f"{days} days are over before they begin; give 1 or more, or leave it out for ever")
