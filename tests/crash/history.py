"""The batches of a run as Spark's offset log and the epochs tell them, and which rows came in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from demos.tables import read_epoch, read_epoch_file, read_offsets, read_paying_times_ms
from spark_throttle.core.quota import UNLIMITED
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.compile import compile_policy, revision_of
from tests.crash.topic import TOPIC
from tests.life.contract import Contracts, Key

DIRECTION: Final = "publish"
Shares = Mapping[Key, tuple[int | None, int | None]]
"""Micro-tokens a millisecond of each shared scope, in each dimension."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as it was planned."""

    number: int
    paid_ms: int
    """Its paying time."""

    revision: str
    read: Mapping[int, int]
    """How much of the source was read up to its end: so many files, or so many records of each partition of a topic."""

    shares: Shares | None = None
    """What the job had of shared quotas; `None` where it had them for itself."""

    windows: tuple[int, ...] | None = None
    """Which hour, day and month it counted in; `None` where its policy has no budget."""


def came_in(batches: Sequence[Batch], offered: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the position of the batch in which each offered row came; `offered` says at which place it stands."""
    came = np.empty(len(offered), dtype=np.int64)
    for partition in offered["partition"].unique():
        is_in_it = (offered["partition"] == partition).to_numpy()
        # The first batch that has read as much as was before a place, and one more, has read it.
        read = [batch.read.get(partition, 0) for batch in batches]
        came[is_in_it] = np.searchsorted(read, offered["place"].to_numpy()[is_in_it], side="right")
    return came


def read_policies(root: Path) -> dict[str, str]:
    """Return the texts of all policies that were ever put in force, by their revision."""
    texts = [path.read_text() for path in sorted((root / "policies").glob("*.yaml"))]
    return {revision_of(parse_policies(text), DIRECTION): text for text in texts}


def contracts_of(policies: Mapping[str, str]) -> dict[str, Contracts]:
    """Return what policies say, by their revision."""
    return {revision: Contracts(parse_policies(text), DIRECTION) for revision, text in policies.items()}


def read_batches(root: Path, policies: Mapping[str, str]) -> list[Batch]:
    """Return all batches, in order; a batch's offset names its epoch, and the epoch its revision."""
    checkpoint = root / "checkpoint"
    found: list[Batch] = []
    read = dict[int, int]()
    for number, paid_ms in read_paying_times_ms(checkpoint).items():
        read = read_so_far(read_offsets(checkpoint, number), read)
        epoch = read_epoch(checkpoint, read_epoch_file(checkpoint, number))
        shares = None
        if epoch.share_micro_per_ms is not None:
            shares = _shares(policies[epoch.revision], epoch.share_micro_per_ms)
        windows = None if epoch.windows is None else tuple(epoch.windows.number.tolist())
        found.append(Batch(number, paid_ms, epoch.revision, read, shares, windows))
    return found


def read_so_far(offsets: Sequence[Mapping[str, Any]], before: dict[int, int]) -> dict[int, int]:
    """Return how much of the source is read at a batch's end; of a source that had nothing yet, as much as before.

    Examples
    --------
    >>> read_so_far([{"epoch": 3, "file": "3"}, {"offered": {"0": 500, "1": 420}}], {})
    {0: 500, 1: 420}
    >>> read_so_far([{"logOffset": 6}], {0: 6})
    {0: 7}
    """
    for offset in offsets:
        # Spark counts the batches of its file source from 0, and an extent is counted from 1: a file each.
        if "logOffset" in offset:
            return {0: int(offset["logOffset"]) + 1}
        if "extent" in offset:
            return {0: int(offset["extent"])}
        if TOPIC in offset:
            return {int(partition): int(end) for partition, end in offset[TOPIC].items()}
    return before


def _shares(text: str, share_micro_per_ms: npt.NDArray[np.int64]) -> Shares:
    policy = compile_policy(parse_policies(text), DIRECTION)
    keys: list[Key] = [("job", "")]
    keys += [("tenant", name) for name in policy.tenant_names.to_pylist()]
    keys += [("group", name) for name in policy.group_names.to_pylist()]
    pairs = share_micro_per_ms[:, :2].tolist()
    return {
        key: tuple(None if rate == UNLIMITED else int(rate) for rate in pair)  # type: ignore[misc]
        for key, pair in zip(keys, pairs, strict=True)
    }
