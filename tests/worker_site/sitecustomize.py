"""What a Python process of a test's Spark does before all else: it takes PySpark from the environment.

Spark puts its archive `pyspark.zip` before all other places of a worker's path. An archive holds no compiled modules,
so each process would compile PySpark anew, for half a CPU second; the environment holds the same modules compiled.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

_OTHERS = [place for place in sys.path if not place.endswith(("/python/lib/pyspark.zip", "-src.zip"))]
if PathFinder.find_spec("pyspark", _OTHERS) is not None:
    sys.path[:] = _OTHERS
