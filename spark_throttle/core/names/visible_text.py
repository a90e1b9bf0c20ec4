r"""Text that shows every character: what has no glyph of its own is escaped.

A namespace is any text, so its name may hold characters that a terminal obeys, that nobody sees, or that turn the text
around it (bidirectional controls): it then looks like another name, or like another number beside it.
"""

from __future__ import annotations

import re
from typing import Final

BIDIRECTIONAL: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""The characters with Unicode's property Bidi_Control."""


def visible(text: str) -> str:
    r"""Return a text with the characters escaped that have no glyph of their own.

    Examples
    --------
    >>> visible("acme/ü"), visible("a\x1b[2Jb\n"), visible("acme/\u202exe")
    ('acme/ü', 'a\\x1b[2Jb\\n', 'acme/\\u202exe')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
