r"""Names of namespaces as people and tools are shown them: text, whatever bytes a namespace has.

Spark's strings are bytes, and ``CAST(value AS STRING)`` makes one of any. A namespace whose name is no UTF-8 is one
like any other: it has a shard, flows and quotas of its own, under its tenant's, a glob's or the default limits; only
no policy can name it. What cannot hold such a name, the usage table, the status, the page, is given a form of it:

- bytes that are no UTF-8 stand as ``\xE9``, and then every backslash of the name as two;
- a name that is UTF-8 stands as it is, unless it has such a ``\xE9`` itself: then its backslashes are doubled too.

So two namespaces are never shown alike.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = re.compile(rb"\\x[0-9A-Fa-f]{2}")


def shown(names: pa.StringArray) -> pa.StringArray:
    r"""Return names in a form that is UTF-8; nulls stay.

    Examples
    --------
    >>> names = pa.array([b"acme/a\xe9", b"acme/\\xe9", b"a\\b", None], pa.binary()).view(pa.string())
    >>> print(*shown(names).to_pylist())
    acme/a\xE9 acme/\\xe9 a\b None
    """
    raw = names.view(pa.binary())
    may_look_escaped = pc.any(pc.match_substring(raw, pattern=b"\\x")).as_py()
    if not may_look_escaped and is_utf8(names):
        return names
    coded = raw.dictionary_encode()
    texts = pa.array([_shown(name) for name in coded.dictionary.to_pylist()], pa.string())
    return texts.take(coded.indices)


def is_utf8(names: pa.StringArray) -> bool:
    """Return whether all names are UTF-8."""
    try:
        names.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _shown(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        # A backslash that is there becomes two before those of the escapes come.
        doubled = name.replace(b"\\", b"\\\\")
        return doubled.decode("utf-8", "surrogateescape").translate(_BYTES)
    return text.replace("\\", "\\\\") if _ESCAPED.search(name) else text


_BYTES = {0xDC00 + byte: f"\\x{byte:02X}" for byte in range(0x80, 0x100)}
"""What Python makes of a byte that is no UTF-8, to how it is shown."""
