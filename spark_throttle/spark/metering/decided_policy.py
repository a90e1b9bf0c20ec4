"""The policy that decided a batch, for the process that writes the batch to its sinks: read once, while it stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory
from spark_throttle.record import unpack


def decided_policy(directory: Directory, reports: Sequence[UsageReport]) -> CompiledPolicy | None:
    """Return the policy that decided a batch; `None` if nothing reported, or if the policy's file is gone.

    A file of this name never has another policy: the name is a digest of it.
    """
    if not reports:
        return None
    try:
        return _read(directory.location, reports[0].revision)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=2)
def _read(location: str, revision: str) -> CompiledPolicy:
    path = f"policies/{revision}"
    content = Directory(location).read(path)
    if content is None:
        raise FileNotFoundError(path)  # so that a file that comes back is found
    return unpack(CompiledPolicy, content, f"the policy revision {path}")
