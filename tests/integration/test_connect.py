"""The library runs on Spark Connect, where there is neither a context nor a JVM object to touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.sessions import ROOT


def test_throttled_queries_run_on_spark_connect(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.integration.connect_query", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    slow, bad, shut, free = (list(range(tenant, 100, 4)) for tenant in range(4))
    assert told["session"] == "pyspark.sql.connect.session"
    assert told["admitted"] == told["kept"] == sorted(slow + free)
    assert told["rejected"] == bad
    assert told["referred"] == [told["admitted"], bad]
    assert told["queued"] == shut
    assert told["usage"] == [50, 25]
    assert told["refused"] == ["namespace has uuid()", "namespace depends on now()", "namespace depends on uuid()"]
    assert told["status"]
    assert told["offered"] == 100
    assert told["progress"]["throttle"]["waiting_messages"] == len(shut)
    assert len(told["progress"]["sources"]) == 1
