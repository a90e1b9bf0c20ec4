"""The admin API lets callers in by bearer tokens, of which the server knows only the hashes.

A token is ``throttle_<id>_<secret>``. The id names the token in lists and in the audit, and is not secret; the secret
is 256 random bits, shown once. The file keeps a BLAKE2b hash of the secret, keyed with a salt of its own. A slow hash
guards passwords, which can be guessed; nobody guesses 256 random bits, and a slow hash at every request would help
anybody who wants to keep the server busy.

The file is read again when it changes, so a revoked token is refused from its next request. The file is replaced as a
whole, and only its owner can read it: with a wider mode it is not believed. Every field is checked, and a file with a
wrong one is damaged. While it cannot be read nobody is let in, and the log says it once. A role that this release does
not know, such as one of a newer release, may do nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from spark_throttle.admin.caller import LONGEST_NAME, ROLES, Caller, is_name, is_tenant
from spark_throttle.core.names.visible_text import visible
from spark_throttle.errors import (
    ConfigurationError,
    DamagedError,
    NotFoundError,
    ThrottleError,
    UnknownVersionError,
    did_you_mean,
)
from spark_throttle.files.private_file import check_no_link, locked, read_private, replace_private, unusable

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
    for at, each in enumerate(listed):
        fields = _mapping(f"tokens[{at}]", each)
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


def _mapping(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{where} is not a mapping")
    return value


def _number(where: str, value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{where} is {value!r}, no whole number")
    return value


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


logger = logging.getLogger(__name__)

FORMAT: Final = 1

FORM: Final = re.compile(r"throttle_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
DAY_MS: Final = 86_400_000

_IF_DAMAGED: Final = "restore it from a backup, or remove it and create the tokens anew"
_NO_DIGEST: Final = bytes(32)
_Signature: TypeAlias = tuple[int, ...]


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
    >>> tokens.judged(text)[0].name
    'ann'
    >>> newer = tokens.rotate(tokens.list()[0].id)
    >>> tokens.judged(text)[0] is None, tokens.judged(newer)[0].name
    (True, 'ann')
    >>> tokens.revoke(tokens.list()[0].id)
    >>> tokens.judged(newer)[0] is None
    True
    """

    def __init__(self, path: str | os.PathLike[str], *, clock_ms: Callable[[], int]) -> None:
        self.path = Path(path)
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._seen: _Signature | None = None
        self._tokens: dict[str, Token] = {}
        self._fault: ThrottleError | None = None
        """What was wrong with the file when it was last read; while the file stays the same, that stays wrong."""

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
        FileUnusableError
            If the file cannot be written; it is as it was.
        """
        check_name(name)
        check_new(role, tenant, days)
        now_ms = self._clock_ms()
        expires_ms = None if days is None else now_ms + days * DAY_MS
        with self._changing() as tokens:
            return _added(tokens, name, role, tenant, now_ms, expires_ms)

    def rotate(self, token_id: str, *, days: int | None = None, overlap_minutes: int = 0) -> str:
        """Replace a token by a new one of the same owner, role and tenant, and return the new one's text.

        Parameters
        ----------
        days
            Days after which the new token expires; by default it lives as long as the old one was made for.
        overlap_minutes
            How long the old token is still accepted, unless it expires sooner.

        Raises
        ------
        NotFoundError
            If there is no token of that id.
        ConfigurationError
            If the days or the minutes make no sense, or the token has expired or was replaced already.
        FileUnusableError
            If the file cannot be written; it is as it was.
        """
        check_overlap(overlap_minutes)
        with self._changing() as tokens:
            old = tokens.get(token_id)
            if old is None:
                raise NotFoundError("token", token_id, did_you_mean(token_id, tokens))
            check_new(old.role, old.tenant, days)
            now_ms = self._clock_ms()
            _check_rotatable(old, now_ms)
            lasts_ms = days * DAY_MS if days is not None else old.lasts_ms
            ends_ms = now_ms + overlap_minutes * 60_000
            if overlap_minutes == 0:
                del tokens[token_id]
            expires_ms = None if lasts_ms is None else now_ms + lasts_ms
            text = _added(tokens, old.name, old.role, old.tenant, now_ms, expires_ms)
            if overlap_minutes:
                ends_ms = ends_ms if old.expires_ms is None else min(old.expires_ms, ends_ms)
                tokens[token_id] = replace(old, expires_ms=ends_ms, replaced_by=next(reversed(tokens)))
            return text

    def revoke(self, token_id: str) -> None:
        """Remove a token; requests that carry it are refused from then on.

        Raises
        ------
        NotFoundError
            If there is no token of that id.
        FileUnusableError
            If the file cannot be written; it is as it was.
        """
        with self._changing() as tokens:
            if tokens.pop(token_id, None) is None:
                raise NotFoundError("token", token_id, did_you_mean(token_id, tokens))

    def list(self) -> list[Token]:
        """Return all tokens, oldest first; a file that cannot be believed is the caller's to report, and not logged.

        Raises
        ------
        FileUnusableError, StoredFormatError
            If it is so.
        """
        return sorted(self._read().values(), key=lambda token: (token.created_ms, token.id))

    def judged(self, text: str) -> tuple[Caller | None, str]:
        """Return the caller that a token identifies, or `None` and the reason, which is for the audit log alone.

        Raises
        ------
        FileUnusableError, StoredFormatError
            If the file cannot be believed. The log says it once for each state of the file.
        """
        parts = FORM.fullmatch(text)
        if parts is None:
            return None, "it is no token of this server"
        token = self._current().get(parts[1])
        salt, digest = (bytes.fromhex(token.salt), bytes.fromhex(token.digest)) if token else (bytes(16), _NO_DIGEST)
        is_right = hmac.compare_digest(_digest(parts[2], salt), digest)
        if token is None:
            return None, f"there is no token {parts[1]}"
        if not is_right:
            return None, f"the secret of the token {token.id} is wrong"
        if token.has_expired(self._clock_ms()):
            return None, f"the token {token.id} ({token.name}) has expired"
        return token.caller, ""

    def _current(self) -> dict[str, Token]:
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                self._fault = None
                try:
                    self._tokens = self._read()
                except ThrottleError as error:
                    logger.error("no token is accepted: %s", error)  # noqa: TRY400 - the message says it all
                    self._tokens, self._fault = {}, error
                self._seen = seen
            if self._fault is not None:
                raise self._fault.with_traceback(None)
            return self._tokens

    def _signature(self) -> _Signature | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return (error.errno or 0,)
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev, status.st_size, status.st_mode

    def _read(self) -> dict[str, Token]:
        text = read_private(self.path)
        if text is None:
            return {}
        what = f"the token file {self.path}"
        try:
            fields = _mapping("it", json.loads(text))
            if (found := _number("its format", fields["format"])) > FORMAT:
                raise UnknownVersionError(what, found, FORMAT)
            return tokens_of(fields["tokens"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DamagedError(what, _problem(error), _IF_DAMAGED) from error

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Token]]:
        """Yield the current tokens, and write them back with their changes; one process at a time."""
        check_no_link(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(self.path, "its folder cannot be made", error) from error
        with locked(self.path):
            tokens = self._read()
            yield tokens
            now_ms = self._clock_ms()
            kept = [each for each in tokens.values() if each.replaced_by is None or not each.has_expired(now_ms)]
            fields = {"format": FORMAT, "tokens": [asdict(each) for each in kept]}
            replace_private(self.path, json.dumps(fields, indent=1).encode() + b"\n")


def _problem(error: Exception) -> str:
    """Return what is wrong with a text that cannot be read, in words."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error.msg}, line {error.lineno}, column {error.colno})"
    if isinstance(error, KeyError):
        return f"it has no field {error.args[0]}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or repr(error)


def _check_rotatable(token: Token, now_ms: int) -> None:
    """Refuse to make a token of one that nobody should have any more."""
    if token.has_expired(now_ms):
        raise ConfigurationError(f"the token {token.id} has expired; create a new one (spark-throttle token create)")
    if token.replaced_by is not None:
        newer = token.replaced_by
        raise ConfigurationError(f"the token {token.id} was replaced by {newer} already; rotate {newer}, or revoke it")


def _added(
    tokens: dict[str, Token], name: str, role: str, tenant: str | None, now_ms: int, expires_ms: int | None
) -> str:
    """Add a new token, and return its text."""
    token_id, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16)
    tokens[token_id] = Token(token_id, name, role, tenant, now_ms, expires_ms, salt.hex(), _digest(secret, salt).hex())
    return f"throttle_{token_id}_{secret}"


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), key=salt, digest_size=32).digest()
