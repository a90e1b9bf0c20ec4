"""The changes of a line that there are, as Cosmic Ray says, and a sample of them that a seed draws."""

from __future__ import annotations

import ast
import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec

from tests.mutants.covering import MUTATED, PACKAGE, ROOT

FOLDER: Final = ROOT / "build" / "mutants"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    module: str
    """Path below the root."""

    line: int
    operator: str
    occurrence: int
    """Which of the places is changed that this operator finds in the module."""

    before: str
    after: str

    @property
    def key(self) -> tuple[object, ...]:
        """By what it is known again."""
        return self.module, self.operator, self.occurrence, self.before

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.before}\n    + {self.after}"


def sources() -> str:
    """Return a name for the code as it is: lines that tests ran in other code are of no use."""
    digest = hashlib.sha256()
    for path in sorted(path for name in MUTATED for path in (ROOT / PACKAGE / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def places_without_effect(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where annotations and the decorators of classes start and end: they decide nothing."""
    places = []
    for node in ast.walk(ast.parse(source)):
        annotations = (getattr(node, name, None) for name in ("annotation", "returns"))
        places += [_place_of(part) for part in annotations if isinstance(part, ast.expr)]
        if isinstance(node, ast.ClassDef):
            places += [_place_of(part) for part in node.decorator_list]
    return places


def _place_of(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def drawn_before(count: int, seed: int, only: str) -> list[MutationSpec]:
    """Return what `drawn_changes` drew: to find all changes there are takes as long as to try some."""
    kept = FOLDER / f"drawn-{sources()}-{seed}-{count}-{only.replace('/', '-')}.json"
    if not kept.exists():
        drawn = [
            (str(each.module_path.relative_to(ROOT)), each.operator_name, each.occurrence, each.start_pos, each.end_pos)
            for each in drawn_changes(count, seed, only)
        ]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(drawn))
    return [MutationSpec(ROOT / path, *rest) for path, *rest in json.loads(kept.read_text())]


def drawn_changes(count: int, seed: int, only: str) -> list[MutationSpec]:
    """Return changes: a place in the code each, and one of the changes that are possible there."""
    modules = [path for name in MUTATED for path in sorted((ROOT / PACKAGE / name).rglob("*.py")) if only in str(path)]
    at: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = defaultdict(list)
    for path in modules:
        ineffective = places_without_effect(path.read_text(encoding="utf-8"))
        for change in changes_of(path):
            if not any(start <= change.start_pos < end for start, end in ineffective):
                at[str(path), change.start_pos].append(change)
    draw = random.Random(seed)
    places = draw.sample(sorted(at), min(count, len(at)))
    return [draw.choice(sorted(at[place], key=lambda each: (each.operator_name, each.occurrence))) for place in places]


def changes_of(path: Path) -> Iterator[MutationSpec]:
    """Yield all changes of a module that Cosmic Ray knows."""
    nodes = list(ast_nodes(get_ast_from_path(path)))
    for name in operator_names():
        kind = get_operator(name)
        if not kind.arguments():
            operator = kind()
            places = [place for node in nodes for place in operator.mutation_positions(node)]
            for occurrence, (start, end) in enumerate(places):
                yield MutationSpec(path, name, occurrence, start, end)


def mutant_of(change: MutationSpec) -> tuple[Mutant, str | None]:
    """Return the mutant of a change with the whole module's code; `None` where that does the same, or is no code."""
    source = change.module_path.read_text(encoding="utf-8")
    code = mutate_code(source, get_operator(change.operator_name)(), change.occurrence)
    old, new = source.splitlines(), (code or source).splitlines()
    line = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    at = change.start_pos[0] - 1 if line is None else line
    module, name = str(change.module_path.relative_to(ROOT)), change.operator_name.partition("/")[2]
    mutant = Mutant(module, at + 1, name, change.occurrence, old[at].strip(), new[at].strip())
    try:
        is_other = code is not None and ast.dump(ast.parse(code)) != ast.dump(ast.parse(source))
    except SyntaxError:
        is_other = False
    return mutant, code if is_other else None
