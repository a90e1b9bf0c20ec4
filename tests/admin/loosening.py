"""Random policies of administrators, and random changes by tenants' administrators: nothing gets looser.

    python -m tests.admin.loosening --changes 100000 --seed 1

After every change that was made, each name of the tenant (all names of up to five letters, a and b) is looked at with
`loosening_oracle`: its effect is no looser than what administrators give it, also where they have changed their part
in between. The effects of other tenants' names stay byte for byte, and so do all other entries of the store. Every life
of a policy is drawn from the seed and its own number.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any, Final

import pyarrow as pa

from spark_throttle.core.names.matching import match
from spark_throttle.errors import NotFoundError, NotPermittedError, PolicyError
from spark_throttle.policy.compile import compile_policy
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Kind
from tests.admin.loosening_oracle import RATES, STRINGS, Effect, Values, World, looser, matches

ADMIN: Final = Author("ann")
TENANT: Final = "t"
BOB: Final = Author("bob", tenant=TENANT)
CHANGES_PER_LIFE: Final = 60
LETTERS: Final = "ab"
NAMES: Final = ["t", *(f"t/{''.join(text)}" for size in range(6) for text in product(LETTERS, repeat=size))]
OTHERS: Final = ["u", "u/", "u/a", "u/b", "u/ab", "u/aab", "ta", "ta/b", "a", "tt/a", "", "/"]
_SECTIONS: Final[dict[str, Kind]] = {"groups": "resource_group", "tenants": "tenant", "given": "namespace"}


class Life:
    """One policy, from its first revision on, and the oracle's account of it."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.service = PolicyService(MemoryStore(), clock_ms=lambda: 0, pause=lambda _: None)
        self.world = World()
        self.counts: Counter[str] = Counter()
        self._draw_policy()
        self.before = self._effects()

    def run(self, changes: int) -> None:
        """Make changes by the tenant's administrator, and some by administrators, and check each."""
        for _ in range(changes):
            if self.random.random() < 0.05:
                self._change_by_administrator()
            self._change_by_tenant()
        self._check_oracle()

    # ------------------------------------------------------------------------------------------------ drawing

    def _draw_policy(self) -> None:
        draw, world = self.random, self.world
        for group in ("g", "h"):
            world.groups[group] = self._quotas()
        for tenant in (TENANT, "u"):
            world.tenants[tenant] = {"publish": {"messages_per_second": 20}, **self._quotas(), **self._group()}
        for _ in range(draw.randrange(7)):
            world.given[self._pattern(draw.choice(["t/", "t/", "t/", "", "*", "u/"]))] = self._entry()
        world.defaults = {**self._quotas(), **self._group(), **self._strings()} if draw.random() < 0.7 else {}
        world.exempt = sorted({self._pattern("t/") for _ in range(draw.choice([0, 0, 0, 1]))})
        world.job = self._quotas()
        world.namespaces = dict(world.given)
        for section, kind in _SECTIONS.items():
            for name, values in getattr(world, section).items():
                self.service.put(kind, name, values, ADMIN)
        for name in world.exempt:
            self.service.put("exempt", name, {}, ADMIN)
        self.service.put("defaults", "", world.defaults, ADMIN)
        self.service.put("job", "", world.job, ADMIN)

    def _pattern(self, prefix: str) -> str:
        draw = self.random
        text = "".join(draw.choice(draw.choice([LETTERS, "ab*"])) for _ in range(draw.randrange(5)))
        # A name that ends with a slash is refused.
        return prefix + (text or draw.choice("ab*") if prefix.endswith("/") else text) or "*"

    def _quotas(self) -> Values:
        return {direction: self._quota() for direction in ("publish", "dispatch") if self.random.random() < 0.5}

    def _quota(self) -> Values:
        draw, quota = self.random, {}
        choices: dict[str, list[Any]] = {
            "messages_per_second": [0, 0.5, 1, 5, 10], "bytes_per_second": [0, 100, 1000],
            "request_percentage": [0, 0.5, 100], "max_message_bytes": [10, 100],
            "burst_seconds": [1, 5, 20], "weight": [2, 5],
            "on_excess": ["reject", "observe"],
        }  # fmt: skip
        for key, values in choices.items():
            if draw.random() < 0.35:
                quota[key] = draw.choice(values)
        return quota

    def _group(self) -> Values:
        return {"resource_group": self.random.choice("gh")} if self.random.random() < 0.4 else {}

    def _strings(self) -> Values:
        texts = [
            "2*delay*100",
            "4*reject*50",
            "2*delay*100,4*reject*50",
            "0*delay*1",
            "8*delay*10",
            "2*delay*10",
            "1*reject*0",
        ]
        return {key: self.random.choice(texts) for key in STRINGS if self.random.random() < 0.15}

    def _entry(self) -> Values:
        locked = {"locked": True} if self.random.random() < 0.1 else {}
        return {**self._quotas(), **self._group(), **self._strings(), **locked}

    def _tenants_entry(self, name: str) -> Values:
        """Draw an entry; most start from what administrators gave some name, so that some are allowed."""
        draw, world = self.random, self.world
        touched = [each for each in NAMES if matches(name, each)]
        if not touched or draw.random() < 0.2:
            return self._entry()
        sample = draw.choice(touched)
        rules = [world.given[each] for each in world.given if matches(each, sample)]
        values = deepcopy(draw.choice([*rules, world.defaults]))
        values.pop("locked", None)
        group = world.effect(sample, world.given).get("group")
        values.pop("resource_group", None)
        if group and draw.random() < 0.8:
            values["resource_group"] = group
        for _ in range(draw.randrange(3)):
            quota = values.setdefault(draw.choice(["publish", "dispatch"]), {})
            key, value = draw.choice(list(self._quota().items()) or [("messages_per_second", 1)])
            if draw.random() < 0.25:
                quota.pop(key, None)
            elif key in RATES and draw.random() < 0.6:
                quota[key] = min(value, quota.get(key, value))
            else:
                quota[key] = value
        return values

    # ----------------------------------------------------------------------------------------------- changes

    def _change_by_administrator(self) -> None:
        draw, world, name = self.random, self.world, ""
        kind: Kind = draw.choice(["namespace", "namespace", "defaults", "resource_group"])
        if kind == "namespace":
            name = draw.choice([*world.namespaces, self._pattern("t/")])
            if name in world.namespaces and draw.random() < 0.5:
                self.service.delete(kind, name, ADMIN)
                world.given.pop(name, None)
                world.namespaces.pop(name)
            else:
                world.given[name] = world.namespaces[name] = self._entry()
                self.service.put(kind, name, world.given[name], ADMIN)
        elif kind == "defaults":
            world.defaults = {**self._quotas(), **self._group()}
            self.service.put(kind, "", world.defaults, ADMIN)
        else:
            name = draw.choice("gh")
            world.groups[name] = self._quotas()
            self.service.put(kind, name, world.groups[name], ADMIN)
        self._take_in_what_was_undone()
        self.before = self._effects()
        self._check_none_is_looser(self.before, f"{kind} {name}")
        self.counts["changes by administrators"] += 1

    def _take_in_what_was_undone(self) -> None:
        """Undo in the world the entries of the tenant's that the store has undone; administrators' are never undone."""
        world = self.world
        stored = {each.name: each.given for each in self.service.page("namespace", limit=1000)}
        for name in list(world.namespaces):
            if name not in stored:
                assert name not in world.given, name
                world.namespaces.pop(name)
            elif stored[name] is None:
                self.counts["entries undone"] += world.namespaces[name] != world.given[name]
                world.namespaces[name] = world.given[name]
                continue
            self.counts["entries undone"] += name not in stored

    def _change_by_tenant(self) -> None:
        draw, world, service = self.random, self.world, self.service
        old = list(world.namespaces)
        name = draw.choice(old) if old and draw.random() < 0.4 else self._pattern(draw.choice(["t/"] * 9 + ["t", "u/"]))
        entries = dict(world.namespaces)
        kind: Kind = "namespace" if draw.random() < 0.97 else draw.choice(["tenant", "resource_group", "exempt"])
        made: Callable[[], object]
        door = draw.choice(["put", "put", "put", "put", "update", "delete", "attach", "detach"])
        if door in ("update", "attach", "detach"):
            kind = "namespace"
        match door:
            case "put":
                entries[name] = {} if kind == "exempt" else self._tenants_entry(name)
                made = lambda: service.put(kind, name, entries[name], BOB)  # noqa: E731
            case "update":
                entries[name] = self._tenants_entry(name)
                made = lambda: service.update("namespace", name, entries[name], BOB)  # noqa: E731
            case "delete":
                entries.pop(name, None)
                made = lambda: service.delete(kind, name, BOB)  # noqa: E731
            case "attach":
                group = draw.choice("gh")
                entries[name] = {**entries.get(name, {}), "resource_group": group}
                made = lambda: service.attach("namespace", name, group, BOB, is_moved=True)  # noqa: E731
            case _:
                entries[name] = {key: value for key, value in entries.get(name, {}).items() if key != "resource_group"}
                if not any(entries[name].values()):
                    entries.pop(name)
                made = lambda: service.detach("namespace", name, BOB)  # noqa: E731
        scan = {(entry.kind, entry.name): entry for entry in service.store.scan()}
        self.counts["changes"] += 1
        try:
            made()
        except NotPermittedError:
            self._note_refusal(name, entries)
            assert {(entry.kind, entry.name): entry for entry in service.store.scan()} == scan
            return
        except (NotFoundError, PolicyError):
            self.counts["not found, or of the wrong form"] += 1
            return
        self.counts["made"] += 1
        was = world.namespaces.get(name)
        world.namespaces = entries
        self._check(kind, name, was, scan)

    # ------------------------------------------------------------------------------------------------ checks

    def _effects(self) -> tuple[list[Effect], list[Effect], bytes]:
        """Return the effects of the tenant's names, those of administrators alone, and those of other tenants."""
        world = self.world
        others = [world.effect(name, world.namespaces) for name in OTHERS]
        return (
            [world.effect(name, world.namespaces) for name in NAMES],
            [world.effect(name, world.given) for name in NAMES],
            repr(others).encode(),
        )

    def _check(self, kind: Kind, name: str, was: Values | None, scan: dict[Any, Any]) -> None:
        world, entries = self.world, self.world.namespaces
        said = json.dumps({"name": name, "was": was, "is": entries.get(name), "world": vars(world)}, default=str)
        assert (kind, name.partition("/")[0]) == ("namespace", TENANT), said
        assert entries.get(name) == was or not (was or {}).get("locked"), said
        assert name in entries or name not in world.given, said
        after = self._effects()
        self._check_none_is_looser(after, said)
        assert after[1:] == self.before[1:], said
        now_stored = {(entry.kind, entry.name): entry for entry in self.service.store.scan()}
        for stored in (scan, now_stored):
            stored.pop(("namespace", name), None)
        assert now_stored == scan, said
        self.counts["changes that loosen back"] += any(
            looser(now, before) for now, before in zip(after[0], self.before[0], strict=True)
        )
        self.before = after

    def _check_none_is_looser(self, effects: tuple[list[Effect], list[Effect], bytes], said: str) -> None:
        for name, now, given in zip(NAMES, *effects[:2], strict=True):
            beyond = looser(now, given)
            assert not beyond, f"{name} is looser in {beyond}: {said}"

    def _note_refusal(self, name: str, entries: dict[str, Values]) -> None:
        """Count refused changes, and those that would have loosened no name that was looked at."""
        self.counts["refused"] += 1
        if name.partition("/")[0] == TENANT and self.counts["refused"] % 7 == 0:
            self.counts["refusals looked at"] += 1
            would = [self.world.effect(each, entries) for each in NAMES]
            is_harmless = not any(looser(now, given) for now, given in zip(would, self.before[1], strict=True))
            self.counts["of them without a looser name"] += is_harmless

    def _check_oracle(self) -> None:
        """Compare the oracle's rules and groups with those of the kernel, and its entries with the store's."""
        document = self.service.document()
        assert set(document.namespaces) == set(self.world.namespaces)
        policy = compile_policy(document, "publish")
        found = match(pa.array(NAMES), policy)
        for at, (name, effect) in enumerate(zip(NAMES, self.before[0], strict=True)):
            assert bool(found.is_exempt[at]) == effect["exempt"], name
            if not effect["exempt"]:
                group = int(found.group[at])
                assert (policy.group_names[group].as_py() if group >= 0 else None) == effect["group"], name
                weight = int(policy.namespace_limits.weight[found.rule[at]])
                assert weight == effect["publish", "weight"], name


def run_lives(changes: int, seed: int) -> Counter[str]:
    """Make at least `changes` changes, life after life, and return what was counted."""
    counts: Counter[str] = Counter()
    number = 0
    while counts["changes"] < changes:
        life = Life(f"{seed}/{number}")
        life.run(min(CHANGES_PER_LIFE, changes - counts["changes"]))
        counts += life.counts
        counts["lives"] += 1
        number += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(json.dumps({"seed": asked.seed, **run_lives(asked.changes, asked.seed)}))  # noqa: T201
