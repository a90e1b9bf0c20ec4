"""Reports in an exchange: how a job's register is written, and how all registers are read.

A register is the object ``<member>.<run>.head`` and, once its report is longer than a few pages, a base (`report`). The
base is rewritten when the heads since then have cost as many bytes: so what a job writes is within twice the least.
Each run of a job has a register of its own. So two runs that are alive at once do not overwrite each other's reports,
and every job sees both. A run that is established removes the registers of the runs before it. (Releases that drew no
bits for a run wrote ``<member>.head``.)
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import DamagedError, StoredFormatError
from spark_throttle.sharing.budget_claims import are_all_among
from spark_throttle.sharing.exchange import Exchange, read_all
from spark_throttle.sharing.peers import UnreadableRegister, Update, Visit, member_of
from spark_throttle.sharing.report import (
    EMPTY_ROWS,
    NO_MARK,
    Head,
    Mark,
    ScopeRows,
    ShareReport,
    found_in,
    joined,
    pack_base,
    pack_head,
    unpack_base,
    unpack_head,
)

logger = logging.getLogger(__name__)

_HEAD, _BASE = ".head", ".base"

WHOLE_BYTES: Final = 16_384
"""Reports up to this size have no base."""

_LONGEST_MS: Final = (0, 3 * 3_600_000, 3 * 86_400_000, 93 * 86_400_000)
"""How long a register is kept that claims a budget: three times its period."""

_NO_BASE = 0
_BASE_BITS: Final = (1 << 62) - 1


class ShareRegister:
    """The registers of an exchange, as one job writes and reads them. For use by one thread.

    Parameters
    ----------
    member
        The job whose register is written.
    steady_ms
        A clock of this process that is never set.
    forget_ms
        A report that has stood for this long since this process first saw it is of a job that is gone: it is removed.
        When it was written, by the wall clock of its machine, does not count: clocks may differ by any amount.
    run
        The run of this process, as in its marks.
    check_ms
        How often to read this job's own base, to see whether it is still what was written; 0 is at every visit.
    """

    def __init__(
        self,
        exchange: Exchange,
        member: str,
        steady_ms: Callable[[], int],
        forget_ms: int,
        run: int = 0,
        check_ms: int = 0,
    ) -> None:
        self._exchange = exchange
        self._member = member
        self._stem = _stem(member, run)
        self._before: dict[str, Mark] = {}
        self._names: list[str] = []
        self._steady_ms = steady_ms
        self._forget_ms = forget_ms
        self._stands: dict[str, tuple[Mark | str, int]] = {}
        """By register: the mark of its last report, or the digest of what cannot be read; and when first seen."""

        self._check_ms = check_ms
        self._checked_ms = steady_ms()
        self._base = _NO_BASE
        self._base_digest = ""
        self._base_bytes = 0
        self._head_bytes = 0
        self._since = ScopeRows.empty()
        self._removed = np.zeros(0, dtype=np.int64)
        self._ids = np.zeros(0, dtype=np.int64)
        self._known: dict[str, tuple[tuple[int, int], ScopeRows]] = {}
        self._longest: dict[str, int] = {}
        """By register: the longest period of a budget that it claims."""

        self.written_bytes = 0
        """Bytes that this process has written in total."""

    # ------------------------------------------------------------------------------------------------------ writing

    def publish(self, update: Update) -> None:
        """Replace this job's report."""
        report = update.report
        # Before anything can fail: if this write does, the next head must hold these changes too.
        self._since = self._since.updated(update.changed, update.removed)
        gone = np.union1d(self._removed, update.removed)
        self._removed = gone[~found_in(gone, update.changed.ids)]
        old = self._base
        if report.rows.nbytes <= WHOLE_BYTES:
            self._write_head(report, report.rows, _NO_BASE, np.zeros(0, dtype=np.int64))
        else:
            if self._base == _NO_BASE or self._head_bytes >= self._base_bytes:
                self._write_base(report)
            self._write_head(report, self._since, self._base, self._removed)
        if old not in (_NO_BASE, self._base):
            self._exchange.delete(self._base_name(old))

    def _write_base(self, report: ShareReport) -> None:
        block = pack_base(report.rows)
        number = (report.mark.incarnation << 32 | report.mark.number) & _BASE_BITS
        self._write(self._base_name(number), block)
        self._base, self._base_bytes, self._head_bytes = number, len(block), 0
        self._base_digest, self._checked_ms = _digest(block), self._steady_ms()
        self._since, self._removed = ScopeRows.empty(), np.zeros(0, dtype=np.int64)

    def _write_head(self, report: ShareReport, rows: ScopeRows, base: int, removed: Int64s) -> None:
        claimed = report.rows.period[report.rows.is_budget & (report.rows.amount > 0)]
        longest = int(claimed.max(initial=0))
        block = pack_head(Head(replace(report, rows=rows), base, removed, len(claimed), longest))
        self._write(self._stem + _HEAD, block)
        self._head_bytes += len(block)
        self._base = base

    def _write(self, name: str, block: bytes) -> None:
        self._exchange.write(name, block)
        self.written_bytes += len(block)

    def _base_name(self, number: int) -> str:
        return f"{self._stem}.{number:x}{_BASE}"

    # ------------------------------------------------------------------------------------------------------ reading

    def read(self, ids: Int64s) -> Visit:
        """Return what the registers hold about the scopes `ids`, which ascend."""
        if not found_in(ids, self._ids).all():
            self._known.clear()  # rows of the new scopes were skipped
        self._ids = ids
        own = self._stem + _HEAD
        self._names = sorted(self._exchange.names(), key=lambda name: (name != own, name))
        self._before = {}
        unreadable: dict[str, UnreadableRegister] = {}
        heads = self._heads(unreadable)
        reports: dict[str, ShareReport] = {}
        self._longest |= {stem: head.longest for stem, head in heads.items()}
        for (stem, head), changed in zip(
            heads.items(), _only([head.report.rows for head in heads.values()], ids), strict=True
        ):
            report: ShareReport | None = replace(head.report, rows=EMPTY_ROWS)
            if head.report.member != self._member:
                report = self._whole(stem, head, changed, unreadable)
            elif stem != self._stem:
                whole = self._whole(stem, head, changed, {}) if head.budgets else report
                report = whole or report
                # What it claims of budgets that this run does not share counts while the register is there.
                if whole is not None and are_all_among(whole.rows, ids, head.budgets):
                    self._before[stem] = head.report.mark
            if report is not None:
                reports[stem] = report
        is_head_whole, is_base_whole = unreadable.pop(self._stem, None) is None, self._check_base()
        for stem in [each for each in unreadable if member_of(each) == self._member]:
            del unreadable[stem]
            self._before[stem] = NO_MARK  # the register of an earlier run: it will be removed
        self._forget(reports, unreadable)
        return Visit(reports, unreadable, is_head_whole and is_base_whole)

    def remove_before(self, mark: Mark) -> None:
        """Remove the registers of this job's runs before `mark` that the last `read` found."""
        for stem, each in self._before.items():
            if each < mark:
                self._remove(stem)
        self._before = {}

    def _heads(self, unreadable: dict[str, UnreadableRegister]) -> dict[str, Head]:
        """Return the heads by register; those that cannot be read are added to `unreadable`."""
        heads: dict[str, Head] = {}
        names = [name for name in self._names if name.endswith(_HEAD)]
        # This job's own register first: if it cannot be read, the fault is the exchange's.
        first = [name for name in names[:1] if name == self._stem + _HEAD]
        blocks: list[bytes | BaseException | None] = [self._exchange.read(name) for name in first]
        for name, block in zip(names, blocks + read_all(self._exchange, names[len(first) :]), strict=True):
            stem = name.removesuffix(_HEAD)
            if isinstance(block, Exception):
                unreadable[stem] = UnreadableRegister(f"{type(block).__name__}: {block}", None)
            elif isinstance(block, BaseException):
                raise block
            elif block is not None:
                try:
                    heads[stem] = self._head(stem, block)
                except StoredFormatError as error:
                    unreadable[stem] = UnreadableRegister(_problem_of(error), _digest(block))
        return heads

    def _head(self, stem: str, block: bytes) -> Head:
        what = f"the report {stem}{_HEAD}"
        head = unpack_head(block, what, self._member)
        if _stem(head.report.member, head.report.mark.run) != stem:
            raise DamagedError(what, f"it belongs to {head.report.member!r}")
        return head

    def _whole(
        self, stem: str, head: Head, changed: ScopeRows, unreadable: dict[str, UnreadableRegister]
    ) -> ShareReport | None:
        """Return a report with all its rows for our scopes; `None` if it cannot be read, or was removed meanwhile."""
        try:
            return self._with_base(stem, head, changed)
        except StoredFormatError as error:
            unreadable[stem] = UnreadableRegister(_problem_of(error), str(head.report.mark))
        except Exception as error:  # noqa: BLE001 - an object may be unreadable in any way, and the visit goes on
            unreadable[stem] = UnreadableRegister(f"{type(error).__name__}: {error}", None)
        return None

    def _with_base(self, stem: str, head: Head, changed: ScopeRows) -> ShareReport | None:
        """Return a report with all its rows for our scopes; `None` if it was removed while we were reading.

        A base that is not there was replaced while we were reading, and then there is a newer head; or it is lost.
        """
        rows = self._rows(stem, head, changed)
        if rows is None:
            block = self._exchange.read(stem + _HEAD)
            if block is None:
                return None
            head = self._head(stem, block)
            rows = self._rows(stem, head, _only([head.report.rows], self._ids)[0])
        if rows is None:
            raise DamagedError(f"the report {stem}{_HEAD}", f"its base {head.base:x} is not there")
        return replace(head.report, rows=rows)

    def _rows(self, stem: str, head: Head, changed: ScopeRows) -> ScopeRows | None:
        """Return a report's rows for our scopes; `None` if its base is not there."""
        if head.base == _NO_BASE:
            return changed.take(np.arange(len(changed)))  # a copy, which keeps no larger array alive
        key = (head.report.mark.incarnation, head.base)
        known = self._known.get(stem)
        if known is None or known[0] != key:
            name = f"{stem}.{head.base:x}{_BASE}"
            base = self._exchange.read(name)
            if base is None:
                return None
            known = (key, unpack_base(base, f"the report {name}").only(self._ids))
        rows = known[1].updated(changed, head.removed)
        self._known[stem] = (key, rows)
        return rows

    def _check_base(self) -> bool:
        """Return whether others can read this job's base; if it is lost or altered, the next report has a new one."""
        if self._base == _NO_BASE:
            return True
        name, now_ms = self._base_name(self._base), self._steady_ms()
        is_whole = name in self._names
        if is_whole and now_ms - self._checked_ms >= self._check_ms:
            self._checked_ms = now_ms
            is_whole = _digest(self._exchange.read(name) or b"") == self._base_digest
        if not is_whole:
            logger.warning("exchange: the report %s of this job is lost or altered; it is written again", name)
            self._exchange.delete(name)
            self._base = _NO_BASE
        return is_whole

    def _forget(self, reports: dict[str, ShareReport], unreadable: Mapping[str, UnreadableRegister]) -> None:
        """Remove registers that have stood unchanged for too long, from the exchange and from `reports`."""
        now_ms, before = self._steady_ms(), self._stands
        found: dict[str, Mark | str] = {stem: report.mark for stem, report in reports.items()}
        found |= {stem: each.digest for stem, each in unreadable.items() if each.digest is not None}
        self._stands = {
            stem: before[stem] if stem in before and before[stem][0] == each else (each, now_ms)
            for stem, each in found.items()
        }
        for stem, (_, since_ms) in self._stands.items():
            # What a job that is gone claims of budgets counts until their windows have ended, by any job's clock.
            forget_ms = max(self._forget_ms, _LONGEST_MS[self._longest.get(stem, 0)])
            if now_ms - since_ms < forget_ms or member_of(stem) == self._member:
                continue
            report = reports.pop(stem, None)
            name = stem if report is None else report.name
            logger.info("exchange: job %s last reported long ago; its report is removed", name)
            self._remove(stem)

    def _remove(self, stem: str) -> None:
        self._known.pop(stem, None)
        self._longest.pop(stem, None)
        for name in self._names:
            if name == stem + _HEAD or (name.endswith(_BASE) and name.removesuffix(_BASE).rpartition(".")[0] == stem):
                self._exchange.delete(name)


def _stem(member: str, run: int) -> str:
    """Return the common beginning of the names of a run's objects."""
    return f"{member}.{run:x}" if run else member


def _problem_of(error: StoredFormatError) -> str:
    return error.problem if isinstance(error, DamagedError) else str(error)


def _digest(block: bytes) -> str:
    return hashlib.sha256(block).hexdigest()


def _only(parts: list[ScopeRows], ids: Int64s) -> list[ScopeRows]:
    """Return the rows of the scopes `ids` in every part, in one step for all parts: there are many small ones."""
    rows = joined(parts)
    is_ours = found_in(rows.ids, ids)
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    counts = np.diff(np.concatenate([[0], np.cumsum(is_ours)])[ends], prepend=0)
    return rows.take(np.flatnonzero(is_ours)).narrowed().split(counts)
