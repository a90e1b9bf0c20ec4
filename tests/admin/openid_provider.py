"""An OpenID Connect provider on loopback: its discovery document and its keys over HTTP, and what it signs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from tests.loopback import serving

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"


@cache
def made_key(name: str, kind: str = "RSA") -> RSAKey | ECKey | OKPKey:
    """Return a key with an id, made once in a run: RSA takes a tenth of a second."""
    parameters: Any = {"kid": name, "use": "sig"}
    if kind == "RSA":
        return RSAKey.generate_key(2048, parameters)
    return OKPKey.generate_key("Ed25519", parameters) if kind == "Ed25519" else ECKey.generate_key(kind, parameters)


class Provider:
    """A provider that tests can rotate, break and ask how often it was asked."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.keys: list[Key] = [made_key("first")]
        self.asked: Counter[str] = Counter()
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """Status, headers and body in place of the right answer."""

    def right_answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path == DISCOVERY:
            return self.json({"issuer": self.issuer, "jwks_uri": self.issuer + KEYS})
        if path == KEYS:
            return self.json({"keys": [key.as_dict(private=False) for key in self.keys]})
        return 404, {}, b""

    @staticmethod
    def json(value: object) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()

    def claims(self, now_ms: int, **claims: Any) -> dict[str, Any]:
        """Return the claims of a good token of `ann`, with others in their place; `None` leaves one out."""
        now = now_ms // 1000
        good = {
            "iss": self.issuer, "aud": "spark-throttle", "sub": "ann-7", "iat": now, "nbf": now, "exp": now + 300,
            "preferred_username": "ann", "groups": ["staff", "platform"], **claims,
        }  # fmt: skip
        return {name: value for name, value in good.items() if value is not None}

    def signed(self, claims: dict[str, Any], *, key: Key | None = None, algorithm: str = "RS256", **header: Any) -> str:
        key = self.keys[0] if key is None else key
        fields = {"alg": algorithm, "kid": key.kid, **header}
        fields = {name: value for name, value in fields.items() if value is not None}
        return jwt.encode(fields, claims, key, algorithms=[algorithm])


@contextmanager
def provider_on_loopback() -> Iterator[Provider]:
    """Serve a provider."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked[self.path] += 1
            status, headers, body = provider.answers.get(self.path) or provider.right_answer(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        provider = Provider(port)
        yield provider


__all__ = ["DISCOVERY", "KEYS", "OctKey", "Provider", "made_key", "provider_on_loopback"]
