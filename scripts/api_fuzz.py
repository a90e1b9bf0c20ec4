"""At least 20,000 requests made from the API's own description, with and without tokens (`make api-fuzz`).

Fails at the first answer that is a server's error or not what the description says, and at the first write without
the right role. The last line of standard output is JSON: requests by role, and answers by status.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path

from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import Author


def main() -> int:
    """Make the requests; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delta", action="store_true", help="over a store in Delta; in memory otherwise")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    from tests.admin.conftest import served_over
    from tests.admin.fuzzing import Tally, fuzz

    tally, turn = Tally(), 0
    with tempfile.TemporaryDirectory() as folder:
        store = DeltaStore.create(f"{folder}/policies") if asked.delta else MemoryStore()
        served = served_over(store, Path(folder))
        served.service.put("resource_group", "gold", {}, Author("fuzz"))
        served.service.put("tenant", "acme", {"resource_group": "gold"}, Author("fuzz"))
        while tally.requests.total() < asked.requests:
            found = fuzz(served, examples=40, start=1000 * asked.seed + turn)
            tally.requests.update(found.requests)
            tally.statuses.update(found.statuses)
            turn += 100
            print(f"{tally.requests.total()} requests", file=sys.stderr, flush=True)
        changes = served.store.revision()
    statuses = {str(int(status)): count for status, count in sorted(tally.statuses.items())}
    answer = {"requests": tally.requests.total(), **tally.requests, "statuses": statuses, "changes": changes}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
