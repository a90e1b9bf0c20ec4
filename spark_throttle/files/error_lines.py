"""An error of another library as one line that keeps its causes.

The errors of `deltalake` are of several lines: what failed, and below it, indented behind an arrow, one cause after the
other, the last of which says what is wrong. They have terminal colours, and an object store may answer with a page.
"""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE: Final = "↳"
_LONGEST_CHARACTERS: Final = 1_000
METADATA_SERVICE: Final = "169.254.169.254"
"""The address that a cloud's libraries ask for credentials if they find none."""

_NO_CREDENTIALS: Final = (
    " (no credentials were found, so the machine was asked for its role: set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or what the store's provider wants, where this process runs)"
)


def one_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, and the causes that follow it.

    Examples
    --------
    >>> one_line(OSError("Generic S3 error\n  ↳ GET http://lake/log\n   ↳ Connection refused (os error 111)\n"))
    'Generic S3 error: GET http://lake/log: Connection refused (os error 111)'
    >>> one_line(KeyError())
    'KeyError'
    """
    first, *others = _COLOUR.sub("", str(error)).strip().split("\n")
    causes = [line.strip().removeprefix(_CAUSE).strip() for line in others if line.strip().startswith(_CAUSE)]
    line = ": ".join(part.strip() for part in (first, *causes))
    if len(line) > _LONGEST_CHARACTERS:
        half = _LONGEST_CHARACTERS // 2
        line = f"{line[:half]} … {line[-half:]}"
    return (line or type(error).__name__) + (_NO_CREDENTIALS if METADATA_SERVICE in line else "")
