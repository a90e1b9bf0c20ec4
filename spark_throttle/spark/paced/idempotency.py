"""The key of a call: the same for the same rows, however often the batch is run.

A receiver that keeps the keys that it has seen takes every row once. The identity tells a batch that is run again from
another batch of the same number, which a checkpoint that was put back plans: its rows get other keys, because a
receiver that took them for known would lose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


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
        return f"{self.query}/{self.batch}/{self.identity}/{quote(self.namespace, safe='')}/{self.place}"
