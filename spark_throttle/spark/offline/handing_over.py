"""The handover of a stopped query's states to another number of shards: what is written, in which order.

The files of the new shards are written first, then the list of them, and the manifest at the very end. Killed before
that, the checkpoint is as it was; what was written is written again, the same, or is never read. From the manifest on,
the query starts with the new number: its first epoch names the handover, and its first batch brings every new shard its
state (`control.plane`, `shard.handed_over`).

If no batch has run since the last handover, Spark's states are still those of the shards before it: they are handed
over once more, or kept where those are the shards that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_throttle.checkpoint.handover import state_digest, write_handover
from spark_throttle.checkpoint.manifest import Manifest, Resharding, refuse_shards, reshard
from spark_throttle.control.epochs import EpochName, Epochs
from spark_throttle.core.codec import unpack_shard
from spark_throttle.errors import ConfigurationError, DamagedError, ThrottleError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.shard.resharded_shard import united


@dataclass(frozen=True, slots=True)
class FormerShard:
    """The state of a shard that is handed over, without its content."""

    key: int
    digest: str
    advanced_to_ms: int

    @classmethod
    def of(cls, key: int, block: bytes) -> FormerShard:
        """Return what the state of a key is known by."""
        return cls(key, state_digest(block), unpack_shard(block, f"the state of the key {key}").state.advanced_to_ms)


@dataclass(frozen=True, slots=True)
class Reshard:
    """A change of the number of shards, after a batch that is committed."""

    directory: Directory
    manifest: Manifest
    batch: int
    epoch: EpochName
    """The epoch of the batch."""

    shards: int

    @property
    def earlier(self) -> tuple[Resharding, ...]:
        """The changes on whose shards a batch has run."""
        done = self.manifest.reshardings
        return done[:-1] if done and done[-1].batch == self.batch else done

    @property
    def former_shards(self) -> int:
        """The number of the shards that the batch ran with."""
        return self.manifest.shards_of(self.batch)

    def hand_over(
        self,
        former: Sequence[FormerShard],
        divide: Callable[[int], Mapping[int, Sequence[bytes]]],
        check: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """Write the states of the new shards, then the manifest, and return it.

        Parameters
        ----------
        former
            All former shards, in their order.
        divide
            Returns, for a time up to which balances are paid, the parts of every former shard (`divided`).
        check
            Called before the manifest is written, and after it; raises if the query has gone on.

        Raises
        ------
        ConfigurationError
            If the number is no number of shards, or the checkpoint has it already.
        DamagedError
            If the state of a former shard is missing.
        """
        refuse_shards(self.shards)
        if self.shards == self.manifest.shards:
            raise ConfigurationError(f"the checkpoint has {self.shards} shards already: start the query with them")
        if self.shards == self.former_shards:
            return self._write_manifest(self.earlier, check)
        epochs = Epochs(self.directory)
        epoch = epochs.load(self.epoch)
        lent_to = len(epoch.lending.balance_micro)
        if not len(former) == lent_to == self.former_shards:
            raise DamagedError(
                "the state of the last batch",
                f"it has {len(former)} shards, its epoch lent to {lent_to}, and the checkpoint is of "
                f"{self.former_shards}",
            )
        parts = divide(max(each.advanced_to_ms for each in former))
        policy = epochs.policy(epoch)
        states = [
            united([parts[number][shard] for number in range(len(former))], shard, self.shards, policy)
            for shard in range(self.shards)
        ]
        digests = {each.key: each.digest for each in former}
        name = write_handover(self.directory, self.batch, self.epoch.number, self.epoch.file, digests, states)
        return self._write_manifest((*self.earlier, Resharding(self.batch, self.former_shards, name)), check)

    def _write_manifest(self, reshardings: tuple[Resharding, ...], check: Callable[[], None]) -> Manifest:
        """Write the manifest; if a query that read the one before has begun, that one is written back."""
        check()
        written = reshard(self.directory, self.manifest, self.shards, reshardings)
        try:
            check()
        except ThrottleError:
            reshard(self.directory, self.manifest, self.manifest.shards, self.manifest.reshardings)
            raise
        return written
