"""The answer to why a namespace is held as it is; how it is found is in `explain`."""

from __future__ import annotations

from dataclasses import dataclass

from spark_throttle.core.quota import UNLIMITED, Dimension, Int64s


@dataclass(frozen=True, slots=True)
class LevelExplanation:
    """One level that a namespace passes through; pairs are messages, then bytes, `None` where there is no limit."""

    level: str
    scope: str
    per_second: tuple[float | None, float | None]
    burst: tuple[float | None, float | None]
    on_excess: str
    weight: int

    max_message_bytes: int | None = None
    """The size beyond which a message is rejected; `None` where the level has no such bound."""

    request_percentage: float | None = None
    """The processing time, in percent of one core; `None` where the level has no such quota."""

    balance: tuple[float | None, float | None] = (None, None)
    """What the level's bucket holds after the last batch; negative is debt. `None` also where no job was asked, and for
    the namespace's own bucket."""

    balance_time_ns: int | None = None
    """What the newest epoch left of the quota on processing time; negative is debt. `None` without such a quota, and
    where no job was asked."""

    waiting: tuple[int, int] | None = None
    """The backlog of all the level's namespaces; `None` where no job was asked."""

    release_ms: int | None = None
    """How long until that backlog may have left, if nothing more arrives; `None` for never, or if nothing waits."""

    @property
    def debt(self) -> tuple[float | None, float | None]:
        """The tokens that the bucket owes."""
        messages, in_bytes = (None if tokens is None else max(0.0, -tokens) for tokens in self.balance)
        return messages, in_bytes


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What became of the namespace's rows in a job's last batch; pairs are messages, then bytes."""

    batch_id: int
    batch_time_ms: int
    epoch: int
    offered: tuple[int, int] = (0, 0)
    admitted: tuple[int, int] = (0, 0)
    rejected: tuple[int, int] = (0, 0)
    waiting: tuple[int, int] = (0, 0)
    observed_messages: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a namespace is held as it is."""

    namespace: str
    direction: str
    rule: str
    """The kind of rule that won: ``exempt``, ``namespace``, ``glob`` or ``defaults``."""

    matched: str
    """The name or glob that won; empty for the defaults."""

    reasons: tuple[str, ...]
    """Why that kind won and the others did not, in the order of precedence."""

    resource_group: str | None
    levels: tuple[LevelExplanation, ...]
    """From the narrowest to the widest; none where the namespace is exempt."""

    revision: str
    last_batch: LastBatch | None = None
    predicted_release_ms: int | None = None
    """How long after the last batch the namespace's backlog will have left, if nothing more arrives; `None` for never,
    if nothing waits, or where a note says that it is not told."""

    notes: tuple[str, ...] = ()
    """Anything else worth knowing, such as a revision that is not in force."""


def pair_of(values: Int64s, unit: int, rates: Int64s) -> tuple[float | None, float | None]:
    """Return values of messages and bytes in a larger unit; `None` where there is no limit."""
    messages, in_bytes = (
        None if rate == UNLIMITED else value / unit
        for value, rate in zip(values[: Dimension.TIME].tolist(), rates[: Dimension.TIME].tolist(), strict=True)
    )
    return messages, in_bytes
