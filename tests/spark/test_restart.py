"""A checkpoint goes on only with the sources that it began with."""

from __future__ import annotations

import pytest

from spark_throttle.checkpoint.definition import Definition
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.restart import refuse_other_sources

ALONE = Definition({"namespace": "ns"}, ())
SETTLED = Definition({"namespace": "ns", "settled_by identity": "id", "settled_by units": "cost"}, ())


@pytest.mark.parametrize(
    ("before", "now", "remedy"), [(ALONE, SETTLED, "start with a new checkpoint"), (SETTLED, ALONE, "give it again")]
)
def test_stream_of_costs_neither_comes_to_a_checkpoint_nor_goes(
    before: Definition, now: Definition, remedy: str
) -> None:
    refuse_other_sources(now, now)
    with pytest.raises(ConfigurationError, match=remedy):
        refuse_other_sources(before, now)
