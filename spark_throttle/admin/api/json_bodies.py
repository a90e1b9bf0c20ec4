"""JSON as the API takes and gives it: a body says everything once, and an answer shows every character.

A repeated key of a JSON object is an error, as it is in a policy's YAML.

Python's JSON reader takes the last of several equal keys, so ``{"publishWeight": 5, "publishWeight": 50}`` would set
what half of its readers do not see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.names.visible_text import is_visible
from spark_throttle.errors import PolicyError


class StrictRoute(APIRoute):
    """A route that refuses a body with a repeated key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, behind the check."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            refuse_repeated_keys(await request.body())
            return await handle(request)

        return checked


def refuse_repeated_keys(body: bytes) -> None:
    """Refuse a JSON text with an object that has a key twice; what is no JSON is left to who reads it.

    Raises
    ------
    PolicyError
        If there is one; its path is the key.

    Examples
    --------
    >>> refuse_repeated_keys(b'{"publish": {"weight": 1, "weight": 2}}')
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: weight: the key 'weight' is repeated; keep one of them
    """
    try:
        json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise PolicyError(repeated[:64], f"the key {describe(repeated)} is repeated; keep one of them")
    return values


class VisibleJSONResponse(JSONResponse):
    r"""A JSON answer with what has no glyph of its own escaped, such as a bidirectional control in a name.

    Examples
    --------
    >>> print(VisibleJSONResponse({"name": "acme/ü\u202e"}).body.decode())
    {"name":"acme/ü\u202e"}
    """

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - as Starlette's
        """Return the text of an answer."""
        text = super().render(content).decode()
        if not is_visible(text):
            text = "".join(c if is_visible(c) else json.dumps(c)[1:-1] for c in text)
        return text.encode()
