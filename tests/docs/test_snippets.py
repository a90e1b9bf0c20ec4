"""Every block of README and docs runs as it stands, or says why not; then its names are checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.names import check_names
from tests.docs.snippets import LANGUAGES, PAGES, Block, blocks_of, needs_spark, running, visit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

WITH_SPARK = [page for page in PAGES if needs_spark(page)]
WITHOUT_SPARK = [page for page in PAGES if running(page) and page not in WITH_SPARK]
NOT_RUN = [block for page in PAGES for block in blocks_of(page) if block.why_not_run is not None]
MOST_NOT_RUN = 14


def name_of(page: Path) -> str:
    return page.stem


def place_of(block: Block) -> str:
    return block.place


@pytest.fixture
def as_it_was(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield the session; what a page starts and sets is stopped and put back."""
    before = spark.conf.getAll
    yield spark
    for query in spark.streams.active:
        query.stop()
    for key, value in spark.conf.getAll.items():
        if before.get(key) != value and spark.conf.isModifiable(key):
            spark.conf.set(key, before[key]) if key in before else spark.conf.unset(key)


@pytest.mark.jvm
@pytest.mark.parametrize("page", WITH_SPARK, ids=name_of)
def test_page_runs_as_it_stands(
    page: Path, as_it_was: SparkSession, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_was.conf.set("spark.sql.shuffle.partitions", "2")
    visit(tmp_path, monkeypatch, page, spark)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=name_of)
def test_page_without_spark_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visit(tmp_path, monkeypatch, page)


@pytest.mark.parametrize("block", NOT_RUN, ids=place_of)
def test_block_that_is_not_run_names_what_there_is(block: Block) -> None:
    check_names(block)


def test_few_blocks_are_not_run() -> None:
    assert len(NOT_RUN) <= MOST_NOT_RUN
    assert sum(len(running(page)) for page in PAGES) > 3 * len(NOT_RUN)


KNOWN = (*LANGUAGES, "nginx", "text", "")  # tests/admin/test_reverse_proxy.py runs nginx


def test_every_block_has_a_known_language() -> None:
    unknown = [block.place for page in PAGES for block in blocks_of(page) if block.language not in KNOWN]
    assert unknown == []
