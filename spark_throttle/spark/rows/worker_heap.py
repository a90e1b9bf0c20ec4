"""Excludes the modules that a Python worker of Spark has loaded from the garbage collection after every task.

PySpark collects all generations after each task of a worker that it reuses. About 80,000 objects of pandas, pyarrow,
PySpark and this package cost 25 to 30 ms there, as much as the whole work of a task in a small batch. They live as long
as the process, so `gc.freeze` sets them aside.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Final

_PARENT: Final = "pyspark.daemon"
"""The module from which Spark's workers are forked, and which they run."""


@functools.cache
def set_loaded_aside() -> None:
    """Set aside all objects that are loaded; every function that Spark's workers call here calls this first.

    It acts once per process. Outside Spark's workers it does nothing, because the heap belongs to another program.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)  # missing in some notebooks
    if program is not None and program.name == _PARENT:
        gc.freeze()
