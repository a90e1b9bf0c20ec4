"""Strangers and valid callers at once, over real sockets, through nginx as docs/admin.md sets it up (`make api-load`).

Strangers open connections that stay silent, and slow ones, which send headers or a body a byte at a time or do not take
their answers; whoever is cut off comes back after a second. Meanwhile valid callers read and change policies at a set
rate. Strangers and callers have an address each, for nginx bounds what one address may do. With `--direct` there is no
nginx. Latency counts from the moment at which a request was due, so a stalled client hides nothing.

The last line of standard output is JSON: valid requests, those that were answered (200, at the first attempt), the 99th
percentile of their latency, and the server's memory over time, in MiB. The exit status is 0 if every valid request was
answered, if that percentile is below a second, and if the memory at the end is what it was after the first third.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from spark_throttle.admin.tokens import TokenFile
from tests.admin.proxy_process import nginx_before
from tests.admin.raw_http import request
from tests.admin.server_process import server_process
from tests.benchmarks.api_strangers import OPENED_PER_SECOND, besiege

CALLERS: Final = 20
LOOKS: Final = 30
"""How often the server's memory is looked at."""

MOST_P99_MS: Final = 1000
MOST_GROWTH_RATIO: Final = 1.1


@dataclass
class Tally:
    """What was asked and answered."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    server_mib: list[int] = field(default_factory=list)


class Callers:
    """Valid callers of one server.

    Parameters
    ----------
    tokens
        Of callers; the first is of an administrator, and the others may only read.
    seed
        Of the callers' times.
    """

    def __init__(self, port: int, tokens: list[str], *, seconds: float, seed: int) -> None:
        self.tally = Tally()
        self._port = port
        self._tokens = tokens
        self._seconds = seconds
        self._random = random.Random(seed)

    async def run(self, process: psutil.Process, *, per_second: int) -> None:
        """Call for the set time."""
        looking = asyncio.create_task(self._look(process))
        await asyncio.gather(*(self._caller(at, per_second / CALLERS) for at in range(CALLERS)))
        await looking

    async def _look(self, process: psutil.Process) -> None:
        for _ in range(LOOKS):
            self.tally.server_mib.append(process.memory_info().rss >> 20)
            await asyncio.sleep(self._seconds / LOOKS)

    # ---- callers

    async def _caller(self, number: int, per_second: float) -> None:
        """Make requests at set times: every other caller on one connection, the rest on a new one each."""
        began = time.perf_counter()
        due = self._random.random() / per_second
        tasks = []
        held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        lock = asyncio.Lock()
        for at in itertools.count():
            if due > self._seconds:
                break
            await asyncio.sleep(max(0, began + due - time.perf_counter()))
            sent = self._request(number, at)
            kept = (held, lock) if number % 2 else None
            tasks.append(asyncio.create_task(self._call(number, sent, began + due, kept)))
            due += 1 / per_second
        await asyncio.gather(*tasks)
        for _, writer in held:
            writer.close()

    def _request(self, number: int, at: int) -> bytes:
        if number == 0 and at % 5 == 0:  # some changes
            body = b'{"publishRateInMsgs": %d}' % (at + 1)
            line = f"PUT /admin/v2/resourcegroup/load-{at % 50} HTTP/1.1"
            return (
                request(self._tokens[0], line, f"Content-Length: {len(body)}", "Content-Type: application/json") + body
            )
        path = ("/admin/v2/caller", "/admin/v2/resourcegroup", "/admin/v2/status", "/admin/v2/history")[at % 4]
        return request(self._tokens[number], f"GET {path} HTTP/1.1")

    async def _connected(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=(f"127.1.0.{1 + number}", 0))

    async def _call(
        self,
        number: int,
        sent: bytes,
        due: float,
        kept: tuple[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], asyncio.Lock] | None,
    ) -> None:
        try:
            async with asyncio.timeout(30):
                if kept is None:
                    reader, writer = await self._connected(number)
                    status = await _asked(reader, writer, sent)
                    writer.close()
                else:
                    held, lock = kept
                    async with lock:
                        if not held:
                            held.append(await self._connected(number))
                        status = await _asked(*held[0], sent)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            status = type(error).__name__
            if kept is not None:
                kept[0].clear()
        self.tally.statuses[status] += 1
        self.tally.latencies_ms.append(1000 * (time.perf_counter() - due))


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> str:
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            await reader.readexactly(int(value))
    return head.split()[1].decode()


def main() -> int:
    """Run the load; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="of calls, at most 600")
    parser.add_argument("--silent", type=int, default=2000, help="connections that send nothing, at most 8000")
    parser.add_argument("--slow", type=int, default=1000, help="slow connections, at most 8000")
    parser.add_argument("--per-second", type=int, default=200, help="requests of valid callers, at most 1000")
    parser.add_argument("--direct", action="store_true", help="without nginx in front of the server")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if not (asked.seconds <= 600 and max(asked.silent, asked.slow) <= 8000 and 0 < asked.per_second <= 1000):
        parser.error("out of bounds; --help has them")
    spawning = multiprocessing.get_context("spawn")
    is_over, told = spawning.Event(), spawning.Queue()
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenFile(Path(folder) / "tokens.json", clock_ms=lambda: 0)
        texts = [tokens.create(f"caller-{at}", "admin" if at == 0 else "viewer") for at in range(CALLERS)]
        half = tokens.create("half", "admin")
        with ExitStack() as stack:
            server = stack.enter_context(server_process(Path(folder), tokens, "--proxy", "127.0.0.1"))
            port = server.port if asked.direct else stack.enter_context(_nginx(server.port, Path(folder)))
            process = psutil.Process(server.process.pid)
            counts = (asked.silent, asked.slow)
            arguments = (port, half, counts, asked.seed, is_over, told)
            strangers = spawning.Process(target=besiege, args=arguments, daemon=True)
            strangers.start()
            time.sleep(1 + sum(counts) / OPENED_PER_SECOND)  # noqa: TID251 - until all are there
            callers = Callers(port, texts, seconds=asked.seconds, seed=asked.seed)
            asyncio.run(callers.run(process, per_second=asked.per_second))
            is_over.set()
            opened = told.get(timeout=30)
            cpu_seconds = sum(process.cpu_times()[:2])
    return _report(callers.tally, opened, cpu_seconds)


def _nginx(port: int, folder: Path) -> AbstractContextManager[int]:
    """Return the page's nginx before the server, without TLS: strangers would need as much time for it as nginx."""
    certificate = "ssl_certificate /etc/ssl/throttle.pem;", "ssl_certificate_key /etc/ssl/throttle.key;"
    return nginx_before(f"127.0.0.1:{port}", folder, {" ssl;": ";", **dict.fromkeys(certificate, "")})


def _report(tally: Tally, opened: Counter[str], cpu_seconds: float) -> int:
    valid, answered = len(tally.latencies_ms), tally.statuses["200"]
    latencies = sorted(tally.latencies_ms)
    p99_ms = round(latencies[int(0.99 * (valid - 1))], 1)
    memory = tally.server_mib
    settled, end = max(memory[: LOOKS // 3]), memory[-1]
    print(f"statuses {dict(tally.statuses)}; median {latencies[valid // 2]:.1f} ms; most {latencies[-1]:.0f} ms")
    print(f"strangers' connections {dict(opened)}; the server's CPU time {cpu_seconds:.1f} s")
    print(json.dumps({"valid": valid, "answered": answered, "p99_ms": p99_ms, "server_mib": memory}))
    is_right = answered == valid and p99_ms < MOST_P99_MS and end <= MOST_GROWTH_RATIO * settled
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
