"""Every benchmark, its figures against what is wanted, and a picture of what grows with what (`make bench`).

    python -m tests.benchmarks.bench [PART]... [--repeats N]

Each part is a process of its own, one after the other, and all its opponents run in it; nothing else should run on the
machine. Without names all parts run; with names these run anew, and the others are taken as they were measured before.
Below `build/bench` lies what each part wrote; `build/bench.json` holds the figures by key (`results`), the parts and
the machine, `build/bench-growth.png` the picture. Times beside a figure are of CPU; `wall` is the same ratio by the
clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks.figures import Figure, figures
from tests.benchmarks.growth_plot import plot_growth
from tests.benchmarks.results import save
from tests.sessions import ROOT

PARTS: Final = (
    "paths", "kernel", "planning", "overload", "peers", "pace", "growth", "division", "metered", "time_quota",
)  # fmt: skip
_ONE_CORE: Final = ("kernel", "planning", "peers", "pace", "metered")
_WITH_REPEATS: Final = ("paths", "planning", "overload", "peers", "pace", "growth")
_PICTURE_PART: Final = 5
"""Growth is a picture, and its parts are many: a fifth of the rounds will do."""

_PACKAGES: Final = ("pyspark", "deltalake", "pyarrow", "numpy", "pandas")


def measure(part: str, repeats: int, folder: Path) -> None:
    """Run a part, and note when and of what it was."""
    out = folder / f"{part}.json"
    command = [sys.executable, "-m", f"tests.benchmarks.{part}", "--out", str(out)]
    if part in _WITH_REPEATS:
        command += ["--repeats", str(max(1, repeats // _PICTURE_PART) if part == "growth" else repeats)]
    settings = {"OMP_NUM_THREADS": "1"} if part in _ONE_CORE else {}
    load = os.getloadavg()[0]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)} | settings)
    about = {"commit": commit.stdout.strip(), "load_average_before": load}
    (folder / f"{part}.about.json").write_text(json.dumps(about))


def machine() -> dict[str, Any]:
    """Return what ran it."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java[0] if java else None,
        "packages": {name: version(name) for name in _PACKAGES},
    }


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the parts measured, and what is noted about each."""
    results, about = {}, {}
    for part in PARTS:
        if (folder / f"{part}.about.json").exists():
            results[part] = json.loads((folder / f"{part}.json").read_text())
            about[part] = json.loads((folder / f"{part}.about.json").read_text())
    return results, about


def shown(found: list[Figure]) -> Table:
    """Return the table."""
    table = Table(title="Rows passed for one of the opponent's, and costs; CPU time", title_justify="left")
    for heading in ("key", "of"):
        table.add_column(heading)
    for heading in ("wanted", "median", "least", "most", "wall"):
        table.add_column(heading, justify="right")
    table.add_column("")
    key = ""
    for each in found:
        if key and each.key != key:
            table.add_section()
        wanted = f"{'≥' if each.is_least else '≤'} {each.bound:g}"
        wall = _number(median(each.wall_values)) if each.wall_values else ""
        verdict = "[green]reached[/]" if each.is_reached else "[red]missed[/]"
        numbers = map(_number, (each.value, min(each.values), max(each.values)))
        table.add_row("" if each.key == key else each.key, each.of, wanted, *numbers, wall, verdict)
        key = each.key
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def main() -> None:
    """Run the parts, and show the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "none", []], default=[], help="none: show the last again")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    asked = parser.parse_args()
    folder: Path = asked.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for part in [part for part in asked.parts or PARTS if part != "none"]:
        measure(part, asked.repeats, folder)
    results, about = read(folder)
    found = figures(results)
    ran_on = machine()
    by_key: dict[str, dict[str, Any]] = {}
    for each in found:
        by_key.setdefault(each.key, {})[each.of] = each.as_json()
    whole = {"machine": ran_on, "results": by_key, "about": about, "parts": results}
    save(whole, asked.out)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(shown(found))
    if {"kernel", "growth", "overload"} <= results.keys():
        plot_growth(results, asked.out.with_name("bench-growth.png"))
    described = {name: text for name, text in ran_on.items() if name != "packages"}
    console.print(", ".join(f"{name} {text}" for name, text in described.items()), soft_wrap=True)


if __name__ == "__main__":
    main()
