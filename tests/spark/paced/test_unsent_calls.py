"""Calls that are kept have the same rows, the same bytes and the same keys, whatever else is kept with them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.paced.http_sender import encoded
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.sending import Parcel
from spark_throttle.spark.paced.unsent_calls import (
    by_namespace,
    count_rows,
    parcels_of_table,
    rows_by_namespace,
    table_in,
    tables_of,
)

SCHEMAS = [
    pa.schema([("id", pa.int64())]),
    pa.schema([("id", pa.int64()), ("more", pa.string())]),
    pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.struct([("x", pa.float64())]))]),
]


def parcel(namespace: str, batch: int, place: int, schema: int, rows: int) -> Parcel:
    values: dict[str, Any] = {"more": "m", "at": 1_760_000_000_000_000 + place, "value": {"x": 0.1}}
    found = [{"id": place + at, **values} for at in range(rows)]
    table = pa.Table.from_pylist(found, schema=SCHEMAS[schema])
    return Parcel(table.slice(0), IdempotencyKey("q", batch, "i", namespace, place), 1)


FLOWS = st.dictionaries(
    st.sampled_from(["a/1", "a/2", "ü/%", ""]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=5),
)


@pytest.mark.slow
@given(FLOWS)
def test_kept_calls_come_back_with_the_same_keys_and_bytes_in_their_order(flows: Any) -> None:
    made = {
        name: [parcel(name, batch, 10 * at, schema, rows) for at, (batch, schema, rows) in enumerate(calls)]
        for name, calls in flows.items()
    }
    tables = tables_of([each for parcels in made.values() for each in parcels])
    assert count_rows(tables) == sum(each.rows.num_rows for parcels in made.values() for each in parcels)
    found = {
        name: [each for content in contents for each in parcels_of_table(content, 5)]
        for name, contents in by_namespace(tables).items()
    }
    assert shown(found) == shown(made)
    assert all(each.takes_ns == 5 * each.rows.num_rows for parcels in found.values() for each in parcels)


def shown(flows: dict[str, list[Parcel]]) -> dict[str, list[tuple[str, bytes]]]:
    return {
        name: [(each.key.text, encoded(each.rows.to_pylist())) for each in parcels] for name, parcels in flows.items()
    }


def test_kept_calls_are_read_and_counted_as_one_piece_however_many_they_are() -> None:
    made = [parcel(f"a/{number}", 1, 0, 0, 1 + number % 2) for number in range(300)]
    (table,) = tables_of(made)
    assert table_in(table).column("id").num_chunks == pa.ipc.open_stream(table).read_all().column("id").num_chunks == 1
    assert rows_by_namespace([table, table]) == {f"a/{number}": 2 + 2 * (number % 2) for number in range(300)}
