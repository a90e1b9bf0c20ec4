"""The borders that import-linter holds: an import across any of them is refused, and named."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).with_name("lint-imports")

SEEDS: Final = {
    "Floors": ("policy.model", "spark_throttle.store.service"),
    "Rooms of the core": ("core.names.globs", "spark_throttle.core.batch.admission"),
    "Rooms of spark": ("spark.rows.frames", "spark_throttle.spark.throttle"),
    "Rooms of admin": ("admin.caller", "spark_throttle.admin.api"),
    "Rooms of testing": ("testing.simulation.query", "spark_throttle.testing.store_suite"),
    "Rooms of pace": ("pace.clock", "spark_throttle.pace.pacer"),
    "The pacer is useful alone": ("pace.limit", "numpy"),
    "The core computes": ("core.quota", "random"),
    "The control plane and all below know no Spark": ("checkpoint.offset_log", "pyspark.sql"),
    "The plane of a job knows no store": ("control.plane", "spark_throttle.store"),
    "Sharing and checkpoints know no policies": ("sharing.member", "pydantic"),
    "An exchange knows no reports": ("sharing.delta_exchange", "spark_throttle.core.usage"),
    "The Delta writer needs no JVM, and knows no frame": ("spark.delta.table_log", "pandas"),
    "Made-up traffic knows no throttle": ("load.source", "spark_throttle.policy.model"),
}
"""For each contract a module of the library, and what it may not import."""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what import-linter says of each contract in a copy of the library with one forbidden import for each."""
    copy = tmp_path_factory.mktemp("seeded")
    shutil.copytree(ROOT / "spark_throttle", copy / "spark_throttle", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for importer, imported in SEEDS.values():
        with (copy / "spark_throttle" / importer.replace(".", "/")).with_suffix(".py").open("a") as module:
            module.write(f"\nimport {imported}\n")
    done = subprocess.run([LINT, "--no-cache"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    _, _, broken = done.stdout.partition("Broken contracts\n")
    sections = re.split(r"^(.+)\n-+\n\n", broken, flags=re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in zip(sections[1::2], sections[2::2], strict=True)}


def test_every_contract_has_a_seeded_violation() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert sorted(contract["name"] for contract in contracts) == sorted(SEEDS)


@pytest.mark.parametrize("contract", SEEDS)
def test_import_across_a_border_is_refused_and_named(refusals: dict[str, str], contract: str) -> None:
    importer, imported = SEEDS[contract]
    target = imported if imported.startswith("spark_throttle") else imported.partition(".")[0]
    assert f"spark_throttle.{importer} -> {target} (l." in refusals[contract]
