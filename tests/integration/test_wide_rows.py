"""Rows of 2,000 columns and a row of 50 MB come out as they went in, whatever way they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import wide_rows
from tests.integration.connect_server import ConnectServer
from tests.integration.streams import Lake
from tests.integration.test_connect import told_by

UNHARMED = dict.fromkeys(wide_rows.WAYS, True)


@pytest.mark.wide
@pytest.mark.parametrize("name", wide_rows.TABLES)
def test_wide_rows_pass_every_writer(lake: Lake, name: str) -> None:
    assert wide_rows.came_unharmed(lake.spark, wide_rows.TABLES[name](), lake.path("wide")) == UNHARMED


@pytest.mark.wide
def test_wide_rows_pass_every_writer_on_spark_connect(connect: ConnectServer, tmp_path: Path) -> None:
    told = told_by(connect, str(tmp_path), "wide")
    assert told == dict.fromkeys(wide_rows.TABLES, UNHARMED)
