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

_OVERLOADED: Final = "one group, 50 % admitted, 1 x 1,000,000"
_IN_DICTIONARY: Final = "names in a dictionary"
_IN_TEN: Final = "one group, 50 % admitted, 10 x 100,000"
_NOTHING_SHORT: Final = "nothing is limited: first"
_OTHER_LIMITERS: Final = ("limits", "throttled-py", "pyrate-limiter", "aiolimiter")
_PLAIN_CALLS: Final = ("pace, acquire", "pace, try_acquire", "pace, await acquire")
_WAYS_TO_DECIDE: Final = {"throttled": "staged", "references": "references"}
"""The opponents that are ours, and what each decides on."""

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
        "kernel": _kernel,
        "planning": _planning,
        "peers": _peers,
        "pace": _pace,
        "operators": _operators,
        "sink": _sink,
        "references": _references,
        "overload": _overload,
        "division": _division,
        "metered": _metered,
        "time_quota": _time_quota,
        "kafka": _kafka,
    }
    found = [figure for part, make in makers.items() if part in results for figure in make(results[part])]
    keys = list(dict.fromkeys(figure.key for figure in found))
    return sorted(found, key=lambda figure: keys.index(figure.key))


def _kernel(part: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    by_name = {each["name"]: tuple(each["values"]) for each in [*part["stream"], *part["flows"], *part["backlog"]]}

    def values(start: str, end: str = "") -> tuple[float, ...]:
        return next(found for name, found in by_name.items() if name.startswith(start) and name.endswith(end))

    return [
        Figure("kernel_ns_per_message", "one overloaded group", values(_OVERLOADED), 30, is_least=False),
        Figure(
            "kernel_ns_per_message", "namespace quotas", values("namespace quotas, 1 x 1,000,000"), 30, is_least=False
        ),
        Figure("kernel_ns_per_message", "ten batches of 100,000", values(_IN_TEN), 40, is_least=False),
        Figure(
            "kernel_ns_per_message", "one overloaded group, names in a dictionary", values(_OVERLOADED, _IN_DICTIONARY),
            30, is_least=False,
        ),
        Figure(
            "state_bytes_per_namespace", "100,000 namespaces, no queue",
            values("100 messages, 100,000 namespaces remembered", "state"), 64, is_least=False,
        ),
        Figure(
            "state_bytes_per_row", "100,000 rows, beside their payload",
            values("10,000 messages behind 100,000,", "state"), 16, is_least=False,
        ),
        *_regimes(part.get("regimes", ())),
    ]  # fmt: skip


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


def _operators(part: Mapping[str, Any]) -> list[Figure]:
    found = [
        _ratio(part, workload, "identity", "throttled", "operator_vs_identity", 0.9) for workload in ("narrow", "wide")
    ]
    found += [
        _ratio(part, workload, "shuffle", "throttled", "job_vs_unthrottled", 0.6, "to nothing, ")
        for workload in ("narrow", "wide")
    ]
    found += [
        _ratio(part, f"namespaces-{count}", "namespace", way, "vs_per_namespace", bound, f"{words}, ")
        for way, words in _WAYS_TO_DECIDE.items()
        for count, bound in ((10_000, 8), (100_000, 60))
    ]
    found += [
        _ratio(part, workload, "row_number", "throttled", "vs_row_number", 0.7) for workload in ("narrow", "wide")
    ]
    floor = part["floor"]
    for way, words in _WAYS_TO_DECIDE.items():
        cpu, wall = (_ratios(floor[way], floor["identity"], unit) for unit in ("cpu_seconds", "batch_ms"))
        of = f"{words}, 100 rows a batch"
        found.append(Figure("batch_floor_ratio", of, cpu, 1.4, is_least=False, wall_values=wall))
    return found


def _sink(part: Mapping[str, Any]) -> list[Figure]:
    return [
        _ratio(part, workload, "unthrottled", "throttled", "job_vs_unthrottled", 0.8, "to Delta, ")
        for workload in ("narrow", "wide", "small")
    ]


def _references(part: Mapping[str, Any]) -> list[Figure]:
    key, bounds = "reference_vs_unthrottled", {"nothing": 0.5, "parquet": 0.8, "function": 0.5, "computed": 0.8}
    return [
        _ratio(part, sink, opponent, "references", key, bound, f"{words}, to ")
        for opponent, words in (("shuffle", "with a shuffle"), ("plain", "without one"))
        for sink, bound in ((sink, 0.9 if opponent == "shuffle" else bound) for sink, bound in bounds.items())
        if sink in part
    ]


def _kafka(part: Mapping[str, Any]) -> list[Figure]:
    return [
        _ratio(part, sink, opponent, "throttled", "kafka_vs_unthrottled", 0.7, f"{words}, Kafka to ")
        for opponent, words in (("shuffle", "with a shuffle"), ("plain", "without one"))
        for sink in ("kafka", "delta")
        if sink in part
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
        for waiting, bound in ((100_000, 1.2), (1_000_000, 1.5), (5_000_000, 2))
        if of(way, waiting, "cpu_ms")
    ]  # fmt: skip


def _division(part: Mapping[str, Any]) -> list[Figure]:
    found = next(each for each in part["division"] if each["policy"] == "max_min")
    return [
        Figure("division", "max_min: steady cases reached, of 60", (found["reached"],), 60, is_least=True),
        Figure("division", "max_min: cycles, at worst", (found["cycles_worst"],), 1, is_least=False),
        Figure("division", "max_min: part over the quota", (found["over_admission_worst"],), 0, is_least=False),
    ]


def _ratio(
    part: Mapping[str, Any], workload: str, theirs: str, ours: str, key: str, bound: float, way: str = ""
) -> Figure:
    """Return how many rows our job passes while the other passes one."""
    runs = part[workload]
    values, wall_values = (_ratios(runs[theirs], runs[ours], unit) for unit in ("cpu_seconds", "wall_seconds"))
    return Figure(key, f"{way}{workload}", values, bound, is_least=True, wall_values=wall_values)


def _ratios(above: Sequence[Mapping[str, float]], below: Sequence[Mapping[str, float]], unit: str) -> tuple[float, ...]:
    return tuple(one[unit] / other[unit] for one, other in zip(above, below, strict=True))
