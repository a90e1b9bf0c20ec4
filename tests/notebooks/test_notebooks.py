"""The notebooks run, draw what they say, and show the numbers that their texts name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from tests.notebooks.cells import NOTEBOOKS, run_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def surroundings(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield what a notebook finds: a session whose settings are put back, and a place for its tables."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    key = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(key))
    yield {"spark": spark}
    for query in spark.streams.active:
        query.stop()
    spark.conf.set(key, before)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[mpl.figure.Figure]]:
    """Yield the figures that a notebook shows."""
    shown: list[mpl.figure.Figure] = []
    mpl.use("agg")
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    yield shown
    plt.close("all")


@pytest.mark.timeout(900)
def test_quickstart_shows_the_numbers_that_it_names(
    surroundings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_cells(NOTEBOOKS / "01_quickstart.py", surroundings)

    assert names["admitted"] == {"acme": 1000, "globex": 1000, "initech": 101}
    assert names["rejected"] == {"initech": 899, None: 1}
    first, *later = names["globex_batches"]
    assert (first["offered_messages"], first["admitted_messages"], first["waiting_messages"]) == (1000, 201, 799)
    assert sum(batch["admitted_messages"] for batch in later) == 799
    assert (later[-1]["batch_time"] - first["batch_time"]).total_seconds() >= 798 / 200

    assert "acme" not in names["tenants"]
    assert names["tenants"]["globex"].messages_per_second == 1
    assert names["tenants"]["globex"].waiting_messages > 990
    after = names["admitted_after"]
    assert (after["acme"], after["globex"]) == (2000, 2000)
    assert 202 <= after["initech"] < 2000
    assert (names["dry_run_counts"]["admitted"], names["dry_run_counts"]["observed"]) == (2000, 1899)

    shown = capsys.readouterr().out
    assert "namespace_missing" in shown
    assert "globex: quota 1.0/s" in shown


@pytest.mark.thorough
def test_operating_answers_its_questions_from_the_usage_table(
    surroundings: dict[str, Any], pictures: list[mpl.figure.Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_cells(NOTEBOOKS / "02_operating.py", surroundings)

    usage, bill = names["usage"], names["bill"]
    groups = usage[usage["level"] == "resource_group"].groupby("scope")
    seconds = (usage["batch_time"].max() - usage["batch_time"].min()).total_seconds()
    for group, per_second in (("gold", 200), ("bronze", 150), ("free", 100)):
        assert groups["admitted_messages"].sum()[group] <= per_second * (names["BURST_SECONDS"] + seconds) + 2
    assert groups["admitted_messages"].sum()["gold"] == groups["offered_messages"].sum()["gold"]
    assert bill["offered_messages"].sum() == groups["offered_messages"].sum().sum()
    assert set(names["waiting"]["namespace"].str.partition("/")[0]) == {"bronze-00"}

    # What is replayed is what happened: the simulation differs by what the buckets held before the first batch asked.
    waits, lost = names["what_if"]["as it is"]
    really = usage[(usage["level"] == "resource_group") & (usage["scope"] == "bronze")]["waiting_messages"].iloc[-1]
    assert abs(waits[-1] - really) <= 0.05 * really
    assert lost == 0
    assert names["what_if"]["250 a second"][0][-1] < waits[-1]
    assert (max(names["what_if"]["reject"][0]), names["what_if"]["reject"][1] > 0) == (0, True)
    assert len(pictures) == 2
    assert "free" in capsys.readouterr().out


@pytest.mark.thorough
def test_several_jobs_share_a_quota_that_follows_the_demand(
    surroundings: dict[str, Any], pictures: list[mpl.figure.Figure]
) -> None:
    names = run_cells(NOTEBOOKS / "03_several_jobs.py", surroundings)

    quota, met = names["QUOTA"], names["met"]
    assert met["west"] > 0.6 * quota
    assert met["east"] + met["west"] <= quota
    assert names["alone"] > 0.9 * quota
    assert names["worst"] <= quota * names["BURST_SECONDS"] + 2
    assert len(pictures) == 1
