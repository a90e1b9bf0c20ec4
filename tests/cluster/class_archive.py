"""Makes the archive of classes with which drivers and executors of the cluster bench start.

Six executors start whenever a driver was killed, on few cores. Runs the bench's job in one JVM, over the store, and
leaves all classes that the JVM has loaded by then. The JVMs of a cluster have other jars in their class path than those
of tests, so they cannot use the tests' archive.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.class_archive import archiving_to, end_session
from tests.cluster.job import CLASS_ARCHIVE, open_session, start
from tests.cluster.store import running_store
from tests.crash.policies import AMPLE, text_of
from tests.crash.workload import add_files
from tests.sessions import ROOT


def main() -> int:
    """Make it anew."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder, running_store(Path(folder) / "store", seed=1) as store:
        root = Path(folder)
        os.environ.update(store.environment())
        (root / "store.json").write_text(json.dumps(store.settings()))
        store.write("policies.yaml", text_of(AMPLE).encode())
        made = root / CLASS_ARCHIVE.name
        spark = open_session(root, "local[2]", jvm_options=archiving_to(made))
        add_files(root, 4)
        start(spark, root, is_shared=False).awaitTermination()
        end_session(spark)
        CLASS_ARCHIVE.write_bytes(made.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
