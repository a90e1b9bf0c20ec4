"""What was once written as JSON into a control directory stays readable; what a newer release wrote is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from spark_throttle.checkpoint.definition import Definition
from spark_throttle.checkpoint.drained import Drained, read_drained
from spark_throttle.checkpoint.manifest import Manifest, Resharding, read_manifest
from spark_throttle.checkpoint.open_batch import OpenBatch, read_open_batch
from spark_throttle.control.next_policies import NextPolicies, read_next_policies
from spark_throttle.errors import DamagedError, UnknownVersionError
from spark_throttle.files.storage import Directory

STORED: Final = Path(__file__).parents[1] / "conformance" / "stored" / "json"
DEFINITION: Final = Definition(
    {"namespace": "ns", "order_by[0]": "id", "partitionBy": "day"},
    {"id": "bigint", "ns": "string", "day": "date"},
    "5eed",
    {"spark.sql.session.timeZone": "UTC"},
    {"the sink": "Delta /lake/a"},
)
CONTENT: Final[dict[str, object]] = {
    "begun_v1": OpenBatch(41, "0123456789abcdef", DEFINITION),
    "followed_v1": NextPolicies("5eed0001", 7, "tenants.acme: unknown key"),
    "manifest_v1": Manifest("5eed-1", 8, "publish"),
    "manifest_v2": Manifest("5eed-1", 5, "publish", (Resharding(41, 8, "000000000042-0123456789abcdef"),)),
    "drained_v1": Drained(41, "s3a://lake/waiting", "delta", "5eed", is_finished=True),
}
READ: Final[dict[str, Callable[[Directory], object]]] = {
    "begun": read_open_batch,
    "followed": read_next_policies,
    "manifest": read_manifest,
    "drained": read_drained,
}


def put(directory: Path, stem: str, text: str) -> Callable[[], object]:
    """Put a file where a job looks for it, and return what reads it."""
    kind = stem.partition("_")[0]
    (directory / f"{kind}.json").write_text(text)
    return lambda: READ[kind](Directory(str(directory)))


def test_every_stored_file_has_its_content() -> None:
    assert {path.stem for path in STORED.iterdir()} == CONTENT.keys()


@pytest.mark.parametrize("stem", CONTENT)
def test_stored_file_stays_readable(stem: str, tmp_path: Path) -> None:
    assert put(tmp_path, stem, (STORED / f"{stem}.json").read_text())() == CONTENT[stem]


@pytest.mark.parametrize("stem", CONTENT)
def test_file_of_a_newer_release_is_named(stem: str, tmp_path: Path) -> None:
    fields = json.loads((STORED / f"{stem}.json").read_text())
    read = put(tmp_path, stem, json.dumps(fields | {"format": 99}))
    with pytest.raises(UnknownVersionError, match="99"):
        read()


@pytest.mark.parametrize("stem", CONTENT)
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": null}', "\x00"])
def test_damaged_file_is_named(stem: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=stem.partition("_")[0]):
        put(tmp_path, stem, text)()
