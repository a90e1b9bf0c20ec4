"""A request has names as segments of its path, revisions as ETags in its headers, and a body in JSON.

A name is one percent-encoded segment of the path, so it may hold slashes (``%2F``), spaces and any other text. A
segment that cannot be a name is refused, with the name of its parameter as the path of the error. An entry's ETag is
its version (`EntryVersion`) in quotes: its revision, and a digest of its contents.

A repeated key of a JSON object is an error, as it is in a policy's YAML. A body has the content type of JSON, or a page
of another site could send one without its browser asking first.

Python's JSON reader takes the last of several equal keys, so ``{"publishWeight": 5, "publishWeight": 50}`` would set
what half of its readers do not see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from fastapi import Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.names.visible_text import visible_in_json
from spark_throttle.errors import PolicyError
from spark_throttle.policy.values import MAX_NAME_BYTES
from spark_throttle.store.entries import EntryVersion
from spark_throttle.store.entry_conditions import AnyVersion, Expected, NoVersion


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


_DOTS: Final = (".", "..")
_ETAG: Final = re.compile(r'(?P<weak>W/)?"(?P<revision>0|[1-9][0-9]{0,17})(?:-(?P<contents>[0-9a-f]{16}))?"')
_EXAMPLE: Final = '"7-a8756ee0267e15a8"'
_ANY: Final = "*"
_CONDITIONS: Final = (b"if-match", b"if-none-match")


def decoded(segment: object) -> object:
    """Return the name that a segment of a path stands for.

    Examples
    --------
    >>> decoded("%C3%A9t%C3%A9%2Forders")
    'été/orders'
    """
    if not isinstance(segment, str):
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise PydanticCustomError("name", "the name is not percent-encoded UTF-8") from None


def encoded(name: str) -> str:
    """Return the segment of a path that stands for a name.

    Examples
    --------
    >>> encoded("été/orders")
    '%C3%A9t%C3%A9%2Forders'
    """
    return quote(name, safe="")


def _checked(name: str) -> str:
    if name in _DOTS:
        problem = "'.' and '..' are steps of a path, which clients remove from an address; give the entry another name"
        raise PydanticCustomError("name", problem)
    length_bytes = len(name.encode())
    if length_bytes > MAX_NAME_BYTES:
        raise PydanticCustomError(
            "name", f"the name has {length_bytes} bytes of UTF-8; it may have at most {MAX_NAME_BYTES}"
        )
    return name


def _checked_tenant(name: str) -> str:
    if "/" in name:
        raise PydanticCustomError("name", "a tenant is the part of a namespace before its first '/'")
    return name


Segment: TypeAlias = Annotated[str, BeforeValidator(decoded), AfterValidator(_checked), Field(min_length=1)]
TenantSegment: TypeAlias = Annotated[Segment, AfterValidator(_checked_tenant)]

Why: TypeAlias = Annotated[
    str, Query(max_length=500, description="Why the change is made; the history keeps it with the caller.")
]
Yes: TypeAlias = Annotated[
    bool,
    Query(
        description="Whether the change is made although it leaves no limit at all, sets a quota to 0, lifts a "
        "limit of a scope in use, or takes names from a quota of 0. Without it the answer is 428, and "
        "says what would be lost.",
    ),
]
DryRun: TypeAlias = Annotated[
    bool,
    Query(
        description="Whether the change is only tried: it is judged as it would be, nothing is written, and the answer "
        "says in `plan` what would change and what that would cost.",
    ),
]
IfMatch: TypeAlias = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description=f"The ETag that the caller has read, such as `{_EXAMPLE}`, several with commas, or `*` for "
        "any entry that is there. If the entry has another by now, nothing is changed and the answer is 412.",
    ),
]
IfNoneMatch: TypeAlias = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        description="Of a change, `*` requires that there is no such entry yet; else the answer is 412. Of a read, the "
        "ETags that the caller has; the answer is 304 if the entry's is one of them.",
    ),
]
After: TypeAlias = Annotated[str, Query(max_length=MAX_NAME_BYTES, description="The last name of the previous page.")]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=1000, description="The largest number of entries on a page.")]
RevisionNumber: TypeAlias = Annotated[int, Field(ge=0, le=2**62)]


ETAG: Final[dict[str, Any]] = {
    "headers": {
        "ETag": {
            "schema": {"type": "string"},
            "description": f"The entry's version, such as `{_EXAMPLE}`: its revision and a digest of its contents.",
        }
    }
}
"""The header of an answer with an entry, for the API's description."""


def expected_version(if_match: str | None, if_none_match: str | None) -> Expected:
    """Return the version that a change requires; `None` for any, 0 for an entry that must not exist.

    Whether an entry fits is judged where the change is planned (`check_expected`). Tags are compared strongly, as
    RFC 9110 says of ``If-Match``: a weak one fits no entry.

    Raises
    ------
    PolicyError
        If ``If-Match`` is no list of ETags of this API, ``If-None-Match`` is not ``*``, or both are given.

    Examples
    --------
    >>> expected_version('"7-a8756ee0267e15a8"', None), expected_version(None, "*")
    (EntryVersion(revision=7, contents='a8756ee0267e15a8'), 0)
    """
    if if_match is not None and if_none_match is not None:
        raise PolicyError("If-None-Match", "it contradicts If-Match: an entry is there or is not; send one of them")
    if if_none_match is not None:
        if if_none_match.strip() != _ANY:
            raise PolicyError("If-None-Match", "a change takes only *, which requires that there is no such entry yet")
        return 0
    if if_match is None:
        return None
    if if_match.strip() == _ANY:
        return AnyVersion()
    tags = [_ETAG.fullmatch(tag) for tag in _tags_of(if_match)]
    matches = [tag for tag in tags if tag is not None]
    if not tags or len(matches) < len(tags):
        raise PolicyError("If-Match", f"it is not an ETag of this API, such as {_EXAMPLE} in double quotes")
    versions = tuple(EntryVersion(int(tag["revision"]), tag["contents"]) for tag in matches if _is_strong(tag))
    if versions:
        return versions[0] if len(matches) == 1 else versions
    if all(tag["weak"] for tag in matches):
        return NoVersion(": a change needs an ETag as this API gives it, and one that begins with W/ fits nothing")
    revision = next(tag["revision"] for tag in matches if not tag["weak"])
    return NoVersion(
        f': "{revision}" is a revision, and an ETag also names the contents, for a store that is restored gives '
        f"revisions twice"
    )


def with_joined_conditions(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request with each condition on one line: its lists follow each other (RFC 9110, 5.2).

    Who reads a header by its name would otherwise find its first line alone, and judge another condition than was sent.

    Examples
    --------
    >>> with_joined_conditions([(b"if-match", b'"7"'), (b"accept", b"*/*"), (b"if-match", b'"8", "9"')])
    [(b'accept', b'*/*'), (b'if-match', b'"7", "8", "9"')]
    """
    kept, lines = [], dict[bytes, list[bytes]]()
    for name, value in headers:
        if name.lower() in _CONDITIONS:
            lines.setdefault(name.lower(), []).append(value)
        else:
            kept.append((name, value))
    return [*kept, *((name, b", ".join(values)) for name, values in lines.items())]


def _tags_of(header: str) -> list[str]:
    """Return the elements of a list in a header; empty ones are none, as RFC 9110 says."""
    return [tag.strip(" \t") for tag in header.split(",") if tag.strip(" \t")]


def _is_strong(tag: re.Match[str]) -> bool:
    return tag["weak"] is None and tag["contents"] is not None


def is_any_of(version: EntryVersion, if_none_match: str) -> bool:
    """Return whether a reader has this version already; tags are compared weakly, and ``*`` is any version.

    Examples
    --------
    >>> version = EntryVersion(7, "a8756ee0267e15a8")
    >>> is_any_of(version, 'W/"7-a8756ee0267e15a8", "x"'), is_any_of(version, "*"), is_any_of(version, '"8"')
    (True, True, False)
    """
    if if_none_match.strip() == _ANY:
        return True
    return version.etag in [tag.removeprefix("W/") for tag in _tags_of(if_none_match)]
