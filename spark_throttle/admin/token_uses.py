"""When each token was last used, in a file beside the token file: a server writes it now and then, not at each request.

The times are for people who look for tokens that nobody needs; nothing else depends on them. So a file that is damaged
or cannot be written is a line in the log, and no request fails for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_throttle.errors import FileUnusableError, StoredFormatError
from spark_throttle.files.private_file import locked, read_private, replace_private
from spark_throttle.record import Count, of_json, to_json

logger = logging.getLogger(__name__)

SAVE_EVERY_MS: Final = 60_000
"""Time between two writes of the file, and so how late it may be."""


@dataclass(frozen=True, slots=True)
class UsedTokens:
    """What the file holds."""

    used: dict[str, Count]
    """The time of each token's last use, in ms, by id."""


class TokenUses:
    """The last use of each token; safe for use by several threads and processes.

    Parameters
    ----------
    path
        A JSON file.
    clock_ms
        The wall clock.

    Examples
    --------
    >>> import tempfile
    >>> uses = TokenUses(Path(tempfile.mkdtemp()) / "used", clock_ms=lambda: 5000)
    >>> uses.note("0123456789ab")
    >>> uses.is_due
    True
    >>> uses.save(known={"0123456789ab"})
    >>> uses.last_used_ms()
    {'0123456789ab': 5000}
    """

    def __init__(self, path: Path, *, clock_ms: Callable[[], int]) -> None:
        self.path = path
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._unsaved: dict[str, int] = {}
        self._tried_ms: int | None = None

    def note(self, token_id: str) -> None:
        """Note that a token is used."""
        with self._lock:
            self._unsaved[token_id] = self._clock_ms()

    @property
    def is_due(self) -> bool:
        """Whether there is something to save, and it is time; a clock that is set, in either direction, makes it so."""
        with self._lock:
            tried_ms = self._tried_ms
            return bool(self._unsaved) and (tried_ms is None or abs(self._clock_ms() - tried_ms) >= SAVE_EVERY_MS)

    def last_used_ms(self) -> dict[str, int]:
        """Return the time of each token's last use, by id; a token that was never used has none."""
        with self._lock:
            return _newest(self._read(), self._unsaved)

    def save(self, *, known: Collection[str]) -> None:
        """Write what is not saved; the times of tokens that are not `known` are dropped."""
        with self._lock:
            self._tried_ms = self._clock_ms()
            try:
                with locked(self.path, is_waiting=False):
                    used = _newest(self._read(), self._unsaved)
                    kept = {token_id: at_ms for token_id, at_ms in used.items() if token_id in known}
                    replace_private(self.path, to_json(UsedTokens(kept)) + b"\n")
            except BlockingIOError:
                return  # another server saves its own; the next time is soon enough
            except FileUnusableError as error:
                logger.warning("when tokens were last used is not saved: %s", error)
                return
            self._unsaved.clear()

    def _read(self) -> dict[str, int]:
        try:
            text = read_private(self.path)
            if text is None:
                return {}
            return of_json(UsedTokens, text, f"the file {self.path}", remedy="the next time of use writes it anew").used
        except (FileUnusableError, StoredFormatError) as error:
            logger.warning("when tokens were last used is not known: %s", error)
            return {}


def _newest(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {token_id: max(one.get(token_id, 0), other.get(token_id, 0)) for token_id in {**one, **other}}
