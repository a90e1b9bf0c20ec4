"""Texts without the secrets that somebody may have put into them, for logs: a token belongs in a header alone.

A stranger chooses these texts, so every one is cut before it is searched, and no search looks at a character more often
than a fixed number of times.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

LONGEST_TEXT: Final = 1000
"""Characters that are shown of a text that anybody may have written."""

LONGEST_NAMES: Final = 8192
"""Characters that are shown of accepted names: two of the longest fit, with each byte percent-encoded."""

_LONGEST_TARGET: Final = 2000
"""Characters of a path in the access log."""

_AFTER_THE_CUT: Final = 256
"""Characters that are searched beyond those that are shown: a token of ours, with each character encoded twice."""

_TOKEN: Final = re.compile(r"(throttle_[0-9a-f]{12}_)[A-Za-z0-9_-]+", re.IGNORECASE)
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""What a token of OpenID Connect consists of. It takes as much as there is, so no character is looked at twice."""

_LEAST_OF_JSON: Final = 7
"""Characters of base64 that begin with those of a brace and a quotation mark, and say something."""

_LEAST: Final = (12, 12, 40)
"""Characters of a signed token's three parts if its JSON begins with a space; the signature tells it from a name."""

_ROUNDS: Final = 8
"""How often a text is decoded; one that has not come to an end by then is hidden as a whole."""

_REPEATED: Final = re.compile(r"%(?:25)+")
"""A percent sign that is encoded any number of times, which one round takes off."""


def without_secrets(text: str, *, most: int = LONGEST_TEXT) -> str:
    """Return a text in which tokens are hidden, also those that are percent-encoded.

    Parameters
    ----------
    most
        Characters that are shown; a longer text ends with its digest.

    Examples
    --------
    >>> (
    ...     without_secrets("/status/throttle_0123456789ab_secret"),
    ...     without_secrets("/status/thr%6Fttle_0123456789ab_secret"),
    ... )
    ('/status/throttle_0123456789ab_[hidden]', '/status/throttle_0123456789ab_[hidden]')
    >>> without_secrets("eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2ln"), without_secrets("/namespaces/acme%2Forders")
    ('[hidden]', '/namespaces/acme%2Forders')
    """
    is_cut = len(text) > most
    shown, is_whole = _hidden_in_layers(
        text[: most + _AFTER_THE_CUT], lambda layer: _without_signed(_without_own(layer), is_cut=is_cut)
    )
    if not is_whole:
        return "[hidden]"
    return f"{shown[:most]}... {_digest(text)}" if is_cut else shown


def without_tokens(text: str) -> str:
    """Return names that were accepted, with this server's own tokens hidden; two texts never look alike.

    Whoever chooses a name could otherwise choose one that the log does not show. So nothing else is hidden, and what is
    shown otherwise than it was written ends with its digest.

    Examples
    --------
    >>> without_tokens("acme/billing-service.eu-central-1a.sha-0123456789abcdef0123456789abcdef01234567")
    'acme/billing-service.eu-central-1a.sha-0123456789abcdef0123456789abcdef01234567'
    >>> without_tokens("acme/throttle_0123456789ab_secret")
    'acme/throttle_0123456789ab_[hidden] [sha256 34ef85ea3946ad06760fdc4e16cbf216]'
    """
    shown, is_whole = _hidden_in_layers(text[: LONGEST_NAMES + _AFTER_THE_CUT], _without_own)
    if not is_whole:
        return f"[hidden] {_digest(text)}"
    if len(text) > LONGEST_NAMES:
        return f"{shown[:LONGEST_NAMES]}... {_digest(text)}"
    return text if shown == text else f"{shown} {_digest(text)}"


def _hidden_in_layers(text: str, hide: Callable[[str], str]) -> tuple[str, bool]:
    """Return a text with the secrets of its percent-encoded layers hidden, and whether that was the last of them."""
    layer = shown = text
    for _ in range(_ROUNDS):
        hidden = hide(layer)
        if hidden != layer:
            shown = hidden
        layer = unquote(_REPEATED.sub("%", hidden), errors="backslashreplace")
        if layer == hidden:
            return shown, True
    return shown, False


def _without_own(text: str) -> str:
    """Hide the secrets of this server's tokens."""
    return _TOKEN.sub(r"\1[hidden]", text)


def _digest(text: str) -> str:
    return f"[sha256 {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}]"


def _without_signed(text: str, *, is_cut: bool) -> str:
    """Hide the tokens of OpenID Connect: JSON in base64, a dot, and what follows."""

    def hidden(run: re.Match[str]) -> str:
        # What follows a cut may be half an escape.
        is_open = is_cut and len(text) - run.end() <= 2 and text[run.end() :][:1] in ("", "%")
        begins = _signed_from(run[0].split("."), is_open=is_open)
        return run[0] if begins is None else f"{run[0][:begins]}[hidden]"

    return _RUN.sub(hidden, text)


def _signed_from(parts: list[str], *, is_open: bool) -> int | None:
    """Return where a signed token begins in parts with a dot between each two; `None` if there is none.

    Parameters
    ----------
    is_open
        Whether the last part may go on, and others follow.
    """
    at = 0
    for number, part in enumerate(parts[:-1]):
        begins = part.find("eyJ")
        if begins >= 0 and len(part) - begins >= _LEAST_OF_JSON:
            return at + begins
        three = parts[number : number + 3]
        is_unfinished = is_open and number + 3 >= len(parts)
        known = three[:-1] if is_unfinished else three
        if is_unfinished or len(three) == len(_LEAST):
            is_signed = all(len(each) >= least for each, least in zip(known, _LEAST, strict=False))
            if is_signed:
                return at
        at += len(part) + 1
    return None


class AccessLogFilter(logging.Filter):
    """Takes query strings and secrets out of uvicorn's access log; a method may be any word, so also a secret.

    Examples
    --------
    >>> line = ("192.0.2.7:50000", "GET", "/admin/v2/status?token=abc", "1.1", 401)
    >>> record = logging.LogRecord("uvicorn.access", 20, "", 0, '%s - "%s %s HTTP/%s" %d', line, None)
    >>> AccessLogFilter().filter(record), record.getMessage()
    (True, '192.0.2.7:50000 - "GET /admin/v2/status?[hidden] HTTP/1.1" 401')
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and keep it."""
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, target, *rest = record.args
            path, mark, _ = str(target).partition("?")
            record.args = (
                client,
                without_secrets(str(method)),
                without_secrets(path, most=_LONGEST_TARGET) + (f"{mark}[hidden]" if mark else ""),
                *rest,
            )
        return True
