"""A job lives as long as it gives signs of life (`control.notes`), for people and servers.

Wall clocks are set, and those of two machines differ. So the age of a sign is measured by one steady clock where that
is possible: on the machine that gave it, by the machine's own; elsewhere from when the watcher saw it change. Only a
sign that was there at the first look on another machine is dated by the wall clocks. If it is dated in the future, its
age is not known until it changes, or until the bound has passed without a change.

The administrator of a tenant gets other words than the platform, whose own may name other tenants, or paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from spark_throttle.checkpoint.manifest import Drained, read_drained
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import SignOfLife, read_sign_of_life
from spark_throttle.control.run_fence import owner_of
from spark_throttle.errors import ConfigurationError, StoredFormatError
from spark_throttle.files.storage import Directory

SIGNS_MISSED: Final = 3
"""How many intervals without a sign make a job silent, unless a bound is given."""

HANGS_AFTER_MS: Final = 600_000
PAUSES_MISSED: Final = 3
"""A job hangs if Spark asks for no batch for `HANGS_AFTER_MS`, and for this many times its longest pause so far."""

_NOT_BEGUN: Final = "no run has begun"
_NO_SIGN: Final = "the run has given no sign of life yet"

JobState: TypeAlias = Literal["reporting", "silent", "hanging", "ended", "unknown"]


@dataclass(frozen=True, slots=True)
class LifeBounds:
    """How long a job may be without signs, and Spark without asking for a batch."""

    silent_after_ms: int | None = None
    """`None` for `SIGNS_MISSED` of the job's own intervals."""

    hangs_after_ms: int = HANGS_AFTER_MS

    @classmethod
    def of_seconds(cls, silent_after: float | None, hangs_after: float | None) -> LifeBounds:
        """Return the bounds that a user gave in seconds; `None` for the default.

        Raises
        ------
        ConfigurationError
            If a bound is not above 0.
        """
        for name, seconds in (("silent", silent_after), ("hanging", hangs_after)):
            if seconds is not None and not 0 < seconds < float("inf"):
                msg = f"a job cannot be {name} after {seconds:g} s; give a number of seconds above 0"
                raise ConfigurationError(msg)
        return cls(
            None if silent_after is None else round(1000 * silent_after),
            HANGS_AFTER_MS if hangs_after is None else round(1000 * hangs_after),
        )


@dataclass(frozen=True, slots=True)
class Liveness:
    """Whether a job lives, as far as its control directory says."""

    state: JobState
    """``reporting``: it lives. ``silent``: no sign within the bound. ``hanging``: it gives signs, but Spark asks for no
    batch. ``ended``: the query ended in good order. ``unknown``: no sign that can be read and dated."""

    sign_age_ms: int | None
    """Time since the last sign of life; `None` if there is none, or its age is not known."""

    asked_age_ms: int | None
    """Time since Spark last asked the job for a batch."""

    detail: str
    """The state in words."""

    has_begun: bool = True
    """Whether a run has begun in the directory, or may have."""

    @property
    def is_listening(self) -> bool:
        """Whether a change of policy may reach a batch of the job: it has begun, and is not known to be silent."""
        return self.has_begun and self.state in ("reporting", "unknown")


@dataclass(frozen=True, slots=True)
class _SeenSign:
    sign: SignOfLife
    age_ms: int | None
    """How old it was when it was first seen; `None` if that is not known."""

    at_ms: int
    """When it was first seen, by the watcher's steady clock."""


class SignWatch:
    """Watches the signs of life of one job; one thread looks, and any may ask.

    Parameters
    ----------
    directory
        The job's control directory.
    clock
        The watcher's clocks.
    bounds
        When the job counts as silent or hanging.
    """

    def __init__(self, directory: Directory, clock: Clock, bounds: LifeBounds | None = None) -> None:
        self._directory = directory
        self._clock = clock
        self._bounds = bounds or LifeBounds()
        self._found: tuple[_SeenSign | None, str] = None, "its directory has not been read yet"
        self._drained: Drained | None = None

    def look(self) -> None:
        """Read the newest sign; a sign that cannot be understood is as good as none, and `liveness` says why."""
        try:
            sign, owner = read_sign_of_life(self._directory), owner_of(self._directory)
            self._drained = read_drained(self._directory) if sign is not None and sign.has_ended else None
        except StoredFormatError as error:
            self._found = None, str(error)
            return
        seen = self._found[0]
        if owner is None:
            self._found = None, _NOT_BEGUN
        elif sign is not None and sign.run == owner:
            if seen is None or (seen.sign.run, seen.sign.number, seen.sign.has_ended) != (
                sign.run, sign.number, sign.has_ended,
            ):  # fmt: skip
                self._found = self._seen(sign, is_first=seen is None), ""
        elif seen is None or seen.sign.run != owner:
            self._found = None, _NO_SIGN

    def liveness(self) -> Liveness:
        """Return whether the job lives, as of this moment; it grows older also while nobody looks."""
        seen, problem = self._found
        if seen is None:
            return Liveness("unknown", None, None, problem, has_begun=problem != _NOT_BEGUN)
        sign = seen.sign
        since_ms = self._clock.steady_ms() - seen.at_ms
        bound_ms = self._bounds.silent_after_ms or SIGNS_MISSED * sign.interval_ms
        age_ms = since_ms if seen.age_ms is None else seen.age_ms + since_ms
        if sign.has_ended:
            said = f"the query ended {_duration(age_ms)} ago"
            if self._drained is not None and self._drained.is_finished:
                said += f", and the rows that waited after batch {self._drained.batch} were drained: none waits here"
            return Liveness("ended", age_ms, None, said)
        if age_ms > bound_ms:
            said = f"no sign of life for {_duration(age_ms)} (the bound is {_duration(bound_ms)})"
            return Liveness("silent", age_ms, age_ms + sign.asked_ms, said)
        if seen.age_ms is None:
            said = "its sign of life is dated in the future: a clock was set; the next sign will tell"
            return Liveness("unknown", None, None, said)
        asked_ms = age_ms + sign.asked_ms
        hangs_ms = max(self._bounds.hangs_after_ms, PAUSES_MISSED * sign.longest_pause_ms)
        if sign.asked_ms > hangs_ms:
            said = (
                f"it gives signs of life, but Spark has asked for no batch for {_duration(asked_ms)} (the bound is "
                f"{_duration(hangs_ms)}): its batch takes that long, or the query hangs"
            )
            return Liveness("hanging", age_ms, asked_ms, said)
        return Liveness("reporting", age_ms, asked_ms, f"it gave a sign of life {_duration(age_ms)} ago")

    def _seen(self, sign: SignOfLife, *, is_first: bool) -> _SeenSign:
        """Return a sign that was not there at the last look, if there was one."""
        now_ms = self._clock.steady_ms()
        own_ms = now_ms - sign.steady_ms
        if sign.boot and sign.boot == self._clock.boot and own_ms >= 0:
            return _SeenSign(sign, own_ms, now_ms)
        if not is_first:
            return _SeenSign(sign, 0, now_ms)
        dated_ms = self._clock.wall_ms() - sign.wall_ms
        return _SeenSign(sign, None if dated_ms < -sign.interval_ms else max(0, dated_ms), now_ms)


def _duration(ms: int) -> str:
    """Return a duration, in seconds up to a quarter of an hour, as bounds are given, and then in minutes or hours.

    Examples
    --------
    >>> _duration(1_500), _duration(45_000), _duration(2_076_000), _duration(90_000_000)
    ('1.5 s', '45 s', '34.6 min', '25.0 h')
    """
    if ms < 900_000:
        return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"
    return f"{ms / 60_000:.1f} min" if ms < 3_600_000 else f"{ms / 3_600_000:.1f} h"


OWNERS_SEE: Final = "a problem that the platform's owners see"


def problem_in_words(problem: str | None, *, is_wide: bool) -> str | None:
    """Return a problem as its reader may see it; `None` stays `None`.

    Parameters
    ----------
    is_wide
        Whether the reader may see what belongs to no single tenant.
    """
    return problem if is_wide or problem is None else OWNERS_SEE


def life_in_words(life: Liveness, *, is_wide: bool) -> str:
    """Return the state of a job in words; what is not known of it may be due to a damaged file, whose path it holds."""
    is_known = life.state != "unknown" or not life.has_begun
    return life.detail if is_wide or is_known else "it is not known whether the job lives"
