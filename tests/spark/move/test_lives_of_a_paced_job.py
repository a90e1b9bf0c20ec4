"""A job whose destination takes some calls and refuses others, killed and run again anywhere: a row is taken once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.state import ControlRow
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.record import pack
from spark_throttle.spark.move import held_files
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.sinks.payload import StagedPayload
from tests.effort import thorough_after
from tests.spark.move.played import START_MS
from tests.spark.move.worlds import SCHEMA, Event, StagedJob, dealt, sent

POLICY = compile_policy(PolicyDocument.model_validate({
    "resource_groups": {"api": {"publish": {"messages_per_second": 9, "burst_seconds": 2}, "destination": {}}},
    "tenants": {"t0": {"resource_group": "api"}, "t1": {"resource_group": "api"}},
    "defaults": {"publish": {"messages_per_second": 3, "burst_seconds": 1}},
}), "publish")  # fmt: skip

STAGED_ALL, DECIDED, COPIED, HALF_SENT, RECORDED = STOPS = ("staged", "decided", "copied", "half sent", "recorded")
Key = tuple[str, int, int]
"""The namespace, the batch and the place of a call."""


@dataclass
class PacedJob(StagedJob):
    """A staged job that sends the rows which leave, call by call."""

    dice: random.Random = field(default_factory=random.Random)
    taken: dict[Key, list[Event]] = field(default_factory=dict)
    """What the destination has, by key: it takes each key once."""

    records: dict[int, Undelivered] = field(default_factory=dict)
    """By batch, what was not delivered."""

    begun: set[int] = field(default_factory=set)
    takes_all: bool = False
    gives_back: bool = True
    """Whether its sink says what it did not deliver."""

    @property
    def place(self) -> StagingPlace:
        return self.waiting

    def restart(self) -> None:
        super().restart()
        unused: Any = None
        self._payload = StagedPayload(Upkeep(str(self.control), self.kept_turns), SCHEMA, unused, self.waiting, 2)

    @property
    def decider(self) -> DigestDecider:
        storage = QueueStorage(str(self.control), self.kept_turns, 200)
        return DigestDecider(storage, self.kept_turns, keeps_order=True, keeps_left=self.gives_back)

    def run(self, batch: int, events: list[Event], stop: str | None = None) -> None:
        """Run an attempt at a batch, up to a stop."""
        pieces = self.stage(batch, dealt(events, self.dice.randint(1, 4), self.dice))
        if stop == STAGED_ALL:
            return
        frames, self.states[batch + 1] = self.decide(batch, pieces)
        if stop == DECIDED:
            return
        rows = self._payload.take(frames, batch)  # type: ignore[arg-type]
        if stop == COPIED:
            return
        is_again = batch in self.begun
        self.begun.add(batch)
        if batch not in self.records:
            left = defaultdict[str, list[Event]](list)
            for task in sent(self._payload, rows):
                for name, number in task:
                    left[name].append((name, number))
            calls = [call for name, mine in left.items() for call in self._sent(batch, name, mine, is_again=is_again)]
            if stop == HALF_SENT:
                return
            if self.gives_back:
                self.records[batch] = Undelivered.of(calls)
        if stop == RECORDED:
            return
        rows.confirm()

    def _sent(self, batch: int, name: str, rows: list[Event], *, is_again: bool) -> list[UndeliveredCall]:
        """Send a namespace's rows until one is refused, and return what was not delivered."""
        given = self.records.get(batch - 1, Undelivered.of([]))
        calls, place = list[tuple[Key, int, int]](), 0
        again = [at for at in np.flatnonzero(given.is_again) if given.names[int(at)].as_py() == name]
        for at in sorted(again, key=lambda at: int(given.place[at])):
            count = int(given.rows[at])
            calls.append(((name, int(given.key_batch[at]), int(given.key_place[at])), place, count))
            place += count
        old = len(calls)
        while place < len(rows):  # a call takes the same rows at every attempt
            count = min(2, len(rows) - place)
            calls.append(((name, batch, place), place, count))
            place += count
        found, is_refused = list[UndeliveredCall](), False
        for number, (key, start, count) in enumerate(calls):
            is_sure = name.startswith("t2") or self.takes_all  # no destination of the policy: it is waited for
            is_refused |= not is_sure and self.dice.random() < 0.3
            if not is_refused:
                self.taken.setdefault(key, rows[start : start + count])
                continue
            may_be_taken = number < old or is_again
            if not may_be_taken and self.dice.random() < 0.2:  # no answer came
                self.taken.setdefault(key, rows[start : start + count])
                may_be_taken = True
            found.append(UndeliveredCall(name, start, count, *((key[1], "", key[2]) if may_be_taken else (-1, "", 0))))
        return found

    def _control_row(self, batch: int) -> bytes:
        now_ms = START_MS + batch * 1_000
        packed = pack(self.policy) if batch == 0 else None
        undelivered = self.records.get(batch - 1)
        return pack(ControlRow(batch + 1, packed, PayingTime(now_ms, now_ms), undelivered=undelivered))


@pytest.mark.parametrize("seed", thorough_after(5, range(12)))
def test_each_row_is_taken_once_whatever_is_refused_and_killed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_files, "_MANY_LEFTOVERS", 3)
    dice, offered = random.Random(seed), Counter[Event]()
    job = PacedJob(tmp_path, POLICY, dice=dice)
    for batch in range(10):
        count = dice.randrange(24) if dice.random() < 0.8 else 0
        events = [
            (f"t{dice.randrange(3)}/n{dice.randrange(2)}", batch * 100 + dice.randrange(50)) for _ in range(count)
        ]
        offered += Counter(events)
        for _ in range(dice.randrange(3)):
            job.run(batch, events, dice.choice(STOPS))
            if dice.random() < 0.5:
                job.restart()
        job.run(batch, events)
        if dice.random() < 0.3:
            job.zombie(batch, dealt(events, dice.randint(1, 4), dice))
    job.takes_all, job.gives_back = True, bool(seed % 2)
    for batch in range(10, 40):
        job.run(batch, [])
        if not len(job.held(batch + 1)) and not (job.gives_back and len(job.records[batch].names)):
            break
    taken = Counter(event for rows in job.taken.values() for event in rows)
    assert taken == offered
