"""What the crash program saw of a real job becomes steps of the model of batches, each of which the model must allow.

Real processes tell nothing: the program looks at the files before each start, and knows what it did. A run's steps
between two looks follow from what is there, for it takes them in one order. After them the model must have what the
files have. Rows are counted, not told apart: a file is a few rows, of which a batch admits one if the table has it, and
rejects one if the dead letters do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.models.batch_states import (
    DECIDED,
    IDLE,
    KEPT,
    LETTERED,
    LOGGED,
    PLANNED,
    READY,
    REPORTED,
    WRITTEN,
    Backup,
    Outcome,
    Run,
    State,
    base_of,
    rows_of,
    run_of,
)
from tests.models.batches import Batches
from tests.models.checker import NotAllowedError, Step, follow

_ROWS_OF_A_FILE: Final = 8
Seen = Mapping[str, Any]


class SeenHistory:
    """A run of the crash program, in the words of the model."""

    def __init__(self, sightings: Sequence[Mapping[str, Any]]) -> None:
        self.model, self.state = Batches(), State()
        self.steps: list[Step] = []
        self.reached: Counter[str] = Counter()
        self._sightings = sightings
        self._policies: dict[str, int] = {}
        self._runs: dict[str | None, int] = {None: 0}
        self._live = 0
        self._sleeps = 0
        self._admits, self._rejects = self._outcomes()

    def _outcomes(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Return the batches, by number and time, of which the sinks ever had rows."""
        found: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
        for each in self._sightings:
            log = each["seen"]["log"]
            for batches, table in zip(found, ("table", "letters"), strict=True):
                batches.update((number, log[number][3]) for number in each["seen"][table] if number < len(log))
        return found

    def replay(self) -> Counter[str]:
        """Replay all, and return how often each action was taken.

        Raises
        ------
        NotAllowedError
            At the first step that the model does not allow, or after which it has not what was seen.
        """
        for number, each in enumerate(self._sightings):
            try:
                self._replay(each["event"], each["seen"])
            except NotAllowedError as error:
                raise NotAllowedError(f"sighting {number}, {each['event']}: {error}") from error
        return self.reached

    def _take(self, action: str, *arguments: Any) -> None:
        self.steps.append(Step(action, arguments))
        self.state = follow(self.model, self.state, self.steps[-1:])
        self.reached[action] += 1

    # ---------------------------------------------------------------------------------------- what the program did

    def _replay(self, event: str, seen: Seen) -> None:
        if event.startswith("put back"):
            self._put_back(event.removeprefix("put back "))
            self._compare(seen)
            return
        self._follow(seen)
        if event == "sleeps":
            self._live, self._sleeps = 0, self._live
        elif event == "woke":
            # It ended by itself, for another has taken over, or its write was refused.
            why = self.model.refusal(self.state, self._sleeps)
            self._take(*(("refuse", self._sleeps, why) if why else ("die", self._sleeps)))
            self._sleeps = 0
        elif event in ("start", "stopped", "kept"):
            if run_of(self.state, self._live) is not None:
                self._take("die", self._live)
            self._live = 0
            if event == "start":
                self._start()
            elif event == "kept":
                self._take("back_up")

    def _start(self) -> None:
        number = max(self.state.starts, *self._runs.values()) + 1
        why = self.model.refusal(self.state, number)
        if why is None:
            self._take("start", number)
            self._live = number
        else:
            self._take("refuse", number, why)

    def _put_back(self, how: str) -> None:
        backup = self.state.backups[-1] if self.state.backups else Backup(*State()[2:6])
        if how == "refused" and len(backup.spark.log) > backup.spark.committed:
            self._take("restore", backup._replace(table=self.state.table, letters=self.state.letters), True)
        elif how == "refused":  # no batch is planned that is not committed
            self._take("put_back", backup.spark.committed)
            self._take("put_control_back", backup.control)
        elif how == "remedied":
            self._take("restore", backup, False)
        elif how != "nothing":
            self._take("restore", backup, how != "control-ahead")

    # -------------------------------------------------------------------------------------------- what a run did

    def _follow(self, seen: Seen) -> None:
        """Take the steps that the live run has taken."""
        while (run := run_of(self.state, self._live)) is not None:
            step = self._next(run, seen)
            if step is None:
                break
            self._take(*step)
        self._compare(seen)

    def _next(self, run: Run, seen: Seen) -> tuple[Any, ...] | None:  # noqa: PLR0911 - a step each
        """Return the next step of a run, if it has taken it."""
        n, s = run.newest, self.state
        if not run.has_begun:
            if seen["owner"] in self._runs:
                return None
            self._runs[seen["owner"]] = run.id
            return "begin", run.id
        if run.at == IDLE:
            return self._plan(run, seen)
        if run.at == PLANNED:
            return "write_epoch", run.id
        if run.at == READY:
            if len(seen["log"]) <= len(s.spark.log):
                return None
            *_, time, read = seen["log"][len(s.spark.log)]
            before = seen["log"][len(s.spark.log) - 1][4] if s.spark.log else 0
            end = s.spark.log[-1].end if s.spark.log else 0
            more = _ROWS_OF_A_FILE if read > before else 0
            if s.offered < end + more:
                return "arrive", end + more - s.offered
            return "log_offset", run.id, end + more, time
        is_committed = seen["committed"] > n
        is_told = is_committed or [n, s.spark.log[n].time] in [list(each) for each in seen["reports"]]
        is_lettered = is_told or n in seen["letters"]
        is_written = is_lettered or n in seen["table"]
        if run.at == LOGGED:
            return ("decide", run.id, self._outcome(n)) if is_written else None
        steps = {
            DECIDED: ("keep_state", is_written), KEPT: ("write", is_written), WRITTEN: ("write_letters", is_lettered),
            LETTERED: ("report", is_told), REPORTED: ("commit", is_committed),
        }  # fmt: skip
        action, is_taken = steps[run.at]
        return (action, run.id) if is_taken else None

    def _plan(self, run: Run, seen: Seen) -> tuple[Any, ...] | None:
        """Return the step by which a run came to its next epoch, or the change of policy before it."""
        at, base = len(self.state.spark.log), base_of(self.state, run)
        epoch = seen["log"][at] if at < len(seen["log"]) else self._unnamed(seen)
        if epoch is None:
            return None
        policy = self._policies.setdefault(epoch[1], len(self._policies))
        if policy != self.state.policy:
            return "change_policy", policy
        return "plan", run.id, base is None or epoch[0] != base.number

    def _unnamed(self, seen: Seen) -> Sequence[Any] | None:
        """Return an epoch that was written, and that no offset names."""
        known = {(each.number, each.policy, each.settled) for each in self.state.control.epochs}
        return next((each for each in seen["epochs"] if self._epoch(each) not in known), None)

    def _epoch(self, told: Sequence[Any]) -> tuple[int, int, int]:
        return told[0], self._policies.setdefault(told[1], len(self._policies)), told[2]

    def _outcome(self, batch: int) -> Outcome:
        rows, at = rows_of(self.state, batch), (batch, self.state.spark.log[batch].time)
        admitted, rows = (rows[:1], rows[1:]) if at in self._admits else ((), rows)
        rejected, rows = (rows[:1], rows[1:]) if at in self._rejects else ((), rows)
        return Outcome(admitted, rejected, rows)

    def _compare(self, seen: Seen) -> None:
        """Compare what the model has with what is there; old records may be gone."""
        s = self.state
        there = {
            "log": [(*self._epoch(each), each[3]) for each in seen["log"]],
            "committed": seen["committed"],
            "owner": self._runs.get(seen["owner"], seen["owner"]),
            "newest epoch": max(map(self._epoch, seen["epochs"]), default=None),
            "newest report": max(map(tuple, seen["reports"]), default=None),
        }
        ours = {
            "log": [(each.epoch.number, each.epoch.policy, each.epoch.settled, each.time) for each in s.spark.log],
            "committed": s.spark.committed,
            "owner": s.control.owner,
            "newest epoch": max(((e.number, e.policy, e.settled) for e in s.control.epochs), default=None),
            "newest report": max(((each.batch, each.time) for each in s.control.reports), default=None),
        }
        for name, ours_is in ours.items():
            if there[name] != ours_is:
                raise NotAllowedError(f"{name} is {there[name]}, not {ours_is}; newest steps: {self.steps[-3:]}")
