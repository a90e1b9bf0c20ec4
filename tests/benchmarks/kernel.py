"""What the admission kernel costs: CPU time a message on the benchmark stream, and what grows with what.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.kernel [MEASURE]... [--out FILE]

==============  =============================================================================================
``stream``      the stream as one batch of 1,000,000 messages and as ten of 100,000, each from the same state
``queue``       the tenth of ten batches of 10,000, behind what the others left
``regimes``     three batches under every policy that can make them short, alone and as whole batches
``flows``       100 messages beside many remembered namespaces
``backlog``     10,000 messages behind a queue of which 10,000 may leave
``budgets``     a batch of 100,000 under limits at all levels, with and without budgets beside them, in turns
``guarantees``  a batch of 100,000 under limits at all levels, with and without guarantees, in turns
``units``       the same without units, with rows that state some, and with limits on them at all levels, in turns
``spread``      the stream over more and more namespaces
``profile``     in which functions the time of the stream goes
==============  =============================================================================================

Times are process CPU time on one thread: the median of the repeats, and their least and most.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_throttle.core.batch.admission import AdmissionPlan, Arrivals, plan_admission
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.quota import MICRO, UNLIMITED, CompiledPolicy, Dimension, Guarantees, Level, Verdict
from spark_throttle.core.state import DeciderState, Flows, Queue, StoredState
from spark_throttle.record import pack, unpack
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from spark_throttle.spark.rows.frames import decode
from tests.benchmarks import regimes
from tests.benchmarks.results import save
from tests.benchmarks.stream import MESSAGES, NAMESPACES, Stream, build_stream
from tests.oracle.worlds import Limit, Namespace, Tenant, limit, make_policy, with_tokens

REPEATS = 7
NOW_MS = 1_760_000_000_000
MEMORY = MatchMemory()
"""Every worker keeps one too."""
TENANTS = 100
DEFAULTS = limit(messages_per_second=50, bytes_per_second=65_536, burst_seconds=2)


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, and what a scope holds for the whole stream; it holds its part in a smaller batch."""

    name: str
    policy: CompiledPolicy
    tokens: dict[str, tuple[float, float]]

    def state(self, part: float) -> DeciderState:
        """Return the state of a decider that is to decide `part` of the stream."""
        tokens = {name: (held[0] * part, held[1] * part) for name, held in self.tokens.items()}
        return with_tokens(a_second_ago(self.policy), self.policy, tokens)


def a_second_ago(policy: CompiledPolicy) -> DeciderState:
    """Return the state of a decider that decided nothing until a second ago."""
    return replace(DeciderState.initial(policy, now_ms=NOW_MS), advanced_to_ms=NOW_MS - 1_000)


def name_of(key: int) -> str:
    """Return the namespace of a key of the stream."""
    return f"t{key % TENANTS}/n{key}"


def cases(stream: Stream) -> Iterator[Case]:
    """Yield the cases, from the one in which nothing is limited to the one in which every scope runs short."""
    total = (MESSAGES, int(stream.size.sum()))
    shared = limit(messages_per_second=10_000, bytes_per_second=16_000_000, burst_seconds=1_000)
    one_group = make_policy(groups={"all": shared}, default=Namespace(group="all"))
    yield Case("nothing limited", make_policy(), {})
    yield Case("namespace quotas", make_policy(default=Namespace(DEFAULTS)), {})
    yield Case("one group, all fits", one_group, {"all": (total[0] * 2, total[1] * 2)})
    yield Case("one group, 50 % admitted", one_group, {"all": (total[0] * 0.5, total[1] * 0.5)})
    yield Case("one group, 5 % admitted", one_group, {"all": (total[0] * 0.05, total[1] * 0.05)})
    everything = make_policy(
        job=shared,
        tenants={f"t{i}": Tenant(shared, f"g{i % 4}") for i in range(TENANTS)},
        groups={f"g{i}": shared for i in range(4)},
        default=Namespace(Limit(weight=2)),
    )
    parts = {"": 0.5, **{f"g{i}": 0.14 for i in range(4)}, **{f"t{i}": 0.008 for i in range(TENANTS)}}
    yield Case("tenants, groups and job short", everything, {n: (total[0] * p, total[1] * p) for n, p in parts.items()})


def arrivals_of(stream: Stream, names: pa.StringArray, start: int, stop: int, *, is_encoded: bool = False) -> Arrivals:
    """Return messages `start` to `stop` of the stream; each batch owns its buffers, as one that was read does.

    Parameters
    ----------
    is_encoded
        Whether names come as a dictionary, as some files hold them.
    """
    key, size = pa.array(stream.key[start:stop]), pa.array(stream.size[start:stop].astype(np.int64))
    return Arrivals(pa.DictionaryArray.from_arrays(key, names) if is_encoded else names.take(key), size)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, repeat for repeat."""

    name: str
    values: list[float]
    unit: str

    def __str__(self) -> str:
        least, most = min(self.values), max(self.values)
        return f"{self.name:64} {median(self.values):10,.1f} {least:10,.1f} {most:10,.1f}  {self.unit}"


def timed(name: str, run: Callable[[], object], of: int, unit: str) -> Figure:
    """Return the CPU time of every repeat, `of` ns a unit; one more repeat comes first and does not count."""
    run()
    taken = []
    for _ in range(REPEATS):
        start = time.process_time_ns()
        run()
        taken.append((time.process_time_ns() - start) / of)
    return Figure(name, taken, unit)


def measure_stream(stream: Stream) -> Iterator[Figure]:
    """Yield the cost of the stream under every policy."""
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    yield timed(
        "(names to positions: pyarrow's dictionary_encode)",
        arrivals_of(stream, names, 0, MESSAGES).namespaces.dictionary_encode,
        MESSAGES,
        "ns/message",
    )
    for case, batches, is_encoded in product(cases(stream), (1, 10), (False, True)):
        rows = MESSAGES // batches
        parts = [arrivals_of(stream, names, at * rows, (at + 1) * rows, is_encoded=is_encoded) for at in range(batches)]
        state = case.state(1 / batches)
        admitted = [int((decide(state, part, case).decisions.verdict == Verdict.ADMIT).sum()) for part in parts]
        label = f"{case.name}, {batches} x {rows:,} ({100 * sum(admitted) / MESSAGES:.0f} % admitted)"
        label += ", names in a dictionary" if is_encoded else ""
        yield timed(label, lambda: [decide(state, part, case) for part in parts], MESSAGES, "ns/message")  # noqa: B023 - called at once


def measure_queue(stream: Stream) -> Iterator[Figure]:
    """Yield what the tenth of ten batches of 10,000 costs, a second after each other, behind what the others left."""
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    parts = [arrivals_of(stream, names, at * 10_000, (at + 1) * 10_000) for at in range(10)]
    for admitted in (10_000, 5_000, 500):
        quota = limit(messages_per_second=admitted, burst_seconds=1)
        case = Case("", make_policy(groups={"all": quota}, default=Namespace(group="all")), {})
        state = a_second_ago(case.policy)
        for at, part in enumerate(parts[:-1]):
            state = decide(state, part, case, now_ms=NOW_MS + 1_000 * at).state
        waiting = len(state.queue)
        yield timed(
            f"tenth batch of 10,000, behind {waiting:,}",
            lambda: decide(state, parts[-1], case, now_ms=NOW_MS + 9_000),  # noqa: B023 - called at once
            10_000,
            "ns/message",
        )


def decide(state: DeciderState, arrivals: Arrivals, case: Case, *, now_ms: int = NOW_MS) -> AdmissionPlan:
    """Decide a batch a second after the one before."""
    return plan_admission(state, arrivals, case.policy, now_ms=now_ms, memory=MEMORY)


def measure_regimes(stream: Stream) -> Iterator[Figure]:
    """Yield the cost of three batches in every regime: of the decisions, then of a whole batch."""
    arrived, nothing = regimes.arrivals(), regimes.nothing()
    frames, no_frames = regimes.frames(arrived), list[bytes]()
    batches = (("first", arrived, frames), ("second", arrived, frames), ("no arrivals", nothing, no_frames))
    for regime in regimes.regimes():
        case, state, block = Case("", regime.policy, {}), regimes.initial(regime.policy, now_ms=NOW_MS), None
        for batch, (label, rows, framed) in enumerate(batches):
            now_ms = NOW_MS + 1_000 * batch
            row = regime.control_row(NOW_MS) if batch == 0 else None

            def decided() -> AdmissionPlan:
                return decide(state, rows, case, now_ms=now_ms)  # noqa: B023 - called at once

            def whole_batch() -> BatchOutcome:
                opened = [decode(frame) for frame in framed]  # noqa: B023
                return run_batch(block, row, opened, now_ms=now_ms, is_explained=False)  # noqa: B023

            yield timed(f"{regime.name}: {label}: decide", decided, 1_000_000, "ms/batch")
            yield timed(f"{regime.name}: {label}: run_batch", whole_batch, 1_000_000, "ms/batch")
            state, block = decided().state, whole_batch().state


def measure_spread(stream: Stream) -> Iterator[Figure]:
    """Yield the cost of the stream under one overloaded group, as namespaces grow."""
    case = next(case for case in cases(stream) if case.name == "one group, 50 % admitted")
    for namespaces in (1_000, 10_000, 100_000, 1_000_000):
        names = pa.array([name_of(key) for key in range(namespaces)])
        # The stream's keys, each spread evenly over as many names as there are more of.
        copies = max(1, namespaces // NAMESPACES)
        key = stream.key % namespaces if copies == 1 else stream.key + NAMESPACES * (np.arange(MESSAGES) % copies)
        arrivals = arrivals_of(Stream(key, stream.size), names, 0, MESSAGES)
        state = case.state(1)
        yield timed(f"{namespaces} namespaces", lambda: decide(state, arrivals, case), MESSAGES, "ns/message")  # noqa: B023


def measure_guarantees(stream: Stream) -> Iterator[Figure]:
    """Yield the cost of a batch of which every tenant, group and tenth namespace is guaranteed a part, by that of none.

    The two are measured in turns, so that a slower hour of the machine counts for both.
    """
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    part = arrivals_of(stream, names, 0, 100_000)
    total = (len(part), int(stream.size[: len(part)].sum()))
    shared = limit(messages_per_second=10_000, bytes_per_second=16_000_000, burst_seconds=1_000)
    plain = make_policy(
        job=shared,
        tenants={f"t{i}": Tenant(shared, f"g{i % 4}") for i in range(TENANTS)},
        groups={f"g{i}": shared for i in range(4)},
        namespaces={name_of(key): Namespace(Limit(weight=2)) for key in range(0, NAMESPACES, 10)},
        default=Namespace(Limit(weight=2)),
    )
    tenants = [(Level.TENANT, -1, (1 + i, 1 + TENANTS + i % 4, 0)) for i in range(TENANTS)]
    groups = [(Level.RESOURCE_GROUP, -1, (-1, 1 + TENANTS + i, 0)) for i in range(4)]
    tenant_of = [name.partition("/")[0] for name in plain.namespace_names.to_pylist()]
    at = {name: i for i, name in enumerate(plain.tenant_names.to_pylist())}
    own = [(Level.NAMESPACE, rule, (1 + at[name], -1, 0)) for rule, name in enumerate(tenant_of)]
    for label, scopes in (("tenants", tenants), ("tenants, groups and namespaces", tenants + groups + own)):
        level, rule, way = (np.array(column, dtype=np.int64) for column in zip(*scopes, strict=True))
        rate = np.tile(np.array([20_000, 20_000_000, UNLIMITED, UNLIMITED]), (len(scopes), 1))
        burst_ms = np.full(len(scopes), 10_000)
        claims = Guarantees(level, rule, way, rate, burst_ms, np.full_like(rate, 10_000))
        cases = [Case("", policy, {}) for policy in (plain, replace(plain, guarantees=claims))]
        parts = {"": 0.5, **{f"g{i}": 0.14 for i in range(4)}}
        tokens = {name: (total[0] * share, total[1] * share) for name, share in parts.items()}
        states = [with_tokens(a_second_ago(case.policy), case.policy, tokens) for case in cases]
        states = [replace(each, shared=replace(each.shared, as_of_ms=NOW_MS - 1_000)) for each in states]
        taken = taken_by_turns(states, part, cases)
        yield Figure(f"none guaranteed, beside {label}", (taken[0] / len(part)).tolist(), "ns/message")
        yield Figure(f"{label} guaranteed", (taken[1] / len(part)).tolist(), "ns/message")
        yield Figure(f"{label} guaranteed, of none", (100 * taken[1] / taken[0]).tolist(), "%")


def measure_units(stream: Stream) -> Iterator[Figure]:
    """Yield the cost of a batch whose rows have units, by that of one whose rows have none; half of it passes, or all.

    Units are limited nowhere, or as bytes are: at the namespace, its tenant, its group and the job.
    """
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    plain = arrivals_of(stream, names, 0, 100_000)
    stated = replace(plain, units=plain.size_bytes)

    def policy(messages: float, units_per_second: float | None) -> CompiledPolicy:
        shared = limit(messages_per_second=messages, bytes_per_second=2**34, units_per_second=units_per_second)
        tenants = {f"t{i}": Tenant(shared, f"g{i % 4}") for i in range(TENANTS)}
        groups = {f"g{i}": shared for i in range(4)}
        return make_policy(job=shared, tenants=tenants, groups=groups, default=Namespace(shared))

    for label, messages in (("all of it passes", 10**6), ("half of it passes", 50_000)):
        none, limited = Case("", policy(messages, None), {}), Case("", policy(messages, 2**34), {})
        cases = [none, none, limited]
        states = [DeciderState.initial(case.policy, now_ms=NOW_MS) for case in cases]
        taken = taken_by_turns(states, [plain, stated, stated], cases)
        yield Figure(f"{label}, no units", (taken[0] / len(plain)).tolist(), "ns/message")
        yield Figure(f"{label}, units stated, of none", (100 * taken[1] / taken[0]).tolist(), "%")
        yield Figure(f"{label}, units limited, of none", (100 * taken[2] / taken[0]).tolist(), "%")


def taken_by_turns(
    states: list[DeciderState], parts: list[Arrivals] | Arrivals, cases: list[Case]
) -> npt.NDArray[np.float64]:
    """Return the CPU time in ns of one batch from each state under its case, by turns; shape (cases, REPEATS)."""
    taken = np.zeros((len(cases), REPEATS))
    of_case = parts if isinstance(parts, list) else [parts] * len(cases)
    for repeat in range(-1, REPEATS):  # what the first takes is overwritten
        for which, (state, part, case) in enumerate(zip(states, of_case, cases, strict=True)):
            start = time.process_time_ns()
            decide(state, part, case)
            taken[which, repeat] = time.process_time_ns() - start
    return taken


def measure_budgets(stream: Stream) -> Iterator[Figure]:
    """Yield the cost of a batch with budgets at all levels beside rates, by that without; half of it passes, or all."""
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    part = arrivals_of(stream, names, 0, 100_000)
    budgets = {"messages_per_day": 2**40, "bytes_per_month": 2**50}

    def policy(messages: float, settings: dict[str, int]) -> CompiledPolicy:
        shared = limit(messages_per_second=messages, bytes_per_second=2**34, burst_seconds=1)
        shared = replace(shared, settings=settings)
        own = Namespace(replace(limit(messages_per_second=messages, burst_seconds=1), settings=settings))
        tenants = {f"t{i}": Tenant(shared, f"g{i % 4}") for i in range(TENANTS)}
        return make_policy(job=shared, tenants=tenants, groups={f"g{i}": shared for i in range(4)}, default=own)

    for label, messages in (("all", 10**6), ("half", 50_000)):
        cases = [Case("", policy(messages, settings), {}) for settings in ({}, budgets)]
        states = [a_second_ago(case.policy) for case in cases]
        taken = taken_by_turns(states, part, cases)
        yield Figure(f"without budgets, {label} passes", (taken[0] / len(part)).tolist(), "ns/message")
        yield Figure(f"with budgets, {label} passes", (taken[1] / len(part)).tolist(), "ns/message")
        yield Figure(f"with budgets, of without, {label} passes", (100 * taken[1] / taken[0]).tolist(), "%")


def measure_profile(stream: Stream) -> Iterator[Figure]:
    """Print in which functions of the core the time goes, callees included and not, and yield nothing."""
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    arrivals = arrivals_of(stream, names, 0, MESSAGES)
    for case in cases(stream):
        state = case.state(1)
        decide(state, arrivals, case)
        profile = cProfile.Profile(time.process_time, builtins=False)
        for _ in range(REPEATS):
            profile.runcall(decide, state, arrivals, case)
        print(f"\n{case.name}: ns/message with and without callees")
        found = [
            (with_callees, own, f"{Path(file).stem}.{function}")
            for (file, _, function), (_, _, own, with_callees, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
        ]
        for with_callees, own, function in sorted(found, reverse=True)[:28]:
            scale = 1e9 / REPEATS / MESSAGES
            print(f"{with_callees * scale:10.2f} {own * scale:10.2f}  {function}")
    yield from ()


def remembering(flows: int, policy: CompiledPolicy, queued: int = 0) -> DeciderState:
    """Return a decider that remembers `flows` namespaces in debt, and has `queued` rows waiting."""
    names = pa.array([name_of(key) for key in range(flows)], pa.string())
    random = np.random.default_rng(1)
    balance = -random.integers(10_000 * MICRO, 1 << 40, (flows, len(Dimension)))
    nothing = np.zeros((flows, 2), dtype=np.int64)
    second = np.full(flows, NOW_MS // 1000 - 1, dtype=np.int64)
    key = random.integers(0, flows, queued)
    size = random.integers(1, 2_000, queued)
    arrival_ms = np.full(queued, NOW_MS - 1_000, dtype=np.int64)
    queue = Queue(key, size, arrival_ms, np.zeros(queued, dtype=np.int64))
    is_limited = policy.namespace_limits.is_limited[-1]
    return replace(
        a_second_ago(policy),
        flows=Flows(
            names,
            np.where(is_limited, balance, 0),
            np.zeros_like(balance),
            nothing,
            nothing,
            second,
            nothing,
            nothing[:, 0],
            nothing[:, 0],
        ),
        queue=queue,
    )


def measure_flows(stream: Stream) -> Iterator[Figure]:
    """Yield what a small batch costs a decider that remembers many namespaces."""
    policy = make_policy(
        job=limit(messages_per_second=10**6),
        tenants={f"t{i}": Tenant(group="all") for i in range(TENANTS)},
        groups={"all": limit(messages_per_second=10**6)},
        namespaces={name_of(i): Namespace(DEFAULTS) for i in range(1_000)},
        default=Namespace(DEFAULTS),
    )
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    arrivals = arrivals_of(stream, names, 0, 100)
    for flows in (0, 10_000, 100_000, 1_000_000):
        state = with_tokens(remembering(flows, policy), policy, {"": (10**6, 0), "all": (10**6, 0)})
        case = Case("", policy, {})
        label = f"100 messages, {flows:,} namespaces remembered"
        yield timed(f"{label}: decide", lambda: decide(state, arrivals, case), 1_000_000, "ms/batch")  # noqa: B023 - called at once
        block = pack(stored(state), is_compressed=True)
        yield from state_figures(label, state, block)
        if flows:
            yield Figure(f"{label}: state", [len(block) / flows], "bytes/namespace")


def measure_backlog(stream: Stream) -> Iterator[Figure]:
    """Yield what a batch costs a decider with a backlog."""
    policy = make_policy(groups={"all": limit(messages_per_second=10_000)}, default=Namespace(group="all"))
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    arrivals = arrivals_of(stream, names, 0, 10_000)
    for queued in (0, 10_000, 100_000, 1_000_000):
        state = with_tokens(remembering(NAMESPACES, policy, queued), policy, {"all": (10_000 - 1, 0)})
        case = Case("", policy, {})
        label = f"10,000 messages behind {queued:,}, 10,000 admitted"
        yield timed(f"{label}: decide", lambda: decide(state, arrivals, case), 1_000_000, "ms/batch")  # noqa: B023 - called at once
        block = pack(stored(state), is_compressed=True)
        yield from state_figures(label, state, block)
        if queued:
            bare = len(pack(stored(remembering(NAMESPACES, policy)), is_compressed=True))
            yield Figure(f"{label}: state", [(len(block) - bare) / queued], "bytes/row beside its payload")


def state_figures(label: str, state: DeciderState, block: bytes) -> Iterator[Figure]:
    """Yield what it costs to read and to write the state."""
    yield timed(f"{label}: read", lambda: unpack(StoredState, block, ""), 1_000_000, "ms/batch")
    yield timed(f"{label}: write", lambda: pack(stored(state), is_compressed=True), 1_000_000, "ms/batch")


def stored(state: DeciderState) -> StoredState:
    """Return `state` as it is stored, its rows in frames of 1,000 of which the payload is left out."""
    rows = np.arange(len(state.queue))
    return StoredState(
        state, b"", [b""] * -(-len(rows) // 1_000), rows // 1_000, rows % 1_000, PayingTime(NOW_MS, NOW_MS)
    )


MEASURES = {
    "stream": measure_stream,
    "queue": measure_queue,
    "regimes": measure_regimes,
    "flows": measure_flows,
    "backlog": measure_backlog,
    "budgets": measure_budgets,
    "units": measure_units,
    "guarantees": measure_guarantees,
    "spread": measure_spread,
    "profile": measure_profile,
}


def main() -> None:
    """Print what is asked for, or all but the profile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    pa.set_cpu_count(1)
    stream = build_stream()
    print(f"{'':64} {'median':>10} {'least':>10} {'most':>10}")
    found: dict[str, list[Figure]] = {}
    for name in asked.measures or [name for name in MEASURES if name != "profile"]:
        for figure in MEASURES[name](stream):
            print(figure, flush=True)
            found.setdefault(name, []).append(figure)
    save({name: [asdict(figure) for figure in figures] for name, figures in found.items()}, asked.out)


if __name__ == "__main__":
    main()
