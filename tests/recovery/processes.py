"""A job in processes of its own, and what it takes to kill all of them, or one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.sessions import ROOT

PATIENCE_SECONDS: Final = 300


class Job:
    """One run of a module, in a session of its own, with all that it starts."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        self.is_wounded = False
        """Whether one of its processes was killed, so that it may end with an error."""
        command = [sys.executable, "-m", module, *arguments]
        search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": search},
            )  # fmt: skip

    def wait_for(self, path: Path, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Return whether the run made a file; it may end without."""
        found = self.comes_to(path, patience_seconds)
        assert found or self.ends_within(0), f"no {path} within {patience_seconds} s:\n{self.tail()}"
        return found

    def comes_to(self, path: Path, patience_seconds: float) -> bool:
        """Return whether the run made a file in that time; it may end without, or take longer."""
        deadline = time.monotonic() + patience_seconds
        while not path.exists() and time.monotonic() < deadline:
            if self.ends_within(0.02):
                assert self.is_wounded or self.process.returncode == 0, self.tail()
                break
        return path.exists()

    def goes_on_to(self, path: Path, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Return whether the run made a file; it may end without, in whatever way."""
        self.is_wounded = True
        found = self.wait_for(path, patience_seconds)
        self.is_wounded = False
        return found

    def ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            return True
        return False

    def finish(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the run has drained everything."""
        ended = self.ends_within(patience_seconds)
        self.kill()
        assert ended, f"the job did not end within {patience_seconds} s:\n{self.tail()}"
        assert self.process.returncode == 0, self.tail()

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the run's session."""
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all processes of the run's session. Python's workers have a process group of their own."""
        while members := session_members(self.process.pid):
            for pid in members:
                kill_process(pid)
            self.ends_within(0.02)
        self.process.wait()

    def members(self, word: str) -> list[int]:
        """Return the processes of the run, the first excepted, whose command line has a word; oldest first.

        Processes that are forked (`tests.forked_python`) have that word for a name; who asked for them is none.
        """
        found = []
        for pid in sorted(session_members(self.process.pid)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                command = Path(f"/proc/{pid}/cmdline").read_text()
                is_meant = word in command and "forked_python" not in command
                is_meant |= Path(f"/proc/{pid}/comm").read_text().strip() == word
                if pid != self.process.pid and is_meant:
                    found.append(pid)
        return found

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def kill_process(pid: int) -> None:
    """Kill one process; one that has ended by itself is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cpu_seconds_of(session: int) -> float:
    """Return the CPU time of the living processes of a session, and of those of their children that have ended."""
    found = 0.0
    for pid in session_members(session):
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


def session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # pid (name) state parent group session …; a name may hold anything.
            state, _parent, _group, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found
