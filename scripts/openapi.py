"""The API's description is written to a file: ``make openapi`` does it, or ``python scripts/openapi.py FILE``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from spark_throttle.admin.api.app import make_app
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.store.memory_store import MemoryStore


def description() -> str:
    """Return the OpenAPI description as JSON with sorted keys."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenFile(Path(folder) / "tokens.json", clock_ms=lambda: 0)
        app = make_app(MemoryStore(), tokens, JobWatch({}), clock_ms=lambda: 0)
        return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(description())
