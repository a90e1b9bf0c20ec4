"""The alerts that ship: Prometheus' own tool fires each for its fault, and they name only metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_throttle.admin.watch import metrics
from spark_throttle.status.usage_table import MEASURES

ALERTS = Path("conf/prometheus/alerts.yml")
TESTED = ALERTS.with_name("alerts.test.yml")


def alerts() -> list[dict[str, Any]]:
    """Return the alerts."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's package prometheus has promtool")
def test_each_alert_fires_for_its_fault_and_none_on_a_quiet_day() -> None:
    found = subprocess.run(["promtool", "test", "rules", TESTED], capture_output=True, text=True, check=False)
    assert "SUCCESS" in found.stdout, found.stdout + found.stderr


def test_each_alert_is_tried_and_says_what_to_do() -> None:
    fired = re.findall(r'alertname="(\w+)"', TESTED.read_text(encoding="utf-8"))
    assert sorted(fired) == sorted(each["alert"] for each in alerts())
    page = Path("docs/operating.md").read_text(encoding="utf-8")
    for each in alerts():
        assert f"`{each['alert']}`" in page
        assert set(each["annotations"]) == {"summary", "remedy"}


def test_alerts_name_metrics_that_there_are() -> None:
    counted = {f"{each.name}_total" for each in MEASURES if "counter" in each.metadata}
    known = counted | set(metrics._SCOPE_GAUGES) | {f"job_{name}" for name in metrics._JOB_GAUGES} | {"store_up"}
    named = set(re.findall(r"spark_throttle_(\w+)", "".join(each["expr"] for each in alerts())))
    assert named <= known
    assert len(named) > len(alerts()) / 2
