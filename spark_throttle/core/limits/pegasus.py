"""Pegasus' throttling rules: beyond one number of units per wall-clock second, delay; beyond another, reject.

A namespace's second starts at ``floor(now_ms / 1000)`` with nothing counted. A row adds its units (1, or its
size). If the total then exceeds the reject threshold, the units are taken back and the row is rejected; else,
if it exceeds the delay threshold, the row waits `delay_ms`. Rejection is tested first, so equal thresholds
never delay. A threshold of 0 is off (Apache Pegasus, `throttling_controller`). The rule by count is tested before the
rule by size, and a row that either rejects is counted in neither.

Units that are taken back leave room for a smaller row, so the rows that pass by size are not a prefix. They are found
in rounds over all namespaces at once. A round passes each namespace's rows up to the first that does not fit,
and drops every later row that would not fit even alone; each round but the last passes at least one row. Among the rows
that pass, the delayed ones are a suffix. Rows of a namespace that reaches no threshold in a batch are only counted.

Throttling strings are read as Pegasus reads them. A string is one or two rules separated by commas, each
`<units>[K|M]*(delay|reject)*<ms>`, and each action at most once: `2000*delay*100,5K*reject*50`. K is 1024 and M is
1024^2. Spaces around the parts and empty rules between commas are skipped, as in Pegasus; hexadecimal and octal
numbers, which its number reader accepts, are refused. 0 units turn the rule off. Units, which Pegasus holds in 64
unsigned bits, are at most 2^63 - 1 here, and a wait is at most `MAX_DURATION_MS`.

Pegasus divides units by a table's partitions and adds one; here a rule applies to a namespace as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_throttle.core.arithmetic.segments import Segments, running_total, sums
from spark_throttle.core.arithmetic.units import MAX_DURATION_MS, describe
from spark_throttle.core.quota import Bools, Dimension, Int64s, WindowRules
from spark_throttle.errors import PolicyError

_MULTIPLIERS: Final = {"K": 2**10, "M": 2**20}
_UNSIGNED = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_MAX_UNITS: Final = 2**63 - 1
_MAX_DIGITS: Final = 20
_FIELDS: Final = 3


@dataclass(frozen=True, slots=True)
class PegasusRule:
    """The units that may pass within a wall-clock second, and the treatment of the rest; 0 units means off."""

    delay_units: int = 0
    """The units that may pass before delay begins."""

    delay_ms: int = 0
    """How long a delayed message waits."""

    reject_units: int = 0
    """The units that may pass before rejection begins."""

    reject_ms: int = 0
    """The throttle time reported with a rejected message."""


def parse_throttling(text: str) -> PegasusRule:
    """Return the rule that `text` spells.

    Raises
    ------
    PolicyError
        If Pegasus would refuse the text; the problem uses Pegasus' own words where it has any.

    Examples
    --------
    >>> parse_throttling("20K*delay*100,20M*reject*50")
    PegasusRule(delay_units=20480, delay_ms=100, reject_units=20971520, reject_ms=50)
    """
    rules: dict[str, tuple[int, int]] = {}
    for rule in (part.strip() for part in text.split(",")):
        if not rule:
            continue
        fields = [field.strip() for field in rule.split("*")]
        if len(fields) != _FIELDS:
            msg = f"the field count of {describe(rule)} separated by '*' must be 3, as in 2000*delay*100"
            raise PolicyError("", msg)
        units, action, wait = parse_units(fields[0]), fields[1], fields[2]
        if action not in ("delay", "reject"):
            raise PolicyError("", f"{describe(action)} should be 'delay' or 'reject'")
        wait_ms = _parse_unsigned(wait, wait)
        if wait_ms > MAX_DURATION_MS:
            raise PolicyError("", f"{describe(wait)} ms result is overflow: a wait is at most {MAX_DURATION_MS} ms")
        if action in rules:
            raise PolicyError("", f"duplicate '{action}' config in {describe(text)}; keep one of them")
        rules[action] = (units, wait_ms)
    if not rules:
        msg = "the value should not be empty; write a rule such as 2000*delay*100, or leave the key out"
        raise PolicyError("", msg)
    return PegasusRule(*rules.get("delay", (0, 0)), *rules.get("reject", (0, 0)))


def parse_units(text: str) -> int:
    """Return a number of units, where the suffixes K and M are powers of 1024.

    Examples
    --------
    >>> parse_units("10M"), parse_units("1K"), parse_units("100")
    (10485760, 1024, 100)
    """
    multiplier = _MULTIPLIERS.get(text[-1:], 1)
    units = _parse_unsigned(text if multiplier == 1 else text[:-1], text) * multiplier
    if units > _MAX_UNITS:
        raise PolicyError("", f"{describe(text)} result is overflow: at most 2^63 - 1 units")
    return units


def _parse_unsigned(digits: str, written: str) -> int:
    if not _UNSIGNED.fullmatch(digits):
        msg = f"{describe(written)} should be an unsigned integer, of units with at most one K or M behind it"
        raise PolicyError("", msg)
    return int(digits[: _MAX_DIGITS + 1])


_NO_THRESHOLD = 1 << 62

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES


@dataclass(frozen=True, slots=True, eq=False)
class WindowVerdicts:
    """The verdicts of the rules on the rows of a batch, and the windows after it."""

    rejected_by: npt.NDArray[np.int8]
    """The `Dimension` whose rule rejects the row, -1 where none does."""

    release_ms: Int64s
    """The batch time before which the row may not leave; 0 where no rule delays it."""

    units: Int64s
    """Shape (flows, 2): the units that have passed in this second."""


def plan_windows(flow: Int64s, size_bytes: Int64s, used: Int64s, rules: WindowRules, *, now_ms: int) -> WindowVerdicts:
    """Apply the rules to the arrivals of a batch.

    Parameters
    ----------
    flow, size_bytes
        The flow and the size of every arrival, in order.
    used
        Shape (flows, 2): the units that have already passed in the second of `now_ms`.
    rules
        The rules, one position per flow.

    Examples
    --------
    Under ``2*delay*100,3*reject*50``, two rows pass, one waits, and the fourth is rejected:

    >>> pair = lambda n: np.array([[n, 0]])
    >>> rules = WindowRules(pair(2), pair(100), pair(3), pair(50))
    >>> w = plan_windows(np.zeros(4, int), np.ones(4, int), pair(0), rules, now_ms=1_000)
    >>> w.release_ms.tolist(), w.rejected_by.tolist()
    ([0, 0, 1100, 0], [-1, -1, -1, 0])
    """
    rejected_by, release_ms = np.full(len(flow), -1, dtype=np.int8), np.zeros(len(flow), dtype=np.int64)
    counts = np.bincount(flow, minlength=len(rules))
    would = used + np.stack([counts, sums(flow, size_bytes, len(rules))], axis=1)
    units = np.where(rules.has_rule[:, None], would, used)
    delay, reject = (np.where(each > 0, each, _NO_THRESHOLD) for each in (rules.delay_units, rules.reject_units))
    reaches = np.logical_or.reduce(would > np.minimum(delay, reject), axis=1)
    if not reaches.any():
        return WindowVerdicts(rejected_by, release_ms, units)
    rows = None if reaches.all() else np.flatnonzero(reaches[flow])
    if rows is not None:
        flow, size_bytes, counts = flow[rows], size_bytes[rows], np.where(reaches, counts, 0)
    laid_out = Segments.with_counts(flow, counts)
    at = laid_out.order if rows is None else rows[laid_out.order]
    laid_out, size_bytes = Segments(at, laid_out.starts, counts), size_bytes[laid_out.order]
    room = reject - used
    passed = _passing(laid_out, size_bytes, room)
    if passed is not None:
        refused = np.flatnonzero(~passed)
        rejected_by[at[refused]] = _refused_by(laid_out, passed, refused, room[:, _MESSAGES])
        through = np.flatnonzero(passed)
        laid_out, size_bytes = laid_out.kept(passed), size_bytes[through]
    total = running_total(size_bytes)
    passing = np.stack([laid_out.counts, laid_out.sums(total)], axis=1)
    units = np.where(reaches[:, None] & rules.has_rule[:, None], used + passing, units)
    release_ms[laid_out.order] = _release_ms(laid_out, total, delay - used, rules.delay_ms, now_ms=now_ms)
    return WindowVerdicts(rejected_by, release_ms, units)


def _passing(laid_out: Segments, size_bytes: Int64s, room: Int64s) -> Bools | None:
    """Return which laid-out rows pass, `None` if all do; `room` has the shape (flows, 2)."""
    room_messages, room_bytes = np.maximum(room[:, _MESSAGES], 0), room[:, _BYTES]
    passed, at = np.zeros(len(size_bytes), dtype=np.bool_), None
    while True:
        total = running_total(size_bytes)
        fits = np.minimum(room_messages, laid_out.fitting(total, room_bytes))
        if at is None and (fits >= laid_out.counts).all():
            return None
        fits = np.minimum(fits, laid_out.counts)
        now_passing = laid_out.first_of_each(fits)
        passed[now_passing if at is None else at[now_passing]] = True
        room_messages = room_messages - fits
        room_bytes = room_bytes - laid_out.sums(total, fits)
        most_bytes = np.where(room_messages > 0, room_bytes, -1)
        if (most_bytes < 0).all():
            return passed
        pending = ~now_passing & (size_bytes <= np.repeat(most_bytes, laid_out.counts))
        stays = np.flatnonzero(pending)
        if not len(stays):
            return passed
        laid_out, size_bytes = laid_out.kept(pending), size_bytes[stays]
        at = stays if at is None else at[stays]


def _refused_by(laid_out: Segments, passed: Bools, refused: Int64s, room_messages: Int64s) -> npt.NDArray[np.int8]:
    """Return the dimension that refuses each of the `refused` laid-out rows."""
    before = running_total(passed.astype(np.int8))
    through = before[laid_out.starts + laid_out.counts] - before[laid_out.starts]
    passed_before = before[refused] - np.repeat(before[laid_out.starts], laid_out.counts - through)
    is_over_count = passed_before >= np.repeat(room_messages, laid_out.counts - through)
    return np.where(is_over_count, np.int8(_MESSAGES), np.int8(_BYTES))


def _release_ms(laid_out: Segments, total: Int64s, room: Int64s, delay_ms: Int64s, *, now_ms: int) -> Int64s:
    """Return the release times of laid-out rows that pass.

    Parameters
    ----------
    total
        The running total of their sizes.
    room
        Shape (flows, 2): the units that may pass before delay begins.
    """
    by_messages = np.clip(room[:, _MESSAGES], 0, laid_out.counts)
    by_bytes = laid_out.fitting(total, room[:, _BYTES])
    first, second = np.minimum(by_messages, by_bytes), np.maximum(by_messages, by_bytes)
    of_first = np.where(by_messages < by_bytes, delay_ms[:, _MESSAGES], delay_ms[:, _BYTES])
    until_ms = np.stack([np.zeros_like(first), now_ms + of_first, now_ms + delay_ms.max(axis=1)], axis=1)
    lengths = np.stack([first, second - first, laid_out.counts - second], axis=1)
    return np.repeat(until_ms.ravel(), lengths.ravel())
