"""The pacer is useful alone: without Spark, numpy and pyarrow on the machine it loads, and it works."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = ("delta", "deltalake", "numpy", "pandas", "py4j", "pyarrow", "pydantic", "pyspark", "yaml")

PROGRAM = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(BLOCKED)}:
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())

import asyncio
from spark_throttle.errors import TurnTimeoutError
from spark_throttle.pace import ManualClock, Pacer

pacer = Pacer(clock=ManualClock(is_self_winding=True))
level = pacer.level("api", 100)
producer = pacer.producer(level)
producer.acquire(100)
producer.acquire()
print(producer.try_acquire_many([1, 2]), level.balance_tokens())

async def impatient():
    try:
        await pacer.async_producer(level, pacer.level("none", 0)).acquire(timeout_seconds=0)
    except TurnTimeoutError as error:
        print(error)

asyncio.run(impatient())
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {set(BLOCKED)}))
"""


@pytest.mark.slow
def test_pacer_loads_and_works_where_nothing_else_is_installed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "0 0",
        "no turn within 0 ms: throttled by api, none; wait longer, send less, or raise a limit",
        "[]",
    ]
