"""The figures that the benchmarks are judged by, from the numbers that their parts left: pure functions of JSON.

A ratio is taken round by round, for each opponent runs once in a round; its value is the median of the rounds, beside
the least and the most. The bounds are what the project wants of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from statistics import median
from typing import Any, Final, Literal

Results = Mapping[str, Any]
"""What the parts measured, by part: the JSON that each wrote."""

Unit = Literal["cpu_seconds", "wall_seconds", "batch_ms"]

_OUR_WAYS: Final = ("staged", "references")
"""The opponents that are ours, by what they decide on."""

_WANTED_OF_PATHS: Final = {
    "parquet_delta": (1.0, 0.75),
    "parquet_delta_cut": (0.85, 0.75),
    "kafka_delta": (1.0, 0.8),
    "kafka_kafka": (0.7, 0.45),
    "parquet_parquet": (0.9, 0.6),
    "parquet_function": (0.9, 0.6),
    "parquet_nothing": (0.9, 0.0),
}
"""Rows wanted for each of the job with a shuffle, and of the plain job; the last has no bound for that."""

_WANTED_OF_KERNEL: Final = (
    ("one group, all fits", "fits", 20),
    ("one group, 50 % admitted", "one group short", 35),
    ("tenants, groups and job short", "tenants, groups and job short", 35),
)
_IN_DICTIONARY: Final = ", names in a dictionary"
_NOTHING_SHORT: Final = "nothing is limited: first"
_OTHER_LIMITERS: Final = ("limits", "throttled-py", "pyrate-limiter", "aiolimiter")
_PLAIN_CALLS: Final = ("pace, acquire", "pace, try_acquire", "pace, await acquire")
_BATCH_OF_A_SECOND: Final = "kernel, batches of 1000 ms"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    key: str
    of: str
    """What it was measured on: a workload, a unit."""

    values: tuple[float, ...]
    """The figure of each round, by CPU time."""

    bound: float
    is_least: bool
    """Whether `bound` is the least that is wanted, rather than the most."""

    wall_values: tuple[float, ...] = ()
    """The same by wall time, where that is measured too."""

    @property
    def value(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def is_reached(self) -> bool:
        """Whether the median keeps the bound.

        Examples
        --------
        >>> Figure("a", "", (0.5, 0.7, 0.9), bound=0.6, is_least=True).is_reached
        True
        >>> Figure("a", "", (0.5, 0.7, 0.9), bound=0.6, is_least=False).is_reached
        False
        """
        return self.value >= self.bound if self.is_least else self.value <= self.bound

    def as_json(self) -> dict[str, Any]:
        """Return the figure as it is written down."""
        found = {
            "key": self.key, "of": self.of, "wanted": f"{'>=' if self.is_least else '<='} {self.bound:g}",
            "is_reached": self.is_reached, "median": self.value, "least": min(self.values), "most": max(self.values),
            "rounds": len(self.values),
        }  # fmt: skip
        return found | ({"wall_median": median(self.wall_values)} if self.wall_values else {})


def figures(results: Results) -> list[Figure]:
    """Return the figures of the parts that are there, in the order in which they are shown: those of a key together."""
    makers: dict[str, Callable[[Any], list[Figure]]] = {
        "paths": _paths,
        "kernel": _kernel,
        "planning": _planning,
        "overload": _overload,
        "peers": _peers,
        "pace": _pace,
        "division": _division,
        "metered": _metered,
        "time_quota": _time_quota,
    }
    found = [figure for part, make in makers.items() if part in results for figure in make(results[part])]
    keys = list(dict.fromkeys(figure.key for figure in found))
    return sorted(found, key=lambda figure: keys.index(figure.key))


def _paths(part: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> list[Figure]:
    """Return how many rows a throttled job passes while the job without a throttle passes one, on each path."""
    found = []
    for key, opponent, at in (("vs_shuffle", "shuffle", 0), ("vs_plain", "plain", 1)):
        for path, bounds in _WANTED_OF_PATHS.items():
            runs = part.get(path, {})
            for place, way in enumerate(way for way in runs if way in _OUR_WAYS):
                values, wall_values = (
                    _ratios(runs[opponent], runs[way], unit) for unit in ("cpu_seconds", "wall_seconds")
                )
                of = path if place == 0 else f"{path}, {way}"
                found.append(Figure(key, of, values, bounds[at], is_least=True, wall_values=wall_values))
    floor = part.get("floor", {})
    for way in (way for way in floor if way in _OUR_WAYS):
        cpu, wall = (_ratios(floor[way], floor["identity"], unit) for unit in ("cpu_seconds", "batch_ms"))
        of = f"{way}, 100 rows a batch"
        found.append(Figure("batch_floor_ratio", of, cpu, 1.3, is_least=False, wall_values=wall))
    return found


def _kernel(part: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    by_name = {
        each["name"]: tuple(each["values"])
        for measure in ("stream", "queue", "flows", "backlog")
        for each in part.get(measure, ())
    }

    def values(start: str, end: str = "") -> tuple[float, ...]:
        return next((found for name, found in by_name.items() if name.startswith(start) and name.endswith(end)), ())

    wanted = [
        *(
            Figure(
                "kernel_ns_per_row", f"{of}{words}", values(f"{start}, 1 x 1,000,000", f"admitted){words}"), bound,
                is_least=False,
            )
            for start, of, bound in _WANTED_OF_KERNEL
            for words in ("", _IN_DICTIONARY)
        ),
        *(
            Figure("kernel_ns_per_row", name, taken, 60, is_least=False)
            for name, taken in by_name.items() if name.startswith("tenth batch")
        ),
        Figure(
            "state_bytes_per_namespace", "100,000 namespaces, no queue",
            values("100 messages, 100,000 namespaces remembered", "state"), 64, is_least=False,
        ),
        Figure(
            "state_bytes_per_row", "100,000 rows, beside their payload",
            values("10,000 messages behind 100,000,", "state"), 16, is_least=False,
        ),
    ]  # fmt: skip
    return [*(figure for figure in wanted if figure.values), *_regimes(part.get("regimes", ()))]


def _regimes(part: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return what a batch costs in every regime, to one in which nothing runs short."""
    found = []
    for way in ("run_batch", "decide"):
        of_way = {each["name"].removesuffix(f": {way}"): each["values"] for each in part if each["name"].endswith(way)}
        free = of_way.get(_NOTHING_SHORT, [])
        ratios = {
            name: tuple(took / bare for took, bare in zip(values, free, strict=True)) for name, values in of_way.items()
        }
        dearest = sorted(ratios, key=lambda name: median(ratios[name]), reverse=True)
        found += [Figure("regimes", f"{way}, {name}", ratios[name], 2.5, is_least=False) for name in dearest]
    return found


def _planning(part: Sequence[Mapping[str, Any]]) -> list[Figure]:
    found = []
    for namespaces in (100_000, 1_000_000):
        values = tuple(one["plan_ms"] for one in part if one["namespaces"] == namespaces)
        if values:
            found.append(Figure("plan_ms", f"{namespaces:,} namespaces that wait", values, 5, is_least=False))
    return found


def _peers(part: Sequence[Mapping[str, Any]]) -> list[Figure]:
    by_peer: dict[str, list[float]] = {}
    for one in part:
        by_peer.setdefault(one["peer"], []).append(one["cpu_ns"] / one["messages"])
    ours = by_peer[_BATCH_OF_A_SECOND]
    peers = {peer: each for peer, each in by_peer.items() if not peer.startswith("kernel")}
    found = []
    for peer, each in sorted(peers.items(), key=lambda item: median(item[1])):
        values = tuple(theirs / mine for theirs, mine in zip(each, ours, strict=True))
        found.append(Figure("kernel_vs", peer, values, 1, is_least=True))
    return found


def _pace(part: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return how many calls of ours cost what one of the cheapest other limiter costs, round by round."""
    by_way: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for one in part:
        by_way.setdefault(one["way"], {}).setdefault(one["peer"], []).append(one)
    found = []
    for way, peers in by_way.items():
        others = {peer: each for peer, each in peers.items() if peer in _OTHER_LIMITERS}

        def cost(unit: str, each: Sequence[Mapping[str, Any]]) -> list[float]:
            return [one[unit] / one["calls"] for one in each]

        cheapest = min(others.values(), key=lambda each: median(cost("cpu_ns", each)))
        for ours in _PLAIN_CALLS:
            cpu, wall = (
                tuple(map(truediv, cost(unit, cheapest), cost(unit, peers[ours]))) for unit in ("cpu_ns", "wall_ns")
            )
            found.append(Figure("pace_vs_cheapest", f"{way}: {ours}", cpu, 5, is_least=True, wall_values=wall))
    return found


def _metered(part: Mapping[str, float]) -> list[Figure]:
    return [
        Figure("metered_percent", f"1,000 rows a call, {form}", (part[f"{form}_percent"],), 1, is_least=False)
        for form in ("arrow", "pandas", "udf", "rows")
    ]


def _time_quota(part: Mapping[str, float]) -> list[Figure]:
    error = abs(part["dear_of_quota"] - 1)
    return [
        Figure("time_quota_error", "core time of the dear tenant, over a minute", (error,), 0.05, is_least=False),
        Figure("time_quota_latency", "the other tenant's rows", (part["latency_of_equal"],), 1.1, is_least=False),
    ]


def _overload(part: Sequence[Mapping[str, Any]]) -> list[Figure]:
    def of(way: str, waiting: int, unit: str) -> list[float]:
        return [one[unit] for one in part if (one["way"], one["waiting"]) == (way, waiting)]

    def growth(way: str, waiting: int, unit: str) -> tuple[float, ...]:
        return tuple(more / bare for more, bare in zip(of(way, waiting, unit), of(way, 0, unit), strict=True))

    return [
        Figure(
            "overload_cost", f"{way}, {waiting:,} rows waiting", growth(way, waiting, "cpu_ms"), bound, is_least=False,
            wall_values=growth(way, waiting, "batch_ms"),
        )
        for way in ("staged", "references")
        for waiting, bound in ((100_000, 1.1), (1_000_000, 1.2), (5_000_000, 1.5))
        if of(way, waiting, "cpu_ms")
    ]  # fmt: skip


def _division(part: Mapping[str, Any]) -> list[Figure]:
    found = next(each for each in part["division"] if each["policy"] == "max_min")
    return [
        Figure("division", "max_min: steady cases reached, of 60", (found["reached"],), 60, is_least=True),
        Figure("division", "max_min: cycles, at worst", (found["cycles_worst"],), 1, is_least=False),
        Figure("division", "max_min: part over the quota", (found["over_admission_worst"],), 0, is_least=False),
    ]


def _ratios(above: Sequence[Mapping[str, float]], below: Sequence[Mapping[str, float]], unit: str) -> tuple[float, ...]:
    return tuple(one[unit] / other[unit] for one, other in zip(above, below, strict=True))
