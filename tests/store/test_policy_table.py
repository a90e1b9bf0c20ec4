"""The rows of a policy table, as a job's driver leaves them and the plan of its batches follows them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spark_throttle.errors import ConfigurationError, PolicyError, ThrottleError
from spark_throttle.files.storage import Directory
from spark_throttle.store.policy_location import PolicyLocation, load_policies, open_store
from spark_throttle.store.policy_table import NAME, FollowedTable, TableRows, leave_rows

Row = tuple[str | None, str | None, str | None]
FIVE: Row = ("job", None, '{"publish": {"messages_per_second": 5}}')
TEN: Row = ("job", None, '{"publish": {"messages_per_second": 10}}')


def table(*rows: Row, run: str = "run 1") -> TableRows:
    return TableRows.of("main.ops.policies", run, rows)


def rate(followed: FollowedTable) -> int:
    return int(followed.current().document.job.publish.messages_per_second or -1)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path))


@pytest.fixture
def followed(directory: Directory) -> FollowedTable:
    return FollowedTable(directory, table(FIVE))


def test_rows_are_the_entries_of_a_document() -> None:
    rows = table(
        ("namespaces", "acme/*", '{"resource_group": "gold"}'),
        ("resource_groups", "gold", '{"publish": {"messages_per_second": 0.2}}'),
        ("exempt", "ops/*", None),
        ("queue", "", '{"messages": 7}'),
        ("defaults", None, None),
    )
    assert rows.document() == load_policies(
        "{resource_groups: {gold: {publish: {messages_per_second: 0.2}}}, exempt: [ops/*], queue: {messages: 7}, "
        "namespaces: {acme/*: {resource_group: gold}}}"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("tenant", "acme", "{}")], "tenant: is no section of a policy; did you mean tenants"),
        ([(None, "acme", "{}")], "'': is no section"),
        ([("job", "all", "{}")], "job: the row has the name 'all', and this section has one entry"),
        ([("tenants", "", "{}")], "tenants: the row has no name"),
        ([("tenants", "acme", "{}"), ("tenants", "acme", None)], "tenants.acme: the table has two rows"),
        ([("tenants", "acme", '{"publish": {"weight": 0}}')], "tenants.acme.publish.weight: 0 is less than 1"),
        ([("tenants", "acme", '{"resource_group": "gold"}')], "gold"),
        ([("tenants", "acme", "[5]")], "tenants.acme"),
        ([("tenants", "acme", "{publish")], "the tenant 'acme' of the policy table main.ops.policies is damaged"),
    ],
)
def test_rows_that_cannot_be_applied_are_told_by_their_place(rows: list[Row], said: str) -> None:
    with pytest.raises(ThrottleError, match=said):
        table(*rows).document()


def test_table_is_as_the_driver_found_it_until_it_finds_another(directory: Directory, followed: FollowedTable) -> None:
    first = followed.current()
    leave_rows(directory, table(FIVE))
    assert followed.current().document is not None
    assert rate(followed) == 5
    leave_rows(directory, table(TEN))
    second = followed.current()
    assert rate(followed) == 10
    assert followed.current() is second
    assert second.revision != first.revision
    assert second.problem is None


def test_rows_in_another_order_are_the_same_file(directory: Directory, tmp_path: Path) -> None:
    other: Row = ("tenants", "acme", "{}")
    leave_rows(directory, table(FIVE, other))
    before = (tmp_path / NAME).stat().st_ino
    leave_rows(directory, table(other, FIVE))
    assert (tmp_path / NAME).stat().st_ino == before


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (table(FIVE, FIVE), "the policy table main.ops.policies cannot be applied: job: the table has two rows"),
        (
            TableRows("t", "run 1", problem="no SELECT on t"),
            "cannot read the policy table main.ops.policies: no SELECT",
        ),
    ],
)
def test_last_good_policies_stay_in_force_and_the_problem_is_told_once(
    directory: Directory, followed: FollowedTable, caplog: pytest.LogCaptureFixture, found: TableRows, said: str
) -> None:
    followed.current()
    leave_rows(directory, found)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert rate(followed) == 5
            assert said in str(followed.current().problem)
    assert caplog.text.count("stays in force") == 1
    leave_rows(directory, table(TEN))
    assert rate(followed) == 10
    assert followed.current().problem is None


def test_file_that_is_damaged_changes_nothing(tmp_path: Path, followed: FollowedTable) -> None:
    followed.current()
    (tmp_path / NAME).write_text("{")
    assert rate(followed) == 5
    assert "is damaged" in str(followed.current().problem)


def test_what_another_run_left_is_not_read(directory: Directory, followed: FollowedTable) -> None:
    leave_rows(directory, table(TEN, run="run 0"))
    assert rate(followed) == 5
    leave_rows(directory, table(("job", None, '{"publish": {"messages_per_second": 7}}')))
    assert rate(followed) == 7
    leave_rows(directory, table(TEN, run="run 0"))
    assert rate(followed) == 7


def test_query_does_not_begin_on_rows_that_cannot_be_applied(directory: Directory) -> None:
    with pytest.raises(PolicyError, match="two rows or more"):
        FollowedTable(directory, table(FIVE, FIVE)).current()


def test_table_travels_to_the_plan_with_its_rows() -> None:
    parsed = PolicyLocation.parse("table:main.ops.policies")
    assert (parsed.kind, parsed.place) == ("table", "main.ops.policies")
    read = PolicyLocation("table", "main.ops.policies", table(FIVE))
    options = {name.lower(): value for name, value in read.to_options().items()}
    assert PolicyLocation.from_options(options) == read
    assert read.load().job.publish.messages_per_second == 5


def test_nothing_but_a_query_reads_a_table() -> None:
    with pytest.raises(ConfigurationError, match="through the catalog of a Spark session"):
        load_policies("table:main.ops.policies")
    with pytest.raises(ConfigurationError, match="change its rows by SQL"):
        open_store("table:main.ops.policies")
