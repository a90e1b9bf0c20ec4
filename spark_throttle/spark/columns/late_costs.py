"""The stream of late costs: what rows really cost, by the identity with which they were reserved.

It is a second source of the throttled query. So Spark's offset log pins which costs a batch brings, and a batch that
is run again brings the same. Of each task only a frame travels: 24 bytes a cost. Who writes a cost writes it after its
row has left, so no batch brings the cost of a row that it admits itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame

from spark_throttle.core.quota import MAX_UNITS
from spark_throttle.core.reservations import LateCosts
from spark_throttle.errors import ConfigurationError
from spark_throttle.record import pack
from spark_throttle.spark.columns.payload_columns import ColumnLike, RowExpressions, as_column, printed
from spark_throttle.spark.columns.stream_plan import volatile_columns
from spark_throttle.spark.rows.frames import FRAME_DDL, FrameKind, frame_batch
from spark_throttle.spark.rows.identities import check_identity, identity_column, identity_words
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

SETTLED_BY: Final = "settled_by "
"""How the names of its expressions begin."""


@dataclass(frozen=True)
class CostStream:
    """A stream of late costs, and its expressions."""

    costs: DataFrame
    identity: ColumnLike
    units: ColumnLike

    @classmethod
    def of(cls, rows: RowExpressions, costs: DataFrame, identity: ColumnLike, units: ColumnLike) -> CostStream:
        """Return a stream that settles rows of a throttle.

        Raises
        ------
        ConfigurationError
            If the throttle reserves no row.
        """
        if rows.reservation is None:
            raise ConfigurationError("settled_by settles what was reserved: give the Throttle a reservation")
        return cls(costs, identity, units)

    def expressions(self) -> dict[str, Column]:
        """Return the expressions by the names that errors and definitions give them."""
        return {f"{SETTLED_BY}identity": as_column(self.identity), f"{SETTLED_BY}units": as_column(self.units)}

    def printed(self) -> dict[str, str]:
        """Return the expressions as a definition holds them."""
        given = self.expressions()
        return dict(zip(given, printed(self.costs, list(given.values())), strict=True))

    def frames(self) -> DataFrame:
        """Return the costs as frames.

        Raises
        ------
        ConfigurationError
            If it is no stream, an expression has a wrong type, or may have another value when a batch is run again.
        """
        if not self.costs.isStreaming:
            raise ConfigurationError("the costs are no streaming DataFrame; read them with spark.readStream")
        given = self.expressions()
        volatile_columns(self.costs, given)
        identity, units = given.values()
        kind = self.costs.select(identity.alias("identity")).schema[0].dataType
        check_identity("the identity of the costs", kind)
        told = self.costs.select(
            identity_column(identity, kind).alias("identity"), units.try_cast("bigint").alias("units")
        )  # fmt: skip
        return told.mapInArrow(cost_frames, FRAME_DDL)


def cost_frames(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the frames of a task's costs."""
    set_loaded_aside()
    told = LateCosts.sum_of([costs_of(batch.column(0), batch.column(1)) for batch in batches if batch.num_rows])
    if len(told) or told.unusable:
        yield frame_batch(FrameKind.COSTS, pack(told, is_compressed=True))


def costs_of(identities: pa.Array, units: pa.Array) -> LateCosts:
    """Return costs; those without an identity, and those that no row can have, are only counted.

    Examples
    --------
    >>> told = costs_of(pa.array([b"a" * 16, None, b"c" * 16], pa.binary()), pa.array([7, 8, -9]))
    >>> told.units.tolist(), told.unusable
    ([7], 2)
    """
    whole = pc.fill_null(units, -1).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(identities.is_valid().to_numpy(zero_copy_only=False) & (whole >= 0) & (whole <= MAX_UNITS))
    return LateCosts(identity_words(identities.take(pa.array(at))), whole[at], len(whole) - len(at))
