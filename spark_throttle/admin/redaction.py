"""Texts without the secrets that somebody may have put into them, for logs: a token belongs in a header alone."""

from __future__ import annotations

import logging
import re
from typing import Final
from urllib.parse import unquote

_TOKEN: Final = re.compile(r"(throttle_[0-9a-f]{12}_)[A-Za-z0-9_-]+", re.IGNORECASE)
_SIGNED: Final = re.compile(r"eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)+")
"""A token of OpenID Connect: JSON in base64, a dot, and what follows."""

_OF_ANY_HEADER: Final = re.compile(r"[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]{40,}")
"""Such a token whose JSON begins with a space; the length of its signature tells it from a name."""

_ROUNDS: Final = 8
"""How often a text may be percent-encoded; one that is encoded more often is hidden as a whole."""


def without_secrets(text: str) -> str:
    """Return a text in which tokens are hidden, also those that are percent-encoded.

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
    shown = text
    for _ in range(_ROUNDS):
        hidden = _OF_ANY_HEADER.sub("[hidden]", _TOKEN.sub(r"\1[hidden]", shown))
        hidden = _SIGNED.sub("[hidden]", hidden)
        if hidden != shown:
            return without_secrets(hidden)
        decoded = unquote(shown, errors="backslashreplace")
        if decoded == shown:
            return text
        shown = decoded
    return "[hidden]"


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
                without_secrets(path) + (f"{mark}[hidden]" if mark else ""),
                *rest,
            )
        return True
