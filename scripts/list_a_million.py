"""A million namespaces in a Delta store, listed page by page through the API: how long a page takes, none missing.

The last line of standard output is JSON; the exit status is 0 if every namespace was listed once and in order.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.store import Author, Change


def main() -> int:
    """Make the store and list it; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--namespaces", type=int, default=1_000_000)
    parser.add_argument("--page", type=int, default=1000)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    from tests.admin.conftest import served_over

    with tempfile.TemporaryDirectory() as folder:
        store = DeltaStore.create(f"{folder}/policies")
        names = [f"tenant-{at % 1000:04d}/ns-{at:07d}" for at in range(asked.namespaces)]
        body = '{"publish":{"messages_per_second":5}}'
        began = time.perf_counter()
        store.commit(
            [Change("namespace", name, body) for name in names], expected_revision=0, author=Author("list"), at_ms=0
        )
        written_seconds = time.perf_counter() - began
        client = served_over(store, Path(folder)).client("viewer")
        found: list[str] = []
        pages: list[float] = []
        after: str | None = ""
        while after is not None:
            began = time.perf_counter()
            answer = client.get("/admin/v2/policies/namespaces", params={"after": after, "limit": asked.page}).json()
            pages.append(time.perf_counter() - began)
            found += [policy["name"] for policy in answer["policies"]]
            after = answer["next"]
            if len(pages) % 100 == 0:
                print(f"{len(found)} listed", file=sys.stderr, flush=True)
    is_right = found == sorted(names)
    pages.sort()
    answer = {
        "namespaces": len(found), "is_right": is_right, "written_seconds": round(written_seconds, 1),
        "pages": len(pages), "seconds": round(sum(pages), 1), "page_ms_median": round(1000 * pages[len(pages) // 2]),
        "page_ms_most": round(1000 * pages[-1]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip
    print(json.dumps(answer))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
