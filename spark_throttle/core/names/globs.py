"""Globs over namespaces: the most specific of many patterns that each name matches.

A pattern is a name with stars. A star stands for any text, including a slash or no text at all; every other character
stands for itself. So `acme/*` matches every namespace of the tenant `acme`. A namespace whose own name has a star
cannot be named alone. The more specific of two patterns is decided by these rules, in order:

1. more bytes before the first star: `acme/*` before `*/orders`;
2. more bytes other than stars: `acme/*-eu` before `acme/*`;
3. fewer stars;
4. the pattern that sorts first by bytes.

Names are matched by column, never one by one: all patterns of the form `tenant/*` in one call, by the tenant, and each
other pattern in a call of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Int64s

STAR: Final = "*"

_OF_TENANT = r"\A[^*/]+/\*\z"
_SPECIAL = re.compile(r"[\\.+?()\[\]{}|^$*]")


def is_glob(name: str) -> bool:
    """Return whether a name in a policy is a pattern."""
    return STAR in name


def specificity(pattern: str) -> tuple[int, int, int, bytes]:
    """Return the key that sorts patterns, the most specific first.

    Examples
    --------
    >>> sorted(["*", "*/orders", "acme/*", "acme/*-eu"], key=specificity)
    ['acme/*-eu', 'acme/*', '*/orders', '*']
    """
    prefix, _, _ = pattern.partition(STAR)
    stars = pattern.count(STAR)
    return -len(prefix.encode()), stars - len(pattern.encode()), stars, pattern.encode()


def is_of_tenant(pattern: str) -> bool:
    """Return whether a pattern means all namespaces of one tenant; one call matches any number of such patterns."""
    tenant, slash, rest = pattern.partition("/")
    return bool(tenant and slash) and rest == STAR and STAR not in tenant


def covers(pattern: str, other: str) -> bool:
    """Return whether a pattern matches every name that `other`, a name or a pattern, stands for.

    Examples
    --------
    >>> covers("acme/*", "acme/x"), covers("acme/*", "acme/*-eu"), covers("acme/*-eu", "acme/*")
    (True, True, False)
    """
    first, *parts = pattern.split(STAR)
    if not parts:
        return pattern == other
    *parts, last = parts
    if not other.startswith(first):
        return False
    at = len(first)
    for part in parts:
        # No part holds a star, so a star of `other` falls to a star of the pattern.
        found = other.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return other.endswith(last) and at + len(last) <= len(other)


def overlaps(pattern: str, other: str) -> bool:
    """Return whether a pattern and `other`, a name or a pattern, match some name both.

    Examples
    --------
    >>> overlaps("acme/*", "*/orders"), overlaps("acme/*", "other/*"), overlaps("acme/a*", "acme/b*")
    (True, False, False)
    """
    if not is_glob(other):
        return covers(pattern, other)
    if not is_glob(pattern):
        return covers(other, pattern)
    heads, tails = ([each.split(STAR)[at] for each in (pattern, other)] for at in (0, -1))
    # Stars take up what stands between the ends, so only the ends can contradict each other.
    return (heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])) and (
        tails[0].endswith(tails[1]) or tails[1].endswith(tails[0])
    )


def holders(name: str, globs: Iterable[str]) -> Iterator[str | None]:
    """Yield the globs that hold names which `name`, a namespace or a glob, stands for if it has no entry, then `None`.

    A glob that covers `name` leaves none to less specific ones, nor to `None`, which stands for the defaults. One that
    is more specific than `name` keeps its names, with or without that entry.

    Parameters
    ----------
    globs
        The most specific first.

    Examples
    --------
    >>> globs = ["acme/*-eu", "acme/*"]
    >>> [list(holders(name, globs)) for name in ("acme/x", "acme/y-eu", "other/x", "acme/*-us", "*")]
    [['acme/*'], ['acme/*-eu'], [None], ['acme/*'], [None]]
    """
    for glob in globs:
        if glob != name and overlaps(glob, name):
            if not is_glob(name) or specificity(glob) > specificity(name):
                yield glob
            if covers(glob, name):
                return
    yield None


def first_match(names: pa.StringArray, tenants: pa.StringArray, patterns: pa.StringArray) -> Int64s:
    """Return, for every name, the position of the first pattern that it matches, -1 for none.

    Parameters
    ----------
    tenants
        The tenant of every name: the text before its first slash.

    Examples
    --------
    >>> names, tenants = pa.array(["acme/a", "b/orders", "acme"]), pa.array(["acme", "b", "acme"])
    >>> first_match(names, tenants, pa.array(["acme/*", "*/orders"])).tolist()
    [0, 1, -1]
    """
    none = len(patterns)
    found = np.full(len(names), none, dtype=np.int64)
    of_tenant = pc.match_substring_regex(patterns, pattern=_OF_TENANT).to_numpy(zero_copy_only=False)
    for position in np.flatnonzero(~of_tenant).tolist():
        hit = _matches(names, patterns[position].as_py()).to_numpy(zero_copy_only=False)
        found = np.where(hit, np.minimum(found, position), found)
    by_tenant = np.flatnonzero(of_tenant)
    if len(by_tenant):
        known = pc.utf8_slice_codeunits(patterns.take(pa.array(by_tenant)), start=0, stop=-2)
        at = pc.fill_null(pc.index_in(tenants, value_set=known), -1).to_numpy(zero_copy_only=False)
        # A name without a slash is its own tenant, and does not match `tenant/*`.
        hit = (at >= 0) & pc.match_substring(names, pattern="/").to_numpy(zero_copy_only=False)
        found = np.where(hit, np.minimum(found, by_tenant[at]), found)
    return np.where(found == none, -1, found)


def _matches(names: pa.StringArray, pattern: str) -> pa.BooleanArray:
    prefix, _, rest = pattern.partition(STAR)
    if not rest:
        return pc.starts_with(names, pattern=prefix)
    if not prefix and STAR not in rest:
        return pc.ends_with(names, pattern=rest)
    parts = (_SPECIAL.sub(r"\\\g<0>", part) for part in pattern.split(STAR))
    # In bytes: a star also stands for bytes that are not valid UTF-8, which a regex over text never matches.
    return pc.match_substring_regex(names.view(pa.binary()), pattern=rf"(?s)\A{'.*'.join(parts)}\z".encode())
