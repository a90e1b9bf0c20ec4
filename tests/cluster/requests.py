"""What a request to an S3-compatible store asks for, and for whom: told from its method and its address alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

SPARK, CONTROL, TABLES, POLICIES, EXCHANGE, OTHER = "spark", "control", "tables", "policies", "exchange", "other"

PLACES: Final = {"admitted": TABLES, "rejected": TABLES, "usage": TABLES, "policies.yaml": POLICIES, EXCHANGE: EXCHANGE}
"""Whose requests those for a folder are; a checkpoint's are Spark's, or those of the control directory."""

BY_TIME: Final = "control/alive.json", "control/exchange.status", EXCHANGE
"""Places that are visited as time goes by, whether a batch runs or not."""


def request_of(method: str, address: str, *, is_copy: bool = False) -> tuple[str, str]:
    """Return the place that a request is for, and its kind.

    Examples
    --------
    >>> request_of("GET", "/lake/checkpoint/throttle/epochs/00-5f")
    ('control/epochs', 'GET')
    >>> request_of("GET", "/lake?list-type=2&prefix=checkpoint%2Foffsets%2F")
    ('spark/offsets', 'LIST')
    >>> request_of("PUT", "/lake/admitted/part=east/part-0.parquet?partNumber=1&uploadId=7")
    ('tables/files', 'PART')
    """
    split = urlsplit(address)
    query = parse_qs(split.query, keep_blank_values=True)
    key = unquote(split.path).lstrip("/").partition("/")[2] or query.get("prefix", [""])[0]
    return place_of(key), kind_of(method, query, has_key="/" in split.path.strip("/"), is_copy=is_copy)


def place_of(key: str) -> str:
    """Return whose an object is, and in which folder.

    Examples
    --------
    >>> [place_of(key) for key in ("checkpoint/state/0/1/2.delta", "usage/_delta_log/0.json", "exchange/peer", "x")]
    ['spark/state', 'tables/log', 'exchange', 'other']
    """
    first, _, rest = key.strip("/").partition("/")
    if first == "checkpoint":
        folder, _, below = rest.partition("/")
        if folder == "throttle":
            return f"{CONTROL}/{below.partition('/')[0]}".rstrip("/")
        return f"{SPARK}/{folder}".rstrip("/")
    owner = PLACES.get(first, OTHER)
    if owner == TABLES:
        return f"{TABLES}/{'log' if rest.startswith('_delta_log') else 'files'}"
    return owner


def kind_of(method: str, query: Mapping[str, list[str]], *, has_key: bool, is_copy: bool) -> str:
    if "uploadId" in query or "uploads" in query:
        ends = "BEGIN" if "uploads" in query else "COMPLETE"
        return {"PUT": "PART", "DELETE": "ABORT", "POST": ends}.get(method, "LIST")
    if "delete" in query:
        return "DELETE"
    if method == "GET" and not has_key:
        return "LIST"
    return "COPY" if is_copy else method


def by_owner(counts: Mapping[str, int], batches: int) -> dict[str, float]:
    """Return the requests of a batch by owner, and of all; what is visited by time counts for none.

    Examples
    --------
    >>> by_owner({"spark/offsets PUT": 4, "control/epochs PUT": 2, "control/alive.json PUT": 7, "exchange GET": 9}, 2)
    {'spark': 2.0, 'control': 1.0, 'all': 3.0}
    """
    found: dict[str, int] = {}
    for name, count in counts.items():
        place = name.partition(" ")[0]
        if place not in BY_TIME:
            owner = place.partition("/")[0]
            found[owner] = found.get(owner, 0) + count
    return {owner: round(count / batches, 1) for owner, count in (*found.items(), ("all", sum(found.values())))}


def between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the requests that came between two counts."""
    names: Iterable[str] = sorted(after)
    return {name: after[name] - before.get(name, 0) for name in names if after[name] > before.get(name, 0)}
