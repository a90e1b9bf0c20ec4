"""The command `spark-throttle`: a module for each group of commands.

It may import `admin.tokens` and the layers below `admin`; each command imports what it needs when it runs. Start with
`app`.
"""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Run the command line; the entry point `spark-throttle`."""
    try:
        app = import_module("spark_throttle.admin.cli.app")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("spark_throttle"):
            raise
        sys.exit(
            f"error: {error.name} is not installed: pip install 'spark-throttle[admin]', the extra of this command"
        )
    app.main()
