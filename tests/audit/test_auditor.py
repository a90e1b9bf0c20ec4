"""The auditor finds nothing where the laws are kept, and each fault that is put into the tables; it knows no code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.policy.model import PolicyDocument
from tests.audit.auditor import Audit, audit
from tests.audit.books import Batch, Row
from tests.life.contract import Contracts
from tests.sessions import ROOT

NAMES = ("acme/a", "acme/b", "blue/c")
TURNS = 20
"""Messages that the group earns in a second, and so between two batches."""


def contracts(**quota: Any) -> Contracts:
    """Return what a policy says that gives all namespaces one group."""
    publish = {"messages_per_second": TURNS, "burst_seconds": 2} | quota
    document = {
        "version": 1, "resource_groups": {"gold": {"publish": publish}}, "defaults": {"resource_group": "gold"},
    }  # fmt: skip
    return Contracts(PolicyDocument.model_validate(document))


ONE = contracts()


def books(*served: Sequence[int], offered: Sequence[int] = (TURNS,) * 3, policy: Contracts = ONE) -> list[Batch]:
    """Return batches, a second apart, in each of which namespaces offer as much and get what is told."""
    batches, left, number = list[Batch](), dict[str, list[Row]]((name, []) for name in NAMES), 0
    for at, parts in enumerate(served):
        arrived, admitted = list[Row](), list[Row]()
        for name, count, part in zip(NAMES, offered, parts, strict=True):
            rows = [Row(number + place, name, 1) for place in range(count)]
            number += count
            arrived += rows
            left[name] += rows
            admitted += left[name][:part]
            del left[name][:part]
        batches.append(Batch(at, 1_000 * at, policy, arrived, admitted))
    return batches


# A burst of two seconds in the first batch, and a second's worth in each that follows: ACME's two get half of it.
FAIR = books((11, 10, 20), *[(5, 5, 10)] * 12)
WAITING = {row.id for batch in FAIR for row in batch.arrived} - {row.id for batch in FAIR for row in batch.admitted}


def laws(found: Audit) -> set[str]:
    return {finding.law for finding in found.findings}


def test_a_job_that_keeps_the_laws_is_clean_and_was_compared() -> None:
    found = audit(FAIR, WAITING)
    assert found.findings == []
    assert found.compared > len(FAIR)


def at(number: int, change: Callable[[Batch], Batch]) -> list[Batch]:
    """Return the fair books with one batch changed."""
    return [change(batch) if batch.number == number else batch for batch in FAIR]


def lose(batch: Batch) -> Batch:
    return replace(batch, admitted=batch.admitted[1:])


def double(batch: Batch) -> Batch:
    return replace(batch, admitted=[*batch.admitted, batch.admitted[-1]])


def alter(batch: Batch) -> Batch:
    return replace(batch, admitted=[batch.admitted[0]._replace(size_bytes=2), *batch.admitted[1:]])


def reject_too(batch: Batch) -> Batch:
    return replace(batch, rejected=batch.admitted[:1])


def turn_round(batch: Batch) -> Batch:
    return replace(batch, admitted=[*batch.admitted[1::-1], *batch.admitted[2:]])


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(lose, "L1 L4"), (double, "L1 L2"), (alter, "L1"), (reject_too, "L1"), (turn_round, "L5")],  # one less is a token
)
def test_a_row_that_is_lost_doubled_altered_or_out_of_order_is_found(
    fault: Callable[[Batch], Batch], expected: str
) -> None:
    assert laws(audit(at(6, fault), WAITING)) == {*expected.split()}


def test_a_row_that_waits_and_has_left_is_found() -> None:
    assert laws(audit(FAIR, {*WAITING, FAIR[0].admitted[0].id})) == {"L1"}


def left(batches: Sequence[Batch]) -> set[int]:
    """Return the rows that wait at the end."""
    queue = {row.id for batch in batches for row in batch.arrived}
    return queue - {row.id for batch in batches for row in batch.admitted}


@pytest.mark.parametrize(
    ("batches", "law"),
    [
        (books((11, 10, 20), *[(5, 5, 10)] * 5, (6, 6, 10)), "L2"),
        (books((11, 10, 20), *[(6, 6, 8)] * 12), "L3"),
        (books((11, 10, 20), *[(6, 4, 10)] * 12), "L3"),
        (books((11, 10, 20), *[(4, 4, 8)] * 12), "L4"),
        (books((11, 10, 20), *[(10, 0, 10)] * 12), "age"),
    ],
)
def test_a_division_that_the_policy_does_not_give_is_found(batches: list[Batch], law: str) -> None:
    found = audit(batches, left(batches))
    assert law in laws(found)
    assert laws(found) <= {law, "L3"}  # who starves is behind too


def test_a_limit_that_falls_is_kept_over_the_change_too() -> None:
    """Two seconds at the old rate, and the new one after: the windows go over the change."""
    low = contracts(messages_per_second=TURNS / 10, burst_seconds=20)
    before = books((11, 10, 20), *[(5, 5, 10)] * 5)
    rest = books((11, 10, 20), *[(5, 5, 10)] * 5, *[(0, 1, 1)] * 5, policy=low)[6:]
    assert not audit([*before, *rest], left([*before, *rest])).count("L2")
    rest[3] = replace(rest[3], admitted=[*rest[3].admitted, *rest[3].arrived[:25]])
    assert audit([*before, *rest], left([*before, *rest])).count("L2") == 1


def test_newcomers_who_are_served_first_let_the_one_who_waits_starve() -> None:
    """Each second twenty new names of one tenant send a message, and all of them go before the one who waits."""
    batches, number = list[Batch](), 100
    backlog = [Row(place, "acme/old", 1) for place in range(100)]
    for at_ in range(12):
        new = [Row(number + k, f"acme/new-{number + k}", 1) for k in range(TURNS)]
        number += TURNS
        first = [*backlog[:21]] if at_ == 0 else []
        batches.append(Batch(at_, 1_000 * at_, ONE, [*(backlog if at_ == 0 else ()), *new], [*first, *new]))
    assert "L3" in laws(audit(batches, left(batches)))


def in_hours(batches: Sequence[Batch], length: int, size_bytes: int = 1) -> list[Batch]:
    """Return books of which an hour has so many batches, with larger rows, where nobody who waits has a claim."""

    def sized(rows: Sequence[Row]) -> list[Row]:
        return [row._replace(size_bytes=size_bytes) for row in rows]

    return [
        replace(
            batch, windows=(batch.number // length, 0, 0), held=frozenset(NAMES), arrived=sized(batch.arrived),
            admitted=sized(batch.admitted),
        )
        for batch in batches
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "size_bytes", "served", "findings"),
    [
        ({"messages_per_hour": 45}, 1, [(11, 10, 20), (2, 2, 0), (5, 5, 10), (5, 5, 10)], 0),
        ({"messages_per_hour": 45}, 1, [(11, 10, 20), (2, 2, 1), (5, 5, 10), (5, 5, 10)], 1),
        # Of 50 bytes 60 were used, and 10 are taken off the next hour.
        ({"bytes_per_hour": 50}, 20, [(1, 1, 0), (0, 0, 1), (1, 1, 0), (0, 0, 0)], 0),
        ({"bytes_per_hour": 50}, 20, [(1, 1, 0), (0, 0, 1), (1, 1, 0), (0, 0, 1)], 1),
        ({"bytes_per_hour": 50, "on_excess": "observe"}, 20, [(1, 1, 1)] * 4, 0),
    ],
)
def test_what_is_admitted_beyond_a_budget_is_found(
    budget: dict[str, Any], size_bytes: int, served: list[tuple[int, ...]], findings: int
) -> None:
    batches = in_hours(books(*served, policy=contracts(**budget)), 2, size_bytes)
    found = audit(batches, left(batches))
    assert [finding.law for finding in found.findings] == ["budget"] * findings
    assert found.promised.ended == {(2, "hour")}
    assert found.promised.rows == (0 if "on_excess" in budget else sum(map(sum, served)))


@pytest.mark.parametrize(("turns", "findings"), [((1, 1, 18), 0), ((0, 1, 19), 1)])
def test_who_has_less_than_it_is_guaranteed_is_found(turns: tuple[int, ...], findings: int) -> None:
    claims = {
        "version": 1, "job": {"publish": {"messages_per_second": TURNS, "burst_seconds": 2}},
        "namespaces": {"acme/a": {"publish": {"guaranteed_messages_per_second": 1}}},
    }  # fmt: skip
    batches = books((11, 10, 20), *[turns] * 9, policy=Contracts(PolicyDocument.model_validate(claims)))
    found = audit(batches, left(batches))
    assert [finding.law for finding in found.findings if finding.law != "age"] == ["L9"] * findings
    assert found.promised.compared == len(batches) - 1


def test_what_observes_holds_nobody() -> None:
    observed = books(*[(20, 19, 0)] * 6, policy=contracts(on_excess="observe"))
    assert laws(audit(observed, left(observed))) == {"L4", "age"}


def test_nobody_is_expected_to_be_served_without_tokens() -> None:
    poor = contracts(messages_per_second="0.05")
    batches = books((1, 0, 0), *[(0, 0, 0)] * 9, policy=poor)
    assert audit(batches, left(batches)).findings == []


def test_the_auditor_and_all_that_it_uses_know_of_the_product_how_a_policy_is_written_and_no_more() -> None:
    """Imports for types alone name what a test gives it, and run nothing."""
    seen, left_over = set[Path](), [ROOT / "tests/audit/auditor.py"]
    known = set[str]()
    while left_over:
        path = left_over.pop()
        seen.add(path)
        for name in imported(path):
            if name.startswith("spark_throttle"):
                known.add(name)
            elif (module := ROOT / f"{name.replace('.', '/')}.py").exists() and module not in seen:
                left_over.append(module)
    assert known == {"spark_throttle.policy.model", "spark_throttle.policy.quotas"}
    assert len(seen) > len(list((ROOT / "tests/audit").glob("[!t]*.py")))


def imported(path: Path) -> set[str]:
    """Return the modules that a module imports when it runs."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_types:
            names.add(node.module)
        elif isinstance(node, ast.Import) and id(node) not in for_types:
            names |= {alias.name for alias in node.names}
    return names
