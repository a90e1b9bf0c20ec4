"""The page's confirmation without a browser: on a stub of the DOM, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import ROOT

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node to run the page's modules with")


def pressing(button: str, folder: Path) -> dict[str, Any]:
    for module in (ROOT / "spark_throttle/admin/page").glob("*.js"):
        shutil.copy(module, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    stub = ROOT / "tests/admin/confirm_stub.mjs"
    done = subprocess.run([str(NODE), str(stub), str(folder), button], capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.slow
def test_change_is_made_after_the_reader_has_seen_what_it_costs(tmp_path: Path) -> None:
    said = pressing("yes", tmp_path)
    assert said["asked"] == ["It costs protection:", "y is lifted", "What", "Before", "After", "f", "1", "2"]
    assert said["change"] == 8
    # The revision that the reader saw stays a condition of the confirmed change.
    assert said["calls"][:2] == [
        ["PUT", "/p?why=z", '"5"', '{"f":2}'], ["PUT", "/p?why=z&yes=true", '"5"', '{"f":2}'],
    ]  # fmt: skip


@pytest.mark.slow
def test_rollback_is_shown_with_every_character_and_made_on_the_revision_that_was_shown(tmp_path: Path) -> None:
    said = pressing("yes", tmp_path)
    assert said["planned"] == [
        "It costs protection:",
        "x is lifted",
        "\u2026 and 2 more.",
        *("What", "Before", "After"),
        *("tenants.a\\u{202e}b", "there", "removed"),
        *("tenants.a\\u{202e}b.publish.weight", "1", "\u2013"),
        *("namespaces.a/b", "there", "removed: falls to namespaces.a/* and defaults"),
        *("namespaces.a/b.locked", "true", "\u2013"),
        *("namespaces.c", "\u2013", "new"),
        # Only what differs, and so exactly that the difference is seen.
        *("job.publish.bytes_per_second", "8MiB", "8388609"),
        "\u2026 and 1000 more entries.",
    ]
    assert [call[:2] for call in said["calls"][2:]] == [
        ["GET", "/admin/v2/rollback/3"],
        ["POST", "/admin/v2/rollback/3?yes=true&expected=7&why=back+to+revision+3"],
    ]
    assert said["rolledBack"] == {"revision": 8}


@pytest.mark.slow
@pytest.mark.parametrize("button", ["no", ""])
def test_nothing_is_changed_without_a_yes(tmp_path: Path, button: str) -> None:
    said = pressing(button, tmp_path)
    assert (said["change"], said["rolledBack"]) == ("It was not confirmed, and nothing was changed.", None)
    assert not any("yes=true" in path for _, path, *_ in said["calls"])
