"""Where a benchmark leaves its numbers for `make bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def save(numbers: Any, out: Path | None) -> None:
    """Write numbers as JSON, if a file was asked for."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(numbers, indent=1))
