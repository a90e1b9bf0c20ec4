"""What a Python worker of Spark's has loaded is not searched for garbage after every task.

PySpark collects all generations behind each task of a worker that it keeps. Some 80,000 objects of pandas, pyarrow,
PySpark and this package cost 25 to 30 ms there, as much as all that a task of a small batch does. They live as long as
the process: `gc.freeze` sets them aside.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Final

_PARENT: Final = "pyspark.daemon"
"""The module that Spark's workers are forked from, and run."""


@functools.cache
def set_loaded_aside() -> None:
    """Set aside what is loaded; what Spark's workers call of ours calls it first, and it acts once a process.

    Outside Spark's workers it does nothing: another process's heap is its owner's.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)  # a notebook's may have none
    if program is not None and program.name == _PARENT:
        gc.freeze()
