r"""Names in the form that people and tools see: valid text, whatever bytes a namespace has.

Spark's strings are bytes, and ``CAST(value AS STRING)`` turns any bytes into one. A namespace whose name is not valid
UTF-8 is like any other: it has its own flow and quotas, under its tenant's, a glob's or the default limits; the
one difference is that no policy can name it. The usage table, the status and the page cannot hold such a name, and get
this form of it (`shown`):

- a byte that is not valid UTF-8 is written as ``\xE9``, and every backslash of the name is then doubled;
- a name that is valid UTF-8 is left as it is, unless it contains such a ``\xE9`` itself: then its backslashes are
  doubled too.

So no two namespaces are ever shown alike.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = re.compile(rb"\\x[0-9A-Fa-f]{2}")


def shown(names: pa.StringArray) -> pa.StringArray:
    r"""Return the names in a form that is valid UTF-8; nulls stay null.

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
    """Return whether all names are valid UTF-8."""
    try:
        names.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _shown(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        # The name's own backslashes are doubled before the escapes add theirs.
        doubled = name.replace(b"\\", b"\\\\")
        return doubled.decode("utf-8", "surrogateescape").translate(_BYTES)
    return text.replace("\\", "\\\\") if _ESCAPED.search(name) else text


_BYTES = {0xDC00 + byte: f"\\x{byte:02X}" for byte in range(0x80, 0x100)}
"""The shown form of each byte that is not valid UTF-8, by the surrogate that Python decodes it to."""
