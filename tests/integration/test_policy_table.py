"""Policies in tables of the session's catalog: what SQL changes is in force in the next batch or the one after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.spark.start.policy_table import read_table
from spark_throttle.store.policy_location import PolicyLocation
from tests.integration.streams import Lake
from tests.sessions import ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPEN = """'{"publish": {"messages_per_second": 1000000}}'"""
SHUT = """'{"publish": {"messages_per_second": 0, "on_excess": "reject"}}'"""

DROP = "DROP VIEW IF EXISTS policies; DROP TABLE IF EXISTS policies_of_admins; DROP VIEW IF EXISTS policies_of_t"
CREATE = """
CREATE TABLE policies_of_admins (section STRING, name STRING, body STRING) USING delta;
CREATE VIEW policies_of_t AS SELECT 'tenants' AS section, 't' AS name, :shut AS body;
CREATE VIEW policies AS SELECT * FROM policies_of_admins
UNION ALL SELECT * FROM policies_of_t WHERE section = 'namespaces' AND name LIKE 't/%';
INSERT INTO policies_of_admins VALUES ('queue', NULL, NULL), ('tenants', 't', :open)
"""
"""The view does not show what the tenant wrote of itself."""


@pytest.fixture
def tables(lake: Lake) -> Iterator[Lake]:
    """Yield a lake with a table and a view of policies, and a view of both."""
    run(lake, DROP)
    run(lake, CREATE)
    yield lake
    for query in lake.spark.streams.active:
        query.stop()
    run(lake, DROP)


def run(lake: Lake, statements: str) -> None:
    """Run SQL in the session of the query."""
    for statement in statements.replace(":open", OPEN).replace(":shut", SHUT).split(";"):
        lake.spark.sql(statement)


def test_row_that_sql_changes_is_in_force_within_two_batches_and_a_wrong_one_changes_nothing(tables: Lake) -> None:
    throttle = tables.throttle("table:policies")
    query = tables.writer(throttle).trigger(processingTime="0 seconds").foreachBatch(tables.keep).start()
    problems = []

    def offer(*numbers: int) -> None:
        for number in numbers:
            tables.offer([(number, "t/n", 10)])
            query.processAllAvailable()
        problems.append(throttle.status(query).problem)

    offer(0)
    run(tables, "UPDATE policies_of_admins SET body = :shut WHERE section = 'tenants' AND name = 't'")
    offer(1, 2)
    wrong = """SELECT 'namespaces' AS section, 't/n' AS name, '{"publish": {"rate": 3}}' AS body"""
    run(tables, f"CREATE OR REPLACE VIEW policies_of_t AS {wrong}")
    run(tables, "INSERT INTO policies_of_admins VALUES ('exempt', 't/n', NULL)")
    offer(3, 4)
    run(tables, f"CREATE OR REPLACE VIEW policies_of_t AS {wrong} WHERE false")
    offer(5, 6)
    run(tables, "DROP VIEW policies")
    offer(7, 8)
    query.stop()
    by_the_batch_after_the_change = {1, 5}
    assert set(tables.admitted_ids) - by_the_batch_after_the_change == {0, 6, 7, 8}
    assert set(tables.rejected_ids) - by_the_batch_after_the_change == {2, 3, 4}
    assert [problem is None for problem in problems] == [True, True, False, True, False]
    assert "the policy table policies cannot be applied: namespaces.t/n.publish.rate: unknown key" in str(problems[2])
    assert "cannot read the policy table policies: [TABLE_OR_VIEW_NOT_FOUND]" in str(problems[4])


@pytest.mark.skipif(not ICEBERG, reason="there is no runtime of Iceberg for this Spark")
def test_what_another_process_changes_in_an_iceberg_table_is_seen(spark: SparkSession) -> None:
    """Its catalog keeps a table for as long as somebody reads it."""
    other, table = spark.newSession(), PolicyLocation.parse("table:lake.db.policies")
    try:
        other.sql("CREATE TABLE lake.db.policies (section STRING, name STRING, body STRING) USING iceberg")
        for number in range(3):
            row = other.createDataFrame([("exempt", f"ops/{number}")], "section string, name string")
            row.selectExpr("*", "CAST(NULL AS string) AS body").write.insertInto("lake.db.policies")
            rows = read_table(spark, table).rows
            assert rows is not None
            assert len(rows.rows) == number + 1
    finally:
        other.sql("DROP TABLE lake.db.policies")


def test_query_does_not_start_on_a_table_that_it_cannot_read_or_apply(tables: Lake) -> None:
    tables.offer([(0, "t/n", 10)])
    run(tables, """INSERT INTO policies_of_admins VALUES ('job', NULL, '{"newer": 1}')""")
    wrong: dict[str, tuple[type[Exception], str]] = {
        "nowhere.policies": (ConfigurationError, "the policy table nowhere.policies cannot be read: .*NOT_FOUND"),
        "policies_of_admins": (PolicyError, r"job\.newer: unknown key"),
    }
    for table, (error, said) in wrong.items():
        writer = tables.writer(tables.throttle(f"table:{table}")).foreachBatch(tables.keep)
        with pytest.raises(error, match=said):
            writer.start()
    with pytest.raises(ConfigurationError, match="read beside each batch, which apply does not see"):
        tables.throttle("table:policies").apply(tables.events(), control_path=tables.path("control"))
    assert not tables.spark.streams.active
    assert not tables.control.exists()
