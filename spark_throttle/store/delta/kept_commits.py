"""Commits of a Delta table on a disk that outlast a power cut.

delta-rs moves a file into place whole, so a process that is killed leaves none half-written. When the disk has it, it
leaves to the system, which may take half a minute: a machine that stops before has an empty file in the place of a
commit, and with it no table that anybody can read.
"""

from __future__ import annotations

import json
from urllib.parse import unquote

from spark_throttle.store.delta.log_damage import named_commit
from spark_throttle.store.delta.table_files import TableFiles


def keep_commit(files: TableFiles, version: int) -> None:
    """Have the disk keep the commit of one version of a table, and the files that it added.

    An object store keeps what it has acknowledged.

    Raises
    ------
    OSError
        If the disk does not say that it does.
    """
    if not files.is_on_disk:
        return
    commit = named_commit(version)
    actions = [json.loads(line) for line in (files.read(commit) or b"").splitlines()]
    files.keep([*(unquote(action["add"]["path"]) for action in actions if "add" in action), commit])
