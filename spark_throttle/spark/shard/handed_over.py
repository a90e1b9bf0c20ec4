"""The control row that a key gets in the first batch after the number of shards changed.

It holds a digest of the state that the key's former shard left, and the state with which its new shard begins. Spark
keeps states by key, and a key may be of a former shard, of a new one, or of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_throttle.checkpoint.handover import state_digest
from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.errors import CheckpointMismatchError

_KIND: Final = "hand"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What becomes of a key's state."""

    former: str
    """The digest of the state that the former shard left; empty for a key of none."""

    state: bytes | None
    """The state of the new shard; `None` for a key of none."""

    def pack(self) -> bytes:
        """Return the row as a block."""
        return pack(_KIND, _VERSION, {"former": self.former, "state": self.state or b""})

    @classmethod
    def of(cls, block: bytes, what: str) -> HandedOver:
        """Return the row that `pack` packed."""
        fields = unpack(block, _KIND, _VERSION, what)
        return cls(fields.text("former"), fields.raw("state") or None)

    def check(self, stored: bytes | None, key: int) -> None:
        """Refuse a key whose state is not the one that was handed over.

        Raises
        ------
        CheckpointMismatchError
            If the state is another one.
        """
        if state_digest(stored) != self.former:
            raise CheckpointMismatchError(
                f"the state of the key {key}",
                "is not the one that was handed over when the number of shards changed",
                "the checkpoint and its control directory were not put back together: restore both from one backup",
            )
