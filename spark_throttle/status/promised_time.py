"""What a job's policies promise of its cluster's cores, by its newest epoch and its newest sign of life.

A quota on processing time is a promise in percent of one core, and does not follow the number of cores, as KIP-124
argues. So the promises of all tenants may be more than the cluster has: then a tenant that keeps within its quota may
yet wait for others. Those of each level are added up on their own, because a namespace's time is charged at all of
them. Globs and the defaults promise the same to each namespace, however many there are, and are not added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import pyarrow as pa

from spark_throttle.control.epochs import newest_epoch, policy_of_epoch
from spark_throttle.control.sign_of_life import read_sign_of_life
from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Dimension, Int64s
from spark_throttle.errors import NotFoundError
from spark_throttle.files.storage import Directory

_PERCENT_OF_A_CORE: Final = 100
LEVELS: Final = ("job", "tenant", "resource_group", "namespace")


@dataclass(frozen=True, slots=True)
class LevelPromises:
    """The quotas on processing time of one level, in percent of one core."""

    level: str
    percents: tuple[tuple[str, Decimal], ...]
    """The scopes with a quota, and their quotas."""

    @property
    def promised_percent(self) -> Decimal:
        """The sum of all quotas."""
        return sum((percent for _, percent in self.percents), Decimal(0))


@dataclass(frozen=True, slots=True)
class PromisedTime:
    """The promises of a job's policies beside the cores of its cluster."""

    cores: int
    levels: tuple[LevelPromises, ...]
    open_tenants: int
    """The number of tenants that the policies name without such a quota."""

    @property
    def capacity_percent(self) -> int:
        """The time of all cores, in percent of one."""
        return self.cores * _PERCENT_OF_A_CORE

    @property
    def tenants(self) -> LevelPromises:
        """The tenants' quotas."""
        return self.levels[LEVELS.index("tenant")]

    def warnings(self) -> Iterator[str]:
        """Yield what is promised and cannot be given."""
        has = f"the cluster has {self.capacity_percent} % ({self.cores} {'core' if self.cores == 1 else 'cores'})"
        remedy = "lower them, or add cores"
        for each in self.levels:
            word, promised = each.level.replace("_", " "), each.promised_percent
            if promised > self.capacity_percent and len(each.percents) > 1:
                yield f"the quotas of {len(each.percents)} {word}s promise {_text(promised)} %, and {has}: {remedy}"
            for name, percent in each.percents:
                if percent > self.capacity_percent:
                    who = "the job" if each.level == "job" else f"the {word} {name}"
                    yield f"the quota of {who} is {_text(percent)} %, and {has}: it is never reached; lower it"
        whole = self.levels[LEVELS.index("job")].percents
        if whole and self.tenants.promised_percent > whole[0][1]:
            yield (
                f"the quotas of {len(self.tenants.percents)} tenants promise {_text(self.tenants.promised_percent)} %, "
                f"and the job's own quota is {_text(whole[0][1])} %: lower them, or raise it"
            )


def promised_time(control_path: str) -> PromisedTime:
    """Return what a running job's policies promise of its cluster's cores.

    Raises
    ------
    NotFoundError
        If no job has planned a batch there, or if it was begun by a release that does not tell its cores.
    """
    directory = Directory(control_path)
    sign, epoch = read_sign_of_life(directory), newest_epoch(directory)
    if epoch is None:
        raise NotFoundError("job that has planned a batch in", control_path, "; give <checkpoint>/throttle of a query")
    policy = policy_of_epoch(directory, epoch.number, epoch.revision)
    if sign is None or sign.cores is None:
        raise NotFoundError(
            "number of cores of the job", control_path, "; restart it with this release, or give --cores"
        )
    tenants = _promises("tenant", policy.tenant_names, _rates(policy, 1, len(policy.tenant_names)))
    levels = (
        _promises("job", pa.array(["job"]), _rates(policy, 0, 1)),
        tenants,
        _promises(
            "resource_group",
            policy.group_names,
            _rates(policy, 1 + len(policy.tenant_names), len(policy.group_names)),
        ),
        _promises(
            "namespace",
            shown(policy.namespace_names),
            policy.namespace_limits.rate_micro_per_ms[: len(policy.namespace_names), Dimension.TIME],
        ),
    )
    return PromisedTime(sign.cores, levels, len(policy.tenant_names) - len(tenants.percents))


def _rates(policy: CompiledPolicy, first: int, count: int) -> Int64s:
    return policy.shared.rate_micro_per_ms[first : first + count, Dimension.TIME]


def _promises(level: str, names: pa.StringArray, rates: Int64s) -> LevelPromises:
    pairs = zip(names.to_pylist(), rates.tolist(), strict=True)
    return LevelPromises(
        level, tuple((name, Decimal(rate) / NS_PER_MS_OF_A_PERCENT) for name, rate in pairs if rate != UNLIMITED)
    )


def _text(percent: Decimal) -> str:
    return f"{percent.normalize():f}"
