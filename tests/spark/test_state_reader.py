"""The reader of waiting rows refuses a path that Spark cannot read, before it reads a state."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.state_reader import _operator


def test_checkpoint_whose_path_spark_misreads_is_refused_before_spark_reads_it() -> None:
    for path in ("/lake/my orders", "/lake/a%b", "/lake/[x]", "/lake/a#b"):
        with pytest.raises(ConfigurationError, match="move it to a path without"):
            _operator(cast("Any", None), path)
