"""The asset bundle of conf/databricks names what is there, and its job starts with the settings that it gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.settings import load_settings
from tests.sessions import ROOT

FOLDER = ROOT / "conf" / "databricks"
BUNDLE: dict[str, Any] = yaml.safe_load((FOLDER / "databricks.yml").read_text())
JOBS: dict[str, Any] = BUNDLE["resources"]["jobs"]


def resolved(text: str) -> str:
    """Return a text with the bundle's variables in place, as `databricks bundle deploy` puts them."""

    def value(found: re.Match[str]) -> str:
        path = found[1].split(".")
        if path[0] == "var":
            return str(BUNDLE["variables"][path[1]]["default"])
        if path == ["workspace", "file_path"]:
            return str(ROOT)
        node: Any = BUNDLE
        for name in path:
            node = node[name]
        return resolved(str(node))

    return re.sub(r"\$\{([^}]+)\}", value, text)


def parameters() -> list[str]:
    (task,) = JOBS["throttle"]["tasks"]
    return [resolved(each) for each in task["spark_python_task"]["parameters"]]


def test_files_of_the_bundle_are_where_it_looks_for_them() -> None:
    (task,), (notebook,) = (JOBS[name]["tasks"] for name in ("throttle", "quickstart"))
    named = [task["spark_python_task"]["python_file"], notebook["notebook_task"]["notebook_path"]]
    named += [*BUNDLE["sync"]["paths"], BUNDLE["artifacts"]["wheel"]["path"] + "/Makefile"]
    assert [name for name in named if not (FOLDER / name).exists()] == []
    assert re.search(r"^dist:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_job_gets_settings_that_load_and_its_places_are_in_the_volume() -> None:
    root, conf_key, conf, *rest = parameters()
    assert (root, conf_key, Path(conf)) == (str(ROOT), "--conf", FOLDER / "throttle.yaml")
    assert rest[::2] == ["--set"] * (len(rest) // 2)
    settings = load_settings(Path(conf), rest[1::2])
    places = [settings.throttle.policies, settings.checkpoint]
    assert all(str(place).startswith("/Volumes/main/default/throttle/") for place in places)
    assert settings.sink.table == "main.default.events_throttled"


def test_libraries_are_those_of_the_package(pytestconfig: pytest.Config) -> None:
    project = (pytestconfig.rootpath / "pyproject.toml").read_text()
    packages = [each["pypi"]["package"] for each in JOBS["throttle"]["tasks"][0]["libraries"] if "pypi" in each]
    assert packages
    assert all(f'"{package}"' in project for package in packages)


def test_the_entry_finds_the_job_from_any_folder_and_tells_a_wrong_setting(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    wrong = [*parameters(), "--set", f"throttle.policies={missing}"]
    ran = subprocess.run(
        [sys.executable, str(FOLDER / "run_throttle.py"), *wrong],
        cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert str(missing) in ran.stderr.splitlines()[-1]
