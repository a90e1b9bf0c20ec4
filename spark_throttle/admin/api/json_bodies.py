"""JSON as the API takes and gives it: a body says everything once, and an answer shows every character.

A repeated key of a JSON object is an error, as it is in a policy's YAML. A body has the content type of JSON, or a page
of another site could send one without its browser asking first.

Python's JSON reader takes the last of several equal keys, so ``{"publishWeight": 5, "publishWeight": 50}`` would set
what half of its readers do not see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.names.shown_names import visible_in_json
from spark_throttle.errors import PolicyError


class StrictRoute(APIRoute):
    """A route that refuses a body which is not sent as JSON, is none, or has a repeated key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, behind the check."""
        handle = super().get_route_handler()
        has_body = self.body_field is not None

        async def checked(request: Request) -> Response:
            body = await request.body()
            # What a call does not read need not be JSON.
            if body and has_body:
                _check_type(request.headers.get("content-type", ""))
                check_json(body)
            return await handle(request)

        return checked


def check_json(body: bytes) -> None:
    """Refuse what is no JSON text, and one with an object that has a key twice.

    Raises
    ------
    PolicyError
        If it is; its path is the repeated key, or `body`.

    Examples
    --------
    >>> check_json(b'{"publish": {"weight": 1, "weight": 2}}')
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: weight: the key 'weight' is repeated; keep one of them
    >>> check_json(b'{"publish": {"weight": 1}')
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: body: it is not JSON from its character 26 on; send a JSON object, such as {}
    """
    try:
        json.loads(body, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise _no_json(f"it is not JSON from its character {error.pos + 1} on") from None
    except UnicodeDecodeError as error:
        raise _no_json(f"it is not UTF-8 from its byte {error.start + 1} on") from None
    except RecursionError:
        raise _no_json("its brackets are nested too deeply") from None
    except ValueError:  # Python reads whole numbers of up to 4,300 digits
        raise _no_json("it has a number with too many digits") from None


def _no_json(problem: str) -> PolicyError:
    return PolicyError("body", f"{problem}; send a JSON object, such as {{}}")


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(json|[^/]+\+json)", kind):
        said = f"the content type is {describe(kind)}" if kind else "the body has no content type"
        raise HTTPException(415, f"{said}; send JSON, with Content-Type: application/json")


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
        return visible_in_json(super().render(content).decode()).encode()
