"""What a release consists of agrees with itself: the version, the changelog, the page of promises and the workflows."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any, Final

import pytest
import yaml

from tests.docs.names import make_targets
from tests.docs.test_reference_api import DOORS
from tests.sessions import ROOT

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG: Final = (ROOT / "CHANGELOG.md").read_text()
PROMISES: Final = (ROOT / "docs" / "stability.md").read_text()
WORKFLOWS: Final = [ROOT / ".github" / "workflows" / name for name in ("ci.yml", "nightly.yml", "release.yml")]
DIST: Final = run_path(str(ROOT / "scripts" / "dist.py"))


def test_version_is_the_newest_of_the_changelog() -> None:
    newest = re.search(r"^## \[(.+?)\] - ", CHANGELOG, re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["version"]


@pytest.mark.parametrize(
    ("tag", "heading", "changed", "said"),
    [
        ("v1.2.3", "[1.2.3] - 2031-05-06", "", []),
        ("v1.2.4", "[1.2.3] - 2031-05-06", "", ["the tag is v1.2.4 and the version 1.2.3"]),
        (
            "v1.2.3",
            "[1.2.3] - the day of the upload",
            "",
            ["CHANGELOG.md begins with '[1.2.3] - the day of the upload'"],
        ),
        ("v1.2.3", "[1.2.2] - 2031-05-06", "", ["CHANGELOG.md begins with '[1.2.2]"]),
        ("v1.2.3", "[1x2.3] - 2031-05-06", "", ["CHANGELOG.md begins with '[1x2.3]"]),
        ("v1.2.3", "[1.2.3] - 2031-05-06", "?? new.py", ["files differ from the commit"]),
        ("v2", "[Unreleased]", "?? new.py", ["the tag is v2", "CHANGELOG.md begins with", "files differ"]),
    ],
)
def test_what_a_release_lacks_is_told(tag: str, heading: str, changed: str, said: list[str]) -> None:
    changelog = f"# Changelog\n\n## {heading}\n\n## [1.2.2] - 2030-01-01\n"
    found = DIST["lacking"](tag, "1.2.3", changelog, changed)
    assert [sentence[: len(begin)] for sentence, begin in zip(found, said, strict=True)] == said


def test_list_of_a_release_has_the_extras_that_users_install() -> None:
    named = set(re.findall(r"^\| .* \| (.*) \|$", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE))
    extras = set(re.findall(r"`(\w+)`", " ".join(named))) & set(PROJECT["optional-dependencies"])
    assert extras
    assert extras <= set(DIST["EXTRAS"].split(","))
    assert DIST["chart_script"]()["purl"] == f"pkg:npm/uplot@{DIST['chart_script']()['version']}"


def test_promises_name_the_packages_that_the_python_api_lists() -> None:
    named = set(re.findall(r"`(spark_throttle\.[\w.]+)`", PROMISES))
    assert named == {*DOORS, "spark_throttle.errors"}
    for name in named:
        assert import_module(name).__all__


def test_promises_name_errors_functions_and_calls_that_exist() -> None:
    errors = import_module("spark_throttle.errors")
    words = set(re.findall(r"`([\w./]+)`", PROMISES))
    named = {word for word in words if word.endswith("Error")}
    assert named
    assert named <= set(errors.__all__)
    calls = (ROOT / "conf" / "openapi.json").read_text()
    paths = {word for word in words if word.startswith("/")}
    assert paths
    assert [path for path in paths if f'"{path}' not in calls] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_runs_what_exists(path: Path) -> None:
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            continue
        commands = commands_of(job)
        assert set(re.findall(r"^make ([a-z-]+)", "\n".join(commands), re.MULTILINE)) <= make_targets()
        assert [each for each in commands if each.startswith(".") and not (ROOT / each).is_file()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_job_that_runs_our_code_may_only_read(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert set(workflow["permissions"].values()) <= {"read"}
    for job in workflow["jobs"].values():
        if any("make" in each or each.startswith(".") for each in commands_of(job)):
            assert set(job.get("permissions", {}).values()) <= {"read"}


def commands_of(job: dict[str, Any]) -> list[str]:
    """Return what a job runs, with the cases of its matrix."""
    cases: list[str] = job.get("strategy", {}).get("matrix", {}).get("command", [])
    return cases + [step["run"] for step in job.get("steps", []) if "run" in step]


def test_workflow_of_a_release_builds_it_by_make_and_hands_the_tag_over() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (command,) = commands_of(workflow["jobs"]["build"])
    assert command == 'make wheel-test TAG="$GITHUB_REF_NAME"'
    assert re.search(r"^wheel-test: dist ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert workflow["jobs"]["publish"]["environment"] == "pypi"
