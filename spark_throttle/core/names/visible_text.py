"""Texts as people see them: what has no glyph of its own is escaped where a text is printed.

A name may hold characters that a terminal obeys, that nobody sees, or that turn the text around it (bidirectional
controls): it then looks like another name, or like another number beside it. Commands import this without pyarrow.
"""

from __future__ import annotations

import json
import re
from typing import Final

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
