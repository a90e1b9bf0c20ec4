"""The stored fields of quotas on processing time: limits on messages, and the ledger.

Control rows and the decider's state hold the former, epochs the latter. They are a part of those blocks (`codec`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.packing import BlockFields, Field
from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.quota import Int64s
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_ledger import TimeLedger, UsedTime


@dataclass(frozen=True, slots=True, eq=False)
class EpochTime:
    """The part of an epoch that quotas on processing time add."""

    ledger: TimeLedger
    limits: MessageLimits
    """What the ledger lets through; its namespaces are those of the ledger."""

    share_ns_per_ms: Int64s | None = None
    """Shape (scopes,): this job's shares of processing time; `None` if it shares none with other jobs."""

    @property
    def has_parted_prices(self) -> bool:
        """Whether the prices of messages are other than what the accounts of the namespaces say."""
        prices, own = self.ledger.prices, self.ledger.own
        return bool(prices.common.has_price.any()) or bool((prices.specific.time_ns != own.time_ns[:, None]).any())

    @property
    def has_prices_by_level(self) -> bool:
        """Whether any namespace has another price at another level."""
        specific_ns = self.ledger.prices.specific.time_ns
        return bool((specific_ns != specific_ns[:, :1]).any())


def message_limit_fields(limits: MessageLimits) -> dict[str, Field]:
    """Return limits on messages as fields."""
    fields: dict[str, Field] = {"time_unleased": limits.is_unleased.astype(np.int64), "time_names": limits.names}
    for prefix, buckets in (("time_shared", limits.shared), ("time", limits.own)):
        fields |= {
            f"{prefix}_balance": buckets.balance_micro, f"{prefix}_rate": buckets.rate_micro_per_ms,
            f"{prefix}_burst": buckets.burst_micro,
        }  # fmt: skip
    if limits.prices is not None:
        fields |= {"time_price": limits.prices.own_ns, "time_shared_price": limits.prices.shared_ns}
    return fields


def message_limits_of(f: BlockFields) -> MessageLimits | None:
    """Return the limits on messages that a block holds; `None` if it holds none."""
    if not f.has("time_names"):
        return None
    shared, own = (
        MessageBuckets(*(f.integers(f"{prefix}_{name}") for name in ("balance", "rate", "burst")))
        for prefix in ("time_shared", "time")
    )
    prices = MessagePrices(f.integers("time_price"), f.integers("time_shared_price")) if f.has("time_price") else None
    return MessageLimits(shared, f.integers("time_unleased").astype(np.bool_), f.names("time_names"), own, prices)


def epoch_time_fields(time: EpochTime) -> dict[str, Field]:
    """Return an epoch's time as fields; the ledger is at the time of the epoch's buckets."""
    ledger, used = time.ledger, time.ledger.used
    fields = message_limit_fields(time.limits)
    for prefix, accounts in (("shared", ledger.shared), ("own", ledger.own)):
        fields |= {
            f"ledger_{prefix}_balance": accounts.balance_ns, f"ledger_{prefix}_time": accounts.time_ns,
            f"ledger_{prefix}_messages": accounts.messages_micro,
        }  # fmt: skip
    if time.share_ns_per_ms is not None:
        fields["time_share"] = time.share_ns_per_ms
    if time.has_parted_prices:
        common, specific_ns = ledger.prices.common, ledger.prices.specific.time_ns
        fields |= {
            "ledger_specific": specific_ns.ravel() if time.has_prices_by_level else specific_ns[:, 0],
            "ledger_common_time": common.time_ns, "ledger_common_messages": common.messages_micro,
        }  # fmt: skip
    return fields | {
        "ledger_active": ledger.active_ms, "used_shared": used.shared_ns, "used_own": used.own_ns,
        "used_exempt": used.exempt_ns, "used_unattributed": used.unattributed_ns, "used_interval": used.interval_ms,
    }  # fmt: skip


def epoch_time_of(f: BlockFields, as_of_ms: int) -> EpochTime | None:
    """Return an epoch's time; `None` if the block holds none."""
    limits = message_limits_of(f)
    if limits is None:
        return None
    shared, own = (
        TimeAccounts(*(f.integers(f"ledger_{prefix}_{name}") for name in ("balance", "time", "messages")))
        for prefix in ("shared", "own")
    )
    used = UsedTime(
        f.integers("used_shared"), f.integers("used_own"), f.integer("used_exempt"), f.integer("used_unattributed"),
        f.integer("used_interval"),
    )  # fmt: skip
    prices = NamespacePrices.unknown(len(limits.names), scopes=len(shared.time_ns))
    # Where nothing is common, all time is specific; it may be the same at all levels.
    specific_ns = f.integers("ledger_specific") if f.has("ledger_specific") else own.time_ns
    each, common = np.ones_like(prices.specific.time_ns), prices.common
    specific_ns = specific_ns.reshape(len(each), -1 if len(each) else 1) * each
    specific = replace(prices.specific, time_ns=specific_ns, messages_micro=own.messages_micro[:, None] * each)
    if f.has("ledger_specific"):
        common = replace(
            common, time_ns=f.integers("ledger_common_time"), messages_micro=f.integers("ledger_common_messages")
        )
    prices = NamespacePrices(specific, common)
    ledger = TimeLedger(as_of_ms, shared, limits.names, own, prices, f.integers("ledger_active"), used)
    return EpochTime(ledger, limits, f.integers("time_share") if f.has("time_share") else None)
