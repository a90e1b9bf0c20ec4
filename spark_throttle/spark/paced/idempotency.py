"""The key of a call: the same for the same rows, however often the batch is run.

A receiver that keeps the keys that it has seen takes every row once. The identity tells a batch that is run again from
another batch of the same number, which a checkpoint that was put back plans: its rows get other keys, because a
receiver that took them for known would lose them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

_LONGEST_NAMESPACE: Final = 4_000
"""Servers refuse headers from 8,000 characters on; a namespace that needs more than this is told by its SHA-256."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What identifies the rows of one call.

    Examples
    --------
    >>> IdempotencyKey("6f1c", 12, "9a3e", "acme/orders", 40).text
    '6f1c/12/9a3e/acme%2Forders/40'
    """

    query: str
    """The query's name in its checkpoint."""

    batch: int
    identity: str
    """Digest of what was decided in the batch (`checkpoint.batch_mark`)."""

    namespace: str
    place: int
    """The number of the namespace's rows in the batch that come before the call's first."""

    @property
    def text(self) -> str:
        """The key in visible ASCII, for a header or a column."""
        namespace = quote(self.namespace, safe="")
        if len(namespace) > _LONGEST_NAMESPACE:  # a colon is never in what `quote` returns
            namespace = f"sha256:{hashlib.sha256(self.namespace.encode()).hexdigest()}"
        return f"{self.query}/{self.batch}/{self.identity}/{namespace}/{self.place}"
