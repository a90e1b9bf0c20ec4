"""Builds what a release consists of, and checks it: the source distribution, the wheel and a list of what it brings.

The source distribution is the whole commit: it builds the wheel and runs the tests. Everything is built again from it,
in another folder, and must have the same bytes. The list (SBOM, in CycloneDX's format) has every package that the wheel
brings with the extras of its users, in the versions of requirements.lock, and the script that the wheel itself holds.
The environment that it is made from stays in build/wheel-venv. With a tag, whatever a release lacks is an error before
anything is built.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
INSTALLED: Final = ROOT / "build" / "wheel-venv"
EXTRAS: Final = "admin,delta,kafka,paced,spark"
"""The extras of users; the others are for work in a clone."""


def lacking(tag: str, version: str, changelog: str, changed: str) -> list[str]:
    """Return what the release of a tag lacks, in sentences.

    Parameters
    ----------
    tag
        The tag of the commit.
    version
        The version of the package.
    changelog
        The text of CHANGELOG.md.
    changed
        What git says of files that differ from the commit; empty if none does.
    """
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag} and the version {version}: change one of them")
    newest = re.search(r"^## (.*)$", changelog, re.MULTILINE)
    heading = newest[1] if newest else ""
    if not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading):
        found.append(f"CHANGELOG.md begins with {heading!r}: write [{version}] - and the day of the upload")
    if changed:
        found.append(f"files differ from the commit: commit or remove them\n{changed}")
    return found


def git(*words: str) -> str:
    """Return what git answers about the repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607


def run(*words: str | Path) -> None:
    """Run a module of this environment; show what it says only if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout.decode()}")


def build(folder: Path, into: Path) -> tuple[Path, Path]:
    """Return the source distribution and the wheel of a folder, built for the time of the commit."""
    run("build", "--sdist", "--wheel", "--outdir", into, folder)
    (source,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return source, wheel


def check_same_again(source: Path, wheel: Path) -> None:
    """Exit if the source distribution, unpacked elsewhere, gives other bytes."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(source) as packed:
            packed.extractall(folder, filter="data")
        again = build(Path(folder) / source.name.removesuffix(".tar.gz"), Path(folder) / "dist")
        for first, second in zip((source, wheel), again, strict=True):
            if first.read_bytes() != second.read_bytes():
                kept = shutil.copy(second, ROOT / "build")
                sys.exit(f"{first.name} has other bytes when it is built from the source distribution: see {kept}")


def list_what_it_brings(wheel: Path, listed: Path) -> None:
    """Install the wheel with its users' extras into an environment without pip, and list that."""
    venv.create(INSTALLED, clear=True)
    python = INSTALLED / "bin" / "python"
    pip = ["pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--constraint", ROOT / "requirements.lock", f"{wheel}[{EXTRAS}]")
    options = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-reproducible"]
    run("cyclonedx_py", "environment", *options, "--output-format", "JSON", "--output-file", listed, python)
    document = json.loads(listed.read_text())
    script = chart_script()
    document["components"].append(script)
    document["dependencies"].append({"ref": script["bom-ref"]})
    root = next(each for each in document["dependencies"] if each["ref"] == "root-component")
    root["dependsOn"].append(script["bom-ref"])
    listed.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def chart_script() -> dict[str, object]:
    """Return uPlot, which is in the wheel and so in no environment, as a component."""
    script = ROOT / "spark_throttle" / "admin" / "page" / "uPlot.iife.min.js"
    named = re.search(r"\(v([\d.]+)\)", script.read_text().partition("\n")[0])
    if named is None:
        sys.exit(f"{script} does not begin with its version")
    component = {"name": "uplot", "type": "library", "version": named[1], "purl": f"pkg:npm/uplot@{named[1]}"}
    return {**component, "bom-ref": component["purl"], "licenses": [{"license": {"id": "MIT"}}]}


def main() -> None:
    """Build, check, and print what there is to upload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", nargs="?", help="build the release of this tag, or tell what it lacks")
    tag = parser.parse_args().tag
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if tag and (found := lacking(tag, version, changelog, git("status", "--porcelain"))):
        sys.exit("\n".join(found))
    os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct")
    shutil.rmtree(DIST, ignore_errors=True)
    source, wheel = build(ROOT, DIST)
    run("twine", "check", "--strict", source, wheel)
    run("check_wheel_contents", wheel)
    check_same_again(source, wheel)
    list_what_it_brings(wheel, DIST / f"spark_throttle-{version}.cdx.json")
    for path in sorted(DIST.iterdir()):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
