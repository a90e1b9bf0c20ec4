"""Whether pandas can be imported: it takes half of a command's time, and only Spark needs it."""

from __future__ import annotations

import sys


class _WithoutPandas:
    """A hack: Arrow imports pandas where it is installed, which no command without Spark needs."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Answer Arrow's import of pandas as if it were not installed."""
        if name == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=name)


def hide_pandas() -> None:
    """Let imports of pandas fail in this process, as if it were not installed."""
    sys.meta_path.insert(0, _WithoutPandas)


def show_pandas() -> None:
    """Let pandas be imported again; called before Arrow is."""
    if _WithoutPandas in sys.meta_path:
        sys.meta_path.remove(_WithoutPandas)
