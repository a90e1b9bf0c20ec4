"""Epochs in the control directory, with the policies that they name: written once, kept until no batch can need them.

With them are kept the records of the batches that ran with them (`checkpoint.batch_records`): after a checkpoint was
put back, the next epoch is made from an earlier one and from these.

The name of an epoch's file holds the epoch's number, a digest of its bytes and the revision of its policy. So an offset
that names the file pins everything that its batch depends on. Each revision of the policy is kept once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_throttle.checkpoint.batch_records import forget_old
from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, EpochMissingError
from spark_throttle.files.storage import Directory, read_block, write_block
from spark_throttle.record import pack, unpack

BATCHES_RETAINED = 100
"""The number of batches by which a checkpoint can be put back: Spark's own default."""

_SLACK_BATCHES = 100
"""As many batches more are kept, because Spark may prune its log later than we prune ours."""


_BATCHES_BEFORE = 3
"""As many batches more keep their records: the epoch before the first batch that is retained needs them."""


@dataclass(frozen=True, slots=True)
class EpochName:
    """The name of an epoch, as an offset holds it."""

    number: int
    """Number of the epoch; 0 before the first."""

    file: str

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> EpochName:
        """Return the name in an offset of the control source.

        Examples
        --------
        >>> EpochName.of({"epoch": 7, "file": "000000000007-5f"}).number
        7
        """
        return cls(int(offset["epoch"]), str(offset["file"]))


NO_EPOCH = EpochName(0, "")


def logged_epoch(checkpoint: Directory, batch: int) -> EpochName | None:
    """Return the name of the epoch that the offsets of a batch name; `None` unless they name one."""
    offsets = source_offsets(checkpoint, batch)
    named = [each.get("control", each) for each in offsets]  # a query that decides on references has both in one offset
    found = [EpochName.of(each) for each in named if each.keys() == {"epoch", "file"}]
    return found[0] if len(found) == 1 else None


def read_epoch(directory: Directory, file: str) -> Epoch | None:
    """Return the epoch in a file of the control directory; `None` if the file is gone."""
    content, what = directory.read(f"epochs/{file}"), f"the epoch file {directory.shown(f'epochs/{file}')}"
    if content is None:
        return None
    epoch = unpack(Epoch, content, what)
    if file != _file_of(epoch, content):
        raise DamagedError(what, "its content does not belong to its name", RESTORE_CHECKPOINT)
    return epoch


def _file_of(epoch: Epoch, block: bytes) -> str:
    return f"{epoch.number:012d}-{hashlib.sha256(block).hexdigest()[:16]}-{epoch.revision}"


def newest_epoch(directory: Directory) -> Epoch | None:
    """Return the newest epoch of a control directory; `None` before the first."""
    files = directory.names("epochs")
    return read_epoch(directory, files[-1]) if files else None


def read_policy(directory: Directory, revision: str) -> CompiledPolicy | None:
    """Return the policy of a revision that an epoch names; `None` if its file is gone."""
    return read_block(directory, f"policies/{revision}", CompiledPolicy, "the policy revision")


def policy_of_epoch(directory: Directory, number: int, revision: str) -> CompiledPolicy:
    """Return the policy of the revision that the epoch of a number names.

    Raises
    ------
    EpochMissingError
        If its file is gone.
    """
    policy = read_policy(directory, revision)
    if policy is None:
        raise EpochMissingError(number, directory.shown(f"policies/{revision}"))
    return policy


class Epochs:
    """The epochs of one query; the last two, between which a batch lies, are kept in memory.

    Parameters
    ----------
    fence
        Checks that the directory still belongs to this run.
    batches_retained
        The number of batches by which the checkpoint can be put back (``spark.sql.streaming.minBatchesToRetain``).
    """

    def __init__(
        self, directory: Directory, fence: RunFence | None = None, *, batches_retained: int = BATCHES_RETAINED
    ) -> None:
        self._directory = directory
        self._fence = fence
        self._batches_retained = batches_retained
        self._epochs: dict[EpochName, Epoch] = {}
        self._compiled: dict[str, CompiledPolicy] = {}

    @property
    def batches_kept(self) -> int:
        """For how many batches files are kept."""
        return self._batches_retained + _SLACK_BATCHES

    def begin(self) -> None:
        """Take over the directory, now that this run goes on in it."""
        if self._fence is not None:
            self._fence.begin()

    def check_fence(self) -> None:
        """Refuse to go on if another run has taken over the directory.

        Raises
        ------
        TakenOverError
            If another run has taken it over.
        """
        if self._fence is not None:
            self._fence.check()

    def load(self, name: EpochName) -> Epoch:
        """Return an epoch.

        Raises
        ------
        EpochMissingError
            If its file is gone.
        DamagedError
            If its file is not as it was written.
        """
        self.begin()
        if name not in self._epochs:
            epoch = read_epoch(self._directory, name.file)
            if epoch is None:
                raise EpochMissingError(name.number, self._directory.shown(f"epochs/{name.file}"))
            self._remember(name, epoch)
        return self._epochs[name]

    def policy(self, epoch: Epoch) -> CompiledPolicy:
        """Return the policy of the revision that an epoch names, whichever is in force now."""
        revision = epoch.revision
        if revision not in self._compiled:
            self._compiled[revision] = policy_of_epoch(self._directory, epoch.number, revision)
        return self._compiled[revision]

    def policy_for(self, start: EpochName, end: EpochName) -> CompiledPolicy | None:
        """Return the policy that batches of `end` apply, or `None` if those of `start` applied the same."""
        before = self.load(start).revision if start != NO_EPOCH else None
        epoch = self.load(end)
        return None if epoch.revision == before else self.policy(epoch)

    def write(self, epoch: Epoch, policy: CompiledPolicy) -> EpochName:
        """Write an epoch, its policy first, and return the epoch's name."""
        if policy.revision not in self._compiled:
            write_block(self._directory, f"policies/{policy.revision}", policy)
            self._compiled[policy.revision] = policy
        block = pack(epoch, is_compressed=True)
        name = EpochName(epoch.number, _file_of(epoch, block))
        self._directory.write(f"epochs/{name.file}", block)
        self._remember(name, epoch)
        return name

    def forget_before(self, name: EpochName, in_force: str) -> None:
        """Delete the files that no batch retained by Spark can need.

        A batch has at most one epoch, so the last `batches_retained` batches need at most the last `batches_retained`
        epochs, and the records of as many batches and of a few before. The policy revision `in_force` stays too.
        """
        self.check_fence()
        retained = self.batches_kept
        forget_old(self._directory, but_newest=retained + _BATCHES_BEFORE)
        needed = {in_force}
        for file in self._directory.names("epochs"):
            number, _, rest = file.partition("-")
            if int(number) < name.number - retained:
                self._directory.delete(f"epochs/{file}")
            else:
                needed.add(rest.partition("-")[2])
        for revision in self._directory.names("policies"):
            if revision not in needed:
                self._directory.delete(f"policies/{revision}")
                self._compiled.pop(revision, None)

    def _remember(self, name: EpochName, epoch: Epoch) -> None:
        """Keep an epoch in memory, with the one before it: a batch lies between the two."""
        self._epochs = {**dict(list(self._epochs.items())[-1:]), name: epoch}
        needed = {epoch.revision for epoch in self._epochs.values()}
        self._compiled = {revision: policy for revision, policy in self._compiled.items() if revision in needed}
