"""The policy that decided a batch, for the process that writes the batch to its sinks: read once, while it stays."""

from __future__ import annotations

from functools import lru_cache

from spark_throttle.control.epochs import read_policy
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory


def decided_policy(directory: Directory, report: UsageReport | None) -> CompiledPolicy | None:
    """Return the policy that decided a batch; `None` if nothing reported, or if the policy's file is gone.

    A file of this name never has another policy: the name is a digest of it.
    """
    if report is None:
        return None
    try:
        return _read(directory.location, report.revision)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=2)
def _read(location: str, revision: str) -> CompiledPolicy:
    policy = read_policy(Directory(location), revision)
    if policy is None:
        raise FileNotFoundError(revision)  # so that a file that comes back is found
    return policy
