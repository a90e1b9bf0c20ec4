"""The throttle's job as a Python task of Databricks: `run_throttle.py <repository> --conf … --set …`.

A task is run with its own folder on Python's path, and its file has no `__file__`, so the bundle says where the
repository's files are. The other arguments are those of `jobs/throttle_stream.py`.
"""

import sys

sys.path.insert(0, sys.argv[1])

from jobs.throttle_stream import main

status = main(sys.argv[2:])
if status:  # Databricks takes any SystemExit for a failure, of 0 too
    raise SystemExit(status)
