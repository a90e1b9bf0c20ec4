r"""Names and texts in the form that people and tools see: valid text, whatever bytes a namespace has.

Spark's strings are bytes, and ``CAST(value AS STRING)`` turns any bytes into one. A namespace whose name is not valid
UTF-8 is like any other: it has its own flow and quotas, under its tenant's, a glob's or the default limits; the
one difference is that no policy can name it. The usage table, the status and the page cannot hold such a name, and get
this form of it (`shown`):

- a byte that is not valid UTF-8 is written as ``\xE9``, and every backslash of the name is then doubled;
- a name that is valid UTF-8 is left as it is, unless it contains such a ``\xE9`` itself: then its backslashes are
  doubled too.

So no two namespaces are ever shown alike.

A name may also hold characters that a terminal obeys, that nobody sees, or that turn the text around it (bidirectional
controls): it then looks like another name, or like another number beside it. What has no glyph of its own is escaped
where a text is printed (`visible`).
"""

from __future__ import annotations

import json
import re
from typing import Final

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


BIDIRECTIONAL: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""The characters with Unicode's property Bidi_Control."""

_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
"""What `str.isprintable` counts as printable, and nobody sees: characters with the property
Default_Ignorable_Code_Point, such as the Hangul fillers and the variation selectors, and those whose glyph is empty."""


def is_visible(text: str) -> bool:
    r"""Return whether every character of a text has a glyph of its own.

    Examples
    --------
    >>> [is_visible(text) for text in ("acme/ü x", "acme/\n", "acme/\u202e", "acme/\u3164", "acme/\u2800", "❤\ufe0f")]
    [True, False, False, False, False, False]
    """
    return text.isprintable() and (text.isascii() or _BLANK.search(text) is None)


def visible(text: str) -> str:
    r"""Return a text with the characters escaped that have no glyph of their own.

    Examples
    --------
    >>> visible("acme/ü"), visible("a\x1b[2Jb\n"), visible("acme/\u202exe"), visible("acme/x\u3164")
    ('acme/ü', 'a\\x1b[2Jb\\n', 'acme/\\u202exe', 'acme/x\\u3164')
    """
    if is_visible(text):
        return text
    return "".join(c if is_visible(c) else c.encode("unicode_escape").decode() for c in text)


def visible_in_json(text: str) -> str:
    r"""Return a JSON text with the characters escaped, as JSON does it, that have no glyph of their own.

    Examples
    --------
    >>> print(visible_in_json('{"name":"acme/ü\u202e"}'))
    {"name":"acme/ü\u202e"}
    """
    if is_visible(text):
        return text
    return "".join(c if is_visible(c) else json.dumps(c)[1:-1] for c in text)
