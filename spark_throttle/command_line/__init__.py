"""The command `spark-throttle`: the commands of `admin.cli`, `serve`, and those that start Spark.

It may import all but `testing`. Start with `app`, then read `simulate`.
"""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Run the command line; the entry point `spark-throttle`."""
    try:
        app = import_module("spark_throttle.command_line.app")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("spark_throttle"):
            raise
        sys.exit(
            f"error: {error.name} is not installed: pip install 'spark-throttle[admin]', the extra of this command"
        )
    app.main()
