"""A hint for a name that is not known: the one that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or an empty string if none is near.

    Examples
    --------
    >>> did_you_mean("mesages_per_second", ["bytes_per_second", "messages_per_second"])
    '; did you mean messages_per_second?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
