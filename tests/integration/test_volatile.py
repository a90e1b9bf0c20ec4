"""What has another value at the next attempt at a batch decides nothing: it is refused by name, or left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.columns.stream_plan import volatile_columns
from tests.integration.streams import Lake, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

THREE = policies(namespaces={"t/n": publish(messages_per_second=0.002, burst_seconds=1000)})
"""Three messages at once (two, and one into debt), and hours for the rest."""

VOLATILE = [
    ("rand()", "rand()"), ("rand(42)", "rand()"), ("randn(1)", "randn()"), ("random()", "rand()"),
    ("concat(ns, uuid())", "uuid()"), ("shuffle(array(id, size))[0]", "shuffle()"), ("uniform(1, 9)", "uniform()"),
    ("randstr(5)", "randstr()"), ("monotonically_increasing_id()", "monotonically_increasing_id()"),
    ("spark_partition_id()", "spark_partition_id()"), ("transform(array(id), x -> x + rand())[0]", "rand()"),
    ("java_method('java.util.UUID', 'randomUUID')", "java_method()"),
    ("now()", "now()"), ("date_format(now(), 'H')", "now()"), ("current_time()", "current_time()"),
    ("(select now())", "now()"), ("aes_encrypt(ns, '0123456789abcdef')", "aes_encrypt()"),
    ("base64(aes_encrypt(ns, '0123456789abcdef', 'CBC'))", "aes_encrypt()"),
]  # fmt: skip
LASTING = [
    "current_timestamp()", "current_date()", "localtimestamp()", "unix_timestamp()", "input_file_name()",
    "_metadata.file_path", "concat('t/', id)", "transform(array(id), x -> x + 1)[0]", "(select max(id) from range(3))",
    "aes_encrypt(ns, '0123456789abcdef', 'ECB')",
    "aes_encrypt(ns, '0123456789abcdef', 'GCM', 'DEFAULT', unhex('000102030405060708090a0b'))",
]  # fmt: skip


@pytest.mark.parametrize(("expression", "function"), VOLATILE, ids=[expression for expression, _ in VOLATILE])
def test_expression_with_another_value_at_the_next_attempt_is_refused_by_name(
    lake: Lake, expression: str, function: str
) -> None:
    arguments: list[tuple[str, dict[str, Any]]] = [
        ("namespace", {"namespace": f"string({expression})"}),
        ("size", {"size": f"length(string({expression}))"}),
        ("order_by[1]", {"order_by": ["id", F.expr(expression)]}),
    ]
    argument, setting = arguments[len(expression) % 3]
    with pytest.raises(ConfigurationError) as refused:
        lake.throttle({}, **setting).apply(lake.events(), control_path=lake.path("control"))
    assert str(refused.value).startswith(argument)
    assert f" {function}, which has another value when a batch is run again" in str(refused.value)


@pytest.mark.parametrize("expression", LASTING)
def test_expression_that_lasts_is_taken(lake: Lake, expression: str) -> None:
    assert volatile_columns(lake.events(), {"namespace": F.expr(expression)}) == frozenset()


def test_expression_of_a_column_that_is_not_there_is_refused_in_one_line_that_names_its_argument(lake: Lake) -> None:
    expressions = {"namespace": F.col("ns"), "size": F.expr("length(bdy)"), "order_by[0]": F.col("id")}
    with pytest.raises(ConfigurationError, match=r"^Spark cannot use size: .*`bdy` cannot be resolved") as refused:
        volatile_columns(lake.events(), expressions)
    assert len(str(refused.value).splitlines()) == 1
    assert "__throttle" not in str(refused.value)  # Spark suggests the columns that there are


def test_python_function_that_is_marked_nondeterministic_is_refused(lake: Lake) -> None:
    draw = F.udf(lambda row_id: f"t/{row_id}", "string")
    assert volatile_columns(lake.events(), {"namespace": draw("id")}) == frozenset()
    with pytest.raises(ConfigurationError, match=r"^namespace has <lambda>\(id\), which has another value"):
        lake.throttle({}, namespace=draw.asNondeterministic()("id")).write_stream(lake.events()).format("noop").start()


def test_python_function_with_the_name_of_a_volatile_one_is_taken(lake: Lake) -> None:
    functions = [lambda row_id: f"t/{row_id}"]
    functions[0].__name__ = "shuffle"
    shuffle = F.udf(functions[0], "string")
    events = lake.events().withColumn("mixed", shuffle("id"))
    assert volatile_columns(events, {"namespace": F.col("mixed"), "size": shuffle("id")}) == frozenset()


MADE = {
    "the column itself": lambda events: events.withColumn("made", F.expr("string(uuid())")),
    "a column of a column": lambda events: (
        events.withColumn("u", F.expr("uuid()")).withColumn("v", F.expr("concat(u, ns)")).withColumn("made", F.col("v"))
    ),
    "one of many columns": lambda events: events.select(
        "*", *(F.lit(n).alias(f"c{n}") for n in range(60)), F.expr("uuid() AS made"), F.lit("z").alias("z")
    ),
    "the first branch of a union": lambda events: events.withColumn("made", F.expr("uuid()")).unionByName(
        events.withColumn("made", F.lit("t/n"))
    ),
    "the second branch of a union": lambda events: events.withColumn("made", F.lit("t/n")).unionByName(
        events.withColumn("made", F.expr("uuid()"))
    ),
    "behind a watermark": lambda events: (
        events.withColumn("at", F.expr("timestamp_seconds(rand() * 9)"))
        .withWatermark("at", "1 second")
        .withColumn("made", F.expr("string(at)"))
    ),
    "out of an array": lambda events: events.select("*", F.explode(F.expr("array(uuid())")).alias("made")),
    "by a subquery": lambda events: events.withColumn("made", F.expr("(select uuid())")),
    "behind dropDuplicates": lambda events: events.withColumn("made", F.expr("uuid()")).dropDuplicates(["id"]),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_column_that_the_stream_makes_anew_is_refused_where_it_decides(lake: Lake, made: Any) -> None:
    events = made(lake.events())
    with pytest.raises(ConfigurationError, match=r"^order_by\[0\] depends on (uuid|rand)\(\), which has another value"):
        volatile_columns(events, {"namespace": F.col("ns"), "order_by[0]": F.upper("made")})
    assert "made" in volatile_columns(events, {"namespace": F.col("ns"), "order_by[0]": F.col("id")})


def test_stream_that_draws_its_rows_is_refused(lake: Lake) -> None:
    """SPARK-23207: rows that are others when a task is tried again."""
    with pytest.raises(ConfigurationError, match=r"^the stream chooses its rows by rand\(\), which has another value"):
        lake.throttle({}).write_stream(lake.events().where("rand() < 0.5")).format("noop").start()


def test_printing_of_plans_is_left_as_it_was(lake: Lake) -> None:
    conf, name = lake.spark.conf, "spark.sql.debug.maxToStringFields"
    before = conf.get(name)
    volatile_columns(lake.events(), {})
    assert conf.get(name) == before
    conf.set(name, "7")
    try:
        volatile_columns(lake.events(), {})
        assert conf.get(name) == "7"
    finally:
        conf.unset(name)


def test_column_that_is_made_anew_decides_neither_ties_nor_sizes_and_the_time_of_the_batch_is_not_made_anew(
    lake: Lake,
) -> None:
    """Without an order, rows are put in order by a hash of the row: what is drawn anew has no part in it.

    Of the times, Spark gives some again at the next attempt and some not, on which the refusals stand.
    """
    lake.offer((row_id, "t/n", 10) for row_id in range(12))
    times = ["current_timestamp()", "localtimestamp()", "now()", "current_time()"]
    found: list[tuple[list[int], set[str], list[str]]] = []

    def keep(rows: DataFrame, batch: int) -> None:
        taken = rows.collect()
        told = [str(taken[0][time]) for time in times] if taken else []
        found.append((sorted(row["id"] for row in taken), {row["drawn"] for row in taken}, told))
        if batch == 0 and len(found) == 1:
            raise OSError("the disk is full")

    for _ in range(2):
        events = lake.events().withColumn("drawn", F.expr("repeat('x', int(rand() * 1000))"))
        events = events.select("*", *(F.expr(f"string({time})").alias(time) for time in times))
        throttle = lake.throttle(THREE, order_by=None, size=None)
        writer = throttle.write_stream(events).option("checkpointLocation", lake.checkpoint).foreachBatch(keep)
        query = writer.start()
        try:
            query.processAllAvailable()
        except StreamingQueryException:
            assert len(found) == 1
        finally:
            query.stop()
    (first, drawn, told), (again, drawn_anew, told_again), *_ = found
    assert drawn != drawn_anew
    assert len(first) == 3
    assert again == first
    assert [one == other for one, other in zip(told, told_again, strict=True)] == [True, True, False, False]
