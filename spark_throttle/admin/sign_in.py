"""Sign-in by OpenID Connect: a provider identifies callers, beside those with a token of the server's own.

A caller sends the provider's signed token (an ID token, or an access token in the form of RFC 9068) as its bearer
token. The server checks the signature with the provider's public keys, the issuer, the audience and the times, and
makes a role of the claims. It holds no secret of the provider's, and keeps no session: what a token says counts until
it expires, so providers make them short-lived.

The provider's discovery document names the address of its keys. Keys are asked for again when they are
`FRESH_SECONDS` old, so a key that the provider withdraws is believed no longer than that; and when a token names a key
that is not known, or has a signature that its key does not fit, since the provider may have rotated its keys, and some
give a new key the old one's name. Attempts are `PAUSE_SECONDS` apart, so that tokens with made-up keys do not make the
server ask all the time. While the provider cannot be reached, its last keys are believed up to `STALE_SECONDS`. What
cannot be decided without it is an error that says so, and not a refusal.

joserfc, the library of Authlib's author for signed tokens, does the checking. It takes the time as an argument, it
refuses algorithms that are not asked for, and keys of the wrong kind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any, Final, TypeAlias
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from spark_throttle.admin.caller import NO_ROLE, Caller, is_name
from spark_throttle.admin.sign_in_settings import SignInSettings, claim_at, is_loopback, is_safe_url
from spark_throttle.core.names.visible_text import is_visible
from spark_throttle.errors import SignInUnavailableError

logger = logging.getLogger(__name__)

Key: TypeAlias = RSAKey | ECKey | OKPKey

FRESH_SECONDS: Final = 600
STALE_SECONDS: Final = 3600
PAUSE_SECONDS: Final = 5
ANSWER_SECONDS: Final = 3.0
"""How long the provider may take for each of its two answers."""

_WAIT_SECONDS: Final = 3 * ANSWER_SECONDS
"""How long a request waits: looking up the provider's address has no limit of its own."""

MOST_ANSWER_BYTES: Final = 1 << 20
MOST_KEYS: Final = 100
LEAST_RSA_BITS: Final = 2048
"""A shorter key can be broken: NIST SP 800-131A allows none for signatures, and RFC 7518 none for these algorithms."""


class ProviderKeys:
    """The signing keys of one provider; safe for use by several threads and event loops.

    Parameters
    ----------
    issuer
        The provider's URL.
    monotonic_ms
        A clock that nobody sets, for the age of keys.
    """

    def __init__(self, issuer: str, *, monotonic_ms: Callable[[], int]) -> None:
        self._issuer = issuer
        self._monotonic_ms = monotonic_ms
        # A thread of its own: a provider that does not answer must not keep the audit log from its thread.
        self._fetching = ThreadPoolExecutor(1, thread_name_prefix="sign-in-keys")
        self._lock = threading.Lock()
        self._pending: Future[None] | None = None
        self._keys: list[Key] = []
        self._fetched_ms: int | None = None
        self._tried_ms: int | None = None
        self._problem: str | None = None
        """Why the newest attempt failed."""

    async def key(self, key_id: str | None, algorithm: str, *, misfit: Key | None = None) -> Key | None:
        """Return the key that a token names; `None` if the provider has no such key.

        Parameters
        ----------
        key_id
            The token's `kid`; without one, the provider must have a single key for the algorithm.
        misfit
            The key that was found before, if the token's signature does not fit it: the provider is asked for another.

        Raises
        ------
        SignInUnavailableError
            If only the provider could tell, and it does not; not while the keys that are known may be believed.
        """
        if self._age_ms(self._fetched_ms) >= FRESH_SECONDS * 1000:
            await self._ask()
        found = self._found(key_id, algorithm)
        if found in (None, misfit):
            await self._ask()
            found = self._found(key_id, algorithm)
        if self._age_ms(self._fetched_ms) >= STALE_SECONDS * 1000 or (found is None and self._problem is not None):
            raise SignInUnavailableError(self._issuer, self._problem or "it has not answered yet")
        return None if found is misfit else found

    def _found(self, key_id: str | None, algorithm: str) -> Key | None:
        fitting = [
            key
            for key in self._keys
            if key_id in (None, key.kid)
            and key.get("alg") in (None, algorithm)
            and key.key_type == _KEY_TYPES[algorithm[:2]]
        ]
        return fitting[0] if len(fitting) == 1 or (fitting and key_id is not None) else None

    def _age_ms(self, since_ms: int | None) -> float:
        return float("inf") if since_ms is None else self._monotonic_ms() - since_ms

    async def _ask(self) -> None:
        """Ask the provider, unless that was done a moment ago; all who need the answer wait for the same one."""
        pending = self.asked()
        if pending is None:
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await asyncio.shield(asyncio.wrap_future(pending))
        except TimeoutError:
            with self._lock:
                self._problem = f"it took more than {_WAIT_SECONDS:g} s to answer"

    def asked(self) -> Future[None] | None:
        """Ask the provider, and return the answer to wait for; `None` if there is none that is worth it."""
        with self._lock:
            if self._pending is None:
                if self._age_ms(self._tried_ms) < PAUSE_SECONDS * 1000:
                    return None
                self._tried_ms = self._monotonic_ms()
                self._pending = self._fetching.submit(self._fetch)
            elif self._age_ms(self._tried_ms) >= _WAIT_SECONDS * 1000:
                return None  # others have waited for this answer long enough
            return self._pending

    def _fetch(self) -> None:
        keys: list[Key] | None = None
        problem: str | None = "the attempt was given up"
        try:
            keys, problem = _keys_of(self._issuer), None
        except Exception as error:  # noqa: BLE001 - an answer may break in any way, and the next attempt must come
            problem = str(getattr(error, "reason", error)) or type(error).__name__
            logger.warning("the keys of the sign-in provider %s could not be asked for: %s", self._issuer, problem)
        finally:
            with self._lock:
                self._problem, self._pending = problem, None
                if keys is not None:
                    self._keys, self._fetched_ms = keys, self._monotonic_ms()


_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


def _keys_of(issuer: str) -> list[Key]:
    """Return the signing keys that a provider publishes.

    Raises
    ------
    OSError, ValueError
        If it does not answer, or not as a provider does.
    """
    discovered = _fetched(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if discovered.get("issuer") != issuer:
        raise ValueError("its discovery document is that of another issuer")
    address = discovered.get("jwks_uri")
    if not isinstance(address, str) or not is_safe_url(address) or (is_loopback(address) and not is_loopback(issuer)):
        raise ValueError("its discovery document has no jwks_uri that can be trusted")
    listed = _fetched(address).get("keys")
    if not isinstance(listed, list):
        raise ValueError("its keys are no key set")  # noqa: TRY004 - what a provider says is a value
    keys = [key for each in listed[:MOST_KEYS] if (key := _imported(each)) is not None]
    if not keys:
        raise ValueError("it has no key to check signatures with")
    return keys


def _imported(fields: object) -> Key | None:
    """Return a key for signatures; `None` for any other, which a provider may have too (RFC 7517, section 5)."""
    if not isinstance(fields, dict) or fields.get("use", "sig") != "sig":
        return None
    try:
        key = JWKRegistry.import_key(fields)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        logger.warning("a key of the sign-in provider cannot be used: %s", error)
        return None
    if isinstance(key, RSAKey) and (bits := key.raw_value.key_size) < LEAST_RSA_BITS:
        logger.warning("a key of the sign-in provider has %d bits, and fewer than %d are unsafe", bits, LEAST_RSA_BITS)
        return None
    # A shared secret is no public key; whoever has it could sign.
    return key if isinstance(key, (RSAKey, ECKey, OKPKey)) else None


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: it could lead to an address that nobody has configured."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _opener(url: str) -> OpenerDirector:
    return build_opener(_NoRedirect, *([ProxyHandler({})] if is_loopback(url) else []))


def _fetched(url: str) -> dict[str, Any]:
    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310 - `is_safe_url`
    ends = monotonic() + ANSWER_SECONDS
    try:
        with _opener(url).open(request, timeout=ANSWER_SECONDS) as answer:
            content = b""
            while part := answer.read1(65_536):
                content += part
                if len(content) > MOST_ANSWER_BYTES:
                    raise ValueError(f"{url} answers with more than {MOST_ANSWER_BYTES} bytes")
                if monotonic() > ends:
                    raise TimeoutError(f"{url} takes more than {ANSWER_SECONDS:g} s to answer")
    except HTTPError as error:
        raise ValueError(f"{url} answers with {error.code}") from error
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(f"{url} answers with no JSON object")  # noqa: TRY004 - what a provider says is a value
    return found


LONGEST_TOKEN: Final = 16 * 1024
LONGEST_SUBJECT: Final = 255
_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")
"""Types of ID tokens and access tokens. Providers sign other tokens too, such as those that end a session."""


class _RefusedError(Exception):
    """A token identifies nobody; the message says why, and holds nothing of it but the names of claims."""


class SignIn:
    """The sign-in of a server.

    Parameters
    ----------
    settings
        Whom to believe.
    clock_ms
        The wall clock, for the times in tokens.
    monotonic_ms
        A clock that nobody sets, for the age of keys.
    """

    def __init__(
        self, settings: SignInSettings, *, clock_ms: Callable[[], int], monotonic_ms: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._clock_ms = clock_ms
        self._keys = ProviderKeys(settings.issuer, monotonic_ms=monotonic_ms)
        # Unknown header fields are ignored, as RFC 7515 wants it; those that `crit` names are not.
        self._registry = JWSRegistry(algorithms=list(settings.algorithms), strict_check_header=False)
        self._registry.max_header_length = 4096

    async def judged(self, text: str) -> tuple[Caller | None, str]:
        """Return the caller that a token identifies, or `None` and the reason, which is for the audit log alone.

        Raises
        ------
        SignInUnavailableError
            If that cannot be told without the provider, which does not answer.
        """
        try:
            claims = await self._claims(text)
        except _RefusedError as error:
            return None, f"sign-in: {error}"
        subject = claims["sub"]
        name = claim_at(claims, self._settings.name_claim)
        shown = str(name) if is_name(name) else subject
        role, tenant = self._settings.role_of(claims) or (NO_ROLE, None)
        return Caller(f"{subject} at {self._settings.issuer}", shown, role, tenant, is_signed_in=True), ""

    def ask_provider(self) -> None:
        """Ask for the provider's keys before anybody needs them; the log says if they cannot be had."""
        self._keys.asked()

    async def _claims(self, text: str) -> dict[str, Any]:
        """Return the claims of a valid token."""
        named = self._named_key(text)
        key = await self._keys.key(*named)
        if key is None:
            raise _RefusedError("the provider has no such key")
        try:
            try:
                token = self._decoded(text, key)
            except BadSignatureError:
                key = await self._keys.key(*named, misfit=key)
                if key is None:
                    raise
                token = self._decoded(text, key)
            self._claims_registry().validate(token.claims)
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise _RefusedError(_reason(error)) from error
        subject = token.claims["sub"]
        if not is_visible(subject):
            raise _RefusedError("its claim 'sub' cannot be shown")
        if len(subject) > LONGEST_SUBJECT:
            raise _RefusedError(f"its claim 'sub' is longer than {LONGEST_SUBJECT} characters")
        if "events" in token.claims:
            raise _RefusedError("it is a security event (RFC 8417), which identifies no caller")
        return token.claims

    def _decoded(self, text: str, key: Key) -> jwt.Token:
        return jwt.decode(text, key, algorithms=list(self._settings.algorithms), registry=self._registry)

    def _named_key(self, text: str) -> tuple[str | None, str]:
        """Return the key and the algorithm that a token's header names."""
        if len(text) > LONGEST_TOKEN or text.count(".") != 2:
            raise _RefusedError("it is no signed token")
        try:
            header = jws.extract_compact(text.encode()).headers()
        except (JoseError, ValueError, TypeError) as error:
            raise _RefusedError("it is no signed token") from error
        algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
        if algorithm not in self._settings.algorithms:
            raise _RefusedError("its algorithm is not one of `algorithms`")
        if not isinstance(key_id, str | None):
            raise _RefusedError("its key id is no text")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            raise _RefusedError("its type is not that of a caller's token")
        return key_id, algorithm

    def _claims_registry(self) -> JWTClaimsRegistry:
        return JWTClaimsRegistry(
            now=self._clock_ms() // 1000,
            leeway=self._settings.leeway_seconds,
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "values": self._settings.audiences},
            exp={"essential": True},
            sub={"essential": True},
        )


def _reason(error: Exception) -> str:
    """Return why a token is refused; the message of an unknown error may hold parts of the token."""
    if isinstance(error, ExpiredTokenError):
        return "it has expired"
    if isinstance(error, InvalidClaimError):
        return f"its claim {error.claim!r} is wrong"
    if isinstance(error, MissingClaimError):
        return f"its claim {error.claim!r} is missing"
    if isinstance(error, BadSignatureError):
        return "its signature is wrong"
    return f"it cannot be checked ({type(error).__name__})"
