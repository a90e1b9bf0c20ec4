"""Sign-in by OpenID Connect: callers whom a provider has identified, beside those with a token of the server's own.

A caller sends the provider's signed token (an ID token, or an access token in the form of RFC 9068) as its bearer
token. The server checks the signature with the provider's public keys, the issuer, the audience and the times, and
makes a role of the claims. It holds no secret of the provider's, and keeps no session: what a token says counts until
it expires, so providers make them short-lived.

joserfc, the library of Authlib's author for signed tokens, does the checking. It takes the time as an argument, it
refuses algorithms that are not asked for, and keys of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from spark_throttle.admin.caller import NO_ROLE, Caller, is_name
from spark_throttle.admin.provider_keys import Key, ProviderKeys
from spark_throttle.admin.sign_in_settings import SignInSettings, claim_at
from spark_throttle.core.names.shown_text import is_visible

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

    async def caller(self, text: str) -> Caller | None:
        """Return the caller that a token identifies, or `None` if it is not valid here and now."""
        return (await self.judged(text))[0]

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
        self._keys.ask_ahead()

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
