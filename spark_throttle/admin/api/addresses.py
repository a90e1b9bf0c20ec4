"""What a request's path and headers name: policies by their names, and revisions by ETags.

A name is one percent-encoded segment of the path, so it may hold slashes (``%2F``), spaces and any other text; what
cannot be a name is refused with the segment's own name as the path of the error. An entry's ETag is its revision in
quotes.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from fastapi import Header, Query
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from spark_throttle.errors import ConflictError, PolicyError
from spark_throttle.policy.model import MAX_NAME_BYTES

_DOTS: Final = (".", "..")
_ETAG = re.compile(r'"(0|[1-9][0-9]{0,17})"')
_ANY: Final = "*"


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
        raise PydanticCustomError("name", "the name is not percent-encoded utf-8") from None


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
        problem = "'.' and '..' are steps of a path, which clients take out of an address; give the entry another name"
        raise PydanticCustomError("name", problem)
    length_bytes = len(name.encode())
    if length_bytes > MAX_NAME_BYTES:
        raise PydanticCustomError("name", f"the name has {length_bytes} bytes of utf-8 and may have {MAX_NAME_BYTES}")
    return name


def _checked_tenant(name: str) -> str:
    if "/" in name:
        raise PydanticCustomError("name", "a tenant is what stands before the first '/' of a namespace")
    return name


Segment: TypeAlias = Annotated[str, BeforeValidator(decoded), AfterValidator(_checked), Field(min_length=1)]
TenantSegment: TypeAlias = Annotated[Segment, AfterValidator(_checked_tenant)]

Why: TypeAlias = Annotated[
    str, Query(max_length=500, description="Why the change is made; it is kept in the history beside the caller.")
]
IfMatch: TypeAlias = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description='The ETag that the caller has read, such as `"7"`, or `*` for any; if the entry has another by '
        "now, nothing is changed and the answer is 412.",
    ),
]
IfNoneMatch: TypeAlias = Annotated[
    str | None,
    Header(alias="If-None-Match", description="`*` asks that there is no such entry yet; else the answer is 412."),
]
After: TypeAlias = Annotated[str, Query(max_length=MAX_NAME_BYTES, description="The last name of the page before.")]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=1000, description="How many entries a page has at most.")]


def etag(revision: int) -> str:
    """Return the ETag of an entry."""
    return f'"{revision}"'


def expected_revision(what: str, if_match: str | None, if_none_match: str | None, found: int | None) -> int | None:
    """Return the revision that a change asks for, `None` for any; 0 for an entry that should not be there.

    Parameters
    ----------
    found
        The revision of the entry as it is, `None` if there is none.

    Raises
    ------
    ConflictError
        If ``*`` asks for what is not so.
    PolicyError
        If a header is no ETag of this API.
    """
    if if_none_match is not None:
        if if_none_match.strip() != _ANY:
            raise PolicyError("If-None-Match", "a change takes * alone here: it asks that there is no such entry yet")
        return 0
    if if_match is None:
        return None
    if if_match.strip() == _ANY:
        if found is None:
            raise ConflictError(what, 1, 0)
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise PolicyError("If-Match", 'it is no ETag of this API, such as "7" in double quotes')
    return int(match[1])
