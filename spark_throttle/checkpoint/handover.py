"""The handover of a checkpoint to another number of shards: the states that new shards begin with.

It lies in the control directory, in files that are written once: one for the state of every new shard, whose name holds
a digest of its content, then a list of them. The list also holds, for the key of every former shard, a digest of its
state after the batch. In the first batch of the new shards, each former shard's state is compared with that digest, and
forgotten. So a checkpoint whose states are not those that were handed over, as one that was put back alone, ends that
batch before anything of it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.files.typed_fields import short_text, whole_number
from spark_throttle.files.versioned_json import read_versioned, versioned

_FOLDER: Final = "handover"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Handover:
    """What former shards left after a batch, and what new ones begin with."""

    batch: int
    """The last batch of the former shards."""

    epoch: int
    """The number of that batch's epoch."""

    epoch_file: str
    former: Mapping[int, str]
    """By the key of every former shard, the digest of its state."""

    states: tuple[str, ...]
    """The digest of every new shard's state."""

    def state(self, directory: Directory, shard: int) -> bytes:
        """Return the state with which a new shard begins.

        Raises
        ------
        DamagedError
            If its file is gone, or is not as it was written.
        """
        name = _state_name(self.epoch, shard, self.states[shard])
        content = directory.read(name)
        if content is None or state_digest(content) != self.states[shard]:
            problem = "it is gone" if content is None else "its content does not belong to its name"
            raise DamagedError(f"the state that was handed over {directory.shown(name)}", problem, RESTORE_CHECKPOINT)
        return content


def state_digest(block: bytes | None) -> str:
    """Return the digest of a shard's state; an empty text for a shard without one."""
    return "" if block is None else hashlib.sha256(block).hexdigest()[:32]


def write_handover(
    directory: Directory, batch: int, epoch: int, epoch_file: str, former: Mapping[int, str], states: Sequence[bytes]
) -> str:
    """Write a handover, its list last, and return its name; the same again leaves the same files."""
    digests = [state_digest(state) for state in states]
    for shard, (digest, state) in enumerate(zip(digests, states, strict=True)):
        directory.write(_state_name(epoch, shard, digest), state)
    content = versioned(FORMAT, {
        "batch": batch, "epoch": epoch, "epoch_file": epoch_file,
        "former": [[key, former[key]] for key in sorted(former)], "states": digests,
    })  # fmt: skip
    name = f"{epoch:012d}-{hashlib.sha256(content).hexdigest()[:16]}"
    directory.write(f"{_FOLDER}/{name}.json", content)
    return name


def read_handover(directory: Directory, name: str) -> Handover:
    """Return a handover by its name.

    Raises
    ------
    DamagedError
        If its list is gone, or cannot be read.
    """
    path = f"{_FOLDER}/{name}.json"
    found = read_versioned(directory, path, "the handover of shards", FORMAT, _parsed)
    if found is None:
        raise DamagedError(f"the handover of shards {directory.shown(path)}", "it is gone", RESTORE_CHECKPOINT)
    return found


def forget_handovers(directory: Directory, *, before_epoch: int) -> None:
    """Delete the handovers after epochs before `before_epoch`."""
    for name in directory.names(_FOLDER):
        if name[:12].isdecimal() and int(name[:12]) < before_epoch:
            directory.delete(f"{_FOLDER}/{name}")


def _state_name(epoch: int, shard: int, digest: str) -> str:
    return f"{_FOLDER}/{epoch:012d}.{shard:05d}-{digest}"


def _parsed(fields: dict[str, Any]) -> Handover:
    return Handover(
        whole_number(fields, "batch"), whole_number(fields, "epoch"), short_text(fields, "epoch_file", least=1),
        {int(key): str(digest) for key, digest in fields["former"]}, tuple(str(each) for each in fields["states"]),
    )  # fmt: skip
