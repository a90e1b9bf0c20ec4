"""Where a demonstration's job keeps its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from demos.sampling import folder_bytes
from demos.tables import bring


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a place with two files, of three and of five bytes."""
    log = tmp_path / "place" / "admitted" / "_delta_log"
    log.mkdir(parents=True)
    (log / "0.json").write_text("one")
    (log.parent / "rows").write_text("three")
    return tmp_path / "place"


def test_files_of_a_store_are_brought_to_the_directory_of_the_run(place: Path, tmp_path: Path) -> None:
    bring(f"file:{place}", tmp_path / "out")

    assert (tmp_path / "out" / "admitted" / "_delta_log" / "0.json").read_text() == "one"
    assert (tmp_path / "out" / "admitted" / "rows").read_text() == "three"


def test_run_that_kept_its_files_in_its_directory_needs_no_copy(place: Path) -> None:
    before = folder_bytes(str(place))

    bring(None, place)

    assert folder_bytes(str(place)) == before


def test_folder_has_the_bytes_of_all_files_below_it(place: Path) -> None:
    assert folder_bytes(str(place)) == (8, 2)
    assert folder_bytes(str(place / "none")) == (0, 0)
