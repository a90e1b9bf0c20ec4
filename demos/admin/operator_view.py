"""What an operator does in the demonstration: finds the worst, is alerted, asks what if, gives for a time, takes back.

Each step returns what it found, which `Outcome` of the demonstration judges, and prints it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from demos.admin.alerting import asked, is_installed, prometheus

ROOT: Final = Path(__file__).parents[2]
CROWD: Final = 300
"""Tenants with a group and a quota each."""

WORST: Final = "crowd-289"
"""The one of them whose quota is far below what it sends."""

CROWD_TRAFFIC: Final[dict[str, Any]] = {
    "prefix": "crowd", "namespaces": CROWD, "tenants": CROWD, "messages_per_second": 600, "zipf_exponent": 0.0,
    "bursts": False,
}  # fmt: skip
BULK: Final = 2_000
OLDEST_SECONDS: Final = 10
EXCEPTION_SECONDS: Final = 12


def crowd_policies() -> dict[str, Any]:
    """Return the groups and tenants of the crowd: each may send 5 messages a second, but one only a tenth."""
    names = [f"crowd-{n:02}" for n in range(CROWD)]
    rate = {name: 0.1 if name == WORST else 5 for name in names}
    quota = {name: {"publish": {"messages_per_second": rate[name], "burst_seconds": 5}} for name in names}
    return {"resource_groups": quota, "tenants": {name: {"resource_group": name} for name in names}}


@dataclass(frozen=True, slots=True)
class Rates:
    """What became of a group's messages, per second."""

    admitted: float
    waiting: float
    """How many more wait after each second."""

    def __str__(self) -> str:
        """Return the rates in words."""
        return f"{self.admitted:.0f} admitted a second, and each second {self.waiting:.0f} more wait"

    def is_near(self, other: Rates) -> bool:
        """Return whether as many are admitted, to a tenth; how many wait depends on how many were offered, too."""
        return abs(self.admitted / other.admitted - 1) <= 0.1


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody with a token, the command line and a folder."""

    address: str
    token: str
    store: str
    control: str
    out: Path

    def worst_by_command_line(self) -> str:
        """Return the group that `status` shows first, after showing it."""
        asked_for = ["status", "--control", self.control, "--level", "resource_group", "--limit", "3"]
        self.command(*asked_for)
        found = json.loads(self.command(*asked_for, "--output", "json", is_shown=False))
        return str(found["scopes"][0]["scope"])

    def worst_by_metrics(self) -> str:
        """Return the group whose message has waited the longest, by what Prometheus scrapes."""
        line = re.compile(r"spark_throttle_oldest_waiting_seconds\{(.*)\} (\S+)")  # fmt: skip
        found = [
            (float(value), dict(re.findall(r'(\w+)="([^"]*)"', labels)))
            for labels, value in line.findall(self._read("/metrics"))
        ]
        groups = [(age, labels["scope"]) for age, labels in found if labels["level"] == "resource_group"]
        say(f"/metrics: {len(groups)} of {CROWD + 4} groups have a series; the oldest message is of {max(groups)[1]}")
        return max(groups)[1]

    def alerted(self) -> list[str] | None:
        """Return the groups that the alerts that ship tell of; `None` without Prometheus."""
        if not is_installed():
            say("no prometheus is installed, so no alert is shown; tests/admin/test_alerts.py has them")
            return None
        folder = self.out / "prometheus"
        folder.mkdir()
        target = self.address.removeprefix("http://")
        with prometheus(folder, target, self.token, every_seconds=5, oldest_seconds=OLDEST_SECONDS) as address:
            found: list[Any] = []

            def is_firing() -> bool:
                told = (asked(address, "alerts") or {}).get("alerts", [])
                found[:] = [each for each in told if each["labels"]["alertname"] == "ThrottleMessagesAge"]
                return any(each["labels"]["scope"] == WORST for each in found)

            wait_until(is_firing, 90, f"the alert for {WORST}")
        groups = {each["labels"]["scope"]: each for each in found if each["labels"]["level"] == "resource_group"}
        said = groups[WORST]["annotations"]["summary"]
        say(f"the alert ThrottleMessagesAge, here from {OLDEST_SECONDS} s on, says: {said}")
        return sorted(groups)

    def what_if(self, group: str, rate: int, seconds: int) -> Rates:
        """Return what another rate would have done to the newest traffic of a group."""
        policy = self.call("GET", f"/policies/resource_groups/{group}")["policy"]
        wanted = {**policy, "publish": {**policy["publish"], "messages_per_second": rate}}
        query = {"dry_run": "true", "replay": "demo", "seconds": seconds}
        found = self.call("PUT", f"/policies/resource_groups/{group}", wanted, **query)["what_if"]
        (scope,) = (each for each in found["scopes"] if (each["level"], each["scope"]) == ("resource_group", group))
        told = scope["policy"]
        lasts = (found["end_ms"] - found["first_ms"]) / 1000
        said = Rates(told["admitted_messages"] / lasts, told["waiting_messages"] / lasts)
        say(f"what if {group} had {rate} messages a second? By the last {lasts:.0f} s of traffic: {said}")
        return said

    def happened(self, group: str, since_ms: int, seconds: int) -> Rates:
        """Return what became of a group's messages in a time, by the usage table that the server reads."""
        series = self._series(group, since_ms)
        points = list(zip(series["time_ms"], series["admitted"], series["waiting"], strict=True))
        first = max(at for at, (ms, _, _) in enumerate(points) if ms <= since_ms)
        points = [each for each in points[first:] if each[0] <= since_ms + 1000 * seconds]
        lasts_ms = points[-1][0] - points[0][0]
        admitted = sum((rate or 0) * (ms - before) for (before, _, _), (ms, rate, _) in pairwise(points))
        said = Rates(admitted / lasts_ms, 1000 * (points[-1][2] - points[0][2]) / lasts_ms)
        say(f"{group} in the {lasts_ms / 1000:.0f} s since it has them: {said}")
        return said

    def exception(self, group: str, rate: int) -> int:
        """Give a group another rate for some seconds, and return the time in ms until which it has it."""
        until = int(time.time()) + EXCEPTION_SECONDS  # noqa: TID251 - people say when by the clock
        policy = self.call("GET", f"/policies/resource_groups/{group}")["policy"]
        given = {"until": datetime.fromtimestamp(until, UTC).isoformat(), "reason": "a move",
                 "publish": {"messages_per_second": rate}}  # fmt: skip
        self.call("PUT", f"/policies/resource_groups/{group}", {**policy, "exception": given}, why="for a move")
        self.command("policy", "exceptions", "--store", self.store)
        return 1000 * until

    def quotas_of(self, group: str, since_ms: int) -> list[int]:
        """Return the quotas that a group had since a time, in their order."""
        quotas = [round(each) for each in self._series(group, since_ms)["quota"] if each is not None]
        return [each for at, each in enumerate(quotas) if at == 0 or quotas[at - 1] != each]

    def _series(self, group: str, since_ms: int) -> dict[str, list[Any]]:
        """Return what the usage table has of a group since some time before."""
        seconds = int(time.time() - since_ms / 1000) + 30  # noqa: TID251 - the clock of the job
        found = self.call("GET", "/status/demo/series", level="resource_group", scope=group, seconds=seconds)
        return dict(found)

    def bulk(self) -> tuple[float, float]:
        """Change many namespaces at once and take it back; return the seconds of both."""
        revision = json.loads(self.command("policy", "history", "--store", self.store, "-o", "json", is_shown=False))
        document = json.loads(self.command("policy", "show", "--store", self.store, "-o", "json", is_shown=False))
        names = {f"crowd-{n % CROWD:02}/bulk-{n:04}": {"publish": {"messages_per_second": 150}} for n in range(BULK)}
        document["namespaces"] = {**document.get("namespaces", {}), **names}
        file = self.out / "bulk.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        began = time.monotonic()
        self.command("policy", "apply", str(file), "--store", self.store, "--why", "2,000 namespaces at once")
        applied = time.monotonic() - began
        began = time.monotonic()
        self.command("policy", "rollback", str(revision[0]["revision"]), "--store", self.store, "--yes", is_shown=False)
        back = time.monotonic() - began
        say(f"{BULK:,} namespaces changed in {applied:.1f} s, and taken back in {back:.1f} s, each with its start")
        return applied, back

    def command(self, *words: str, is_shown: bool = True) -> str:
        """Run a command, and return what it prints."""
        if is_shown:
            say(f"$ spark-throttle {' '.join(words)}")
        program = [sys.executable, "-m", "spark_throttle.command_line", *words]
        done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)  # noqa: S603
        if is_shown:
            say(done.stdout.rstrip())
        return done.stdout

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: object) -> Any:  # noqa: ANN401
        """Return the answer of the API."""
        return json.loads(self._read(f"/admin/v2{path}?{urlencode(query)}", method, body))

    def _read(self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> str:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return str(answer.read().decode())


def wait_until(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is so; raise `TimeoutError` after some seconds."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        pause.wait(0.1)


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, file=sys.stderr, flush=True)
