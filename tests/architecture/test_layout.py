"""Shape of the tree: sizes, who imports whom across its roots, and versions that stand in more than one file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from spark_throttle import errors
from spark_throttle.spark.spark_version import DELTA, delta_remedy

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path for top in ("spark_throttle", "jobs", "demos", "tests", "scripts") for path in (ROOT / top).rglob("*.py")
)
LIBRARY = sorted((ROOT / "spark_throttle").rglob("*.py"))
MAX_LINES = 500
MAX_FILES = 16  # with the package's own


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_module_is_short_enough_to_read() -> None:
    assert [relative(path) for path in MODULES if len(path.read_text().splitlines()) >= MAX_LINES] == []


PACKAGES = sorted(path.parent for path in LIBRARY if path.name == "__init__.py")


def test_folder_can_be_taken_in_at_a_glance() -> None:
    folders = [*PACKAGES, ROOT / "jobs", ROOT / "demos"]
    assert [relative(folder) for folder in folders if len(list(folder.glob("*.py"))) > MAX_FILES] == []


IN_THE_ROOT = {
    ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
    "pyproject.toml", "requirements.lock",
}  # fmt: skip


def test_nothing_lies_about_in_the_root() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no clone")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {path for path in listed.splitlines() if "/" not in path} == IN_THE_ROOT


def test_package_says_where_to_begin_and_what_it_may_import() -> None:
    for folder in PACKAGES[1:]:
        words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert re.search(r"Start\s+with\s+`([\w.]+)`", words), folder
        assert re.search(r"[Ii]t\s+may\s+import", words), folder
        for name in re.findall(r"Start\s+with\s+`([\w.]+)`", words):
            assert folder.joinpath(*name.split(".")).with_suffix(".py").exists(), (folder, name)


def test_tracebacks_name_an_error_as_users_import_it() -> None:
    shown = [getattr(errors, name) for name in errors.__all__]
    assert {each.__module__ for each in shown if isinstance(each, type)} == {"spark_throttle.errors"}


def test_job_knows_no_demonstration() -> None:
    jobs = sorted((ROOT / "jobs").glob("*.py"))
    assert [
        relative(path) for path in jobs if re.search(r"^(from|import) demos\b", path.read_text(), re.MULTILINE)
    ] == []


@pytest.fixture(scope="module")
def nodes() -> dict[str, list[ast.AST]]:
    """Return all nodes of each module of the library."""
    return {relative(path): list(ast.walk(ast.parse(path.read_text()))) for path in LIBRARY}


def test_library_does_not_import_its_jobs_or_tests(nodes: dict[str, list[ast.AST]]) -> None:
    for path, of_module in nodes.items():
        roots = set()
        for node in of_module:
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                roots.add(node.module.partition(".")[0])
        assert not roots & {"jobs", "demos", "tests", "scripts"}, path


@pytest.mark.slow
def test_library_touches_no_jvm_object(nodes: dict[str, list[ast.AST]]) -> None:
    """What reaches into the JVM or asks for the context does not run on Spark Connect."""
    for path, of_module in nodes.items():
        attributes = {node.attr for node in of_module if isinstance(node, ast.Attribute)}
        assert not attributes & {"_jvm", "_jdf", "_jsc", "_jsparkSession", "_sc", "sparkContext"}, path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "rows.frames",
        "sources.control_source",
        "sources.reference_source",
        "move.stager",
        "move.cutting",
    ],
)
def test_modules_of_workers_load_neither_pandas_nor_the_policies_model(name: str) -> None:
    """Every Python worker that Spark starts would pay half a second for the one, and a quarter for the other."""
    code = f"import sys, spark_throttle.spark.{name}; sys.exit(bool({{'pandas', 'pydantic'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def jar_versions() -> dict[str, str]:
    ivy = ET.parse(ROOT / "scripts" / "jars" / "ivy.xml")  # noqa: S314 (our own file)
    return {found.attrib["name"]: found.attrib["rev"] for found in ivy.iter("dependency")}


def pinned(extra: str, package: str) -> str:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = document["project"]["optional-dependencies"][extra]
    return next(
        match[1]
        for requirement in requirements
        if (match := re.fullmatch(rf"{re.escape(package)}(?:\[\w+\])?==(.+)", requirement))
    )


def test_delta_has_one_version_everywhere() -> None:
    versions = {name: version for name, version in jar_versions().items() if name.startswith("delta-spark")}
    assert versions == dict.fromkeys(("delta-spark_4.2_2.13", "delta-spark_4.1_2.13"), DELTA)
    for name in versions:
        assert f" io.delta:{name}:{DELTA} " in delta_remedy(name.removeprefix("delta-spark_").replace("_2.13", ".0"))
    assert f"io.delta:delta-spark_4.2_2.13:{DELTA}\n" in (ROOT / "conf" / "spark-defaults.conf").read_text()


def test_kafka_connector_has_the_version_of_spark() -> None:
    assert jar_versions()["spark-sql-kafka-0-10_2.13"] == pinned("dev", "pyspark")


def test_lock_names_every_direct_requirement() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*document["dependencies"], *(r for extra in document["optional-dependencies"].values() for r in extra)]
    names = {re.split(r"[\[<>=]", requirement)[0].lower().replace("-", "_") for requirement in asked}
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {line.partition("==")[0].lower().replace("-", "_") for line in lines if not line.startswith("#")}
    assert names - {"spark_throttle"} <= locked
