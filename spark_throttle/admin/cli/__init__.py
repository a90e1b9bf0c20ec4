"""The command `spark-throttle`: a module for each group of commands.

It may import `admin.tokens` and the layers below `admin`; each command imports what it needs when it runs. Start with
`app`.
"""

from __future__ import annotations

from importlib import import_module


def main() -> None:
    """Run the command line; the entry point `spark-throttle`."""
    import_module("spark_throttle.admin.cli.app").main()
