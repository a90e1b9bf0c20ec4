"""A register is read as it was published: whole or as changes, in files or in Delta; what is damaged says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import Int64s, Period
from spark_throttle.record import pack
from spark_throttle.sharing.delta_exchange import DeltaExchange
from spark_throttle.sharing.exchange import Exchange, FileExchange
from spark_throttle.sharing.peers import UnreadableRegister, Update
from spark_throttle.sharing.register import WHOLE_BYTES, ShareRegister
from spark_throttle.sharing.report import Mark, ScopeRows, ShareReport
from spark_throttle.sharing.settings import ShareSettings
from tests.effort import examples


class MemoryExchange:
    """An exchange that keeps objects in a dictionary, and can be told to fail."""

    reads_at_once = 1

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failure: Exception | None = None
        self.read_names: list[str] = []

    def names(self) -> list[str]:
        self._fail()
        return sorted(self.objects)

    def read(self, name: str) -> bytes | None:
        self._fail()
        self.read_names.append(name)
        return self.objects.get(name)

    def write(self, name: str, content: bytes) -> None:
        self._fail()
        self.objects[name] = content

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


def rows_of(values: dict[int, int]) -> ScopeRows:
    """Return rows of scopes that differ in all columns by their values."""
    ids = np.array(sorted(values), dtype=np.int64)
    value = np.array([values[each] for each in ids.tolist()], dtype=np.int64)
    pairs = np.stack([value, value + 1], axis=1).astype(np.uint32)
    bins = (value % 3).astype(np.uint8)
    return ScopeRows(
        ids, pairs, (pairs % 256).astype(np.uint8), pairs, bins,
        np.repeat(pairs, bins, axis=0), np.repeat(value, bins).astype(np.uint32), np.zeros_like(bins),
    )  # fmt: skip


FORGET_MS = 100


class Publisher:
    """Publishes reports as `Sharing` would: whole, and how they differ from the one before."""

    def __init__(self, exchange: Exchange, member: str = "a", run: int = 0) -> None:
        self.register = ShareRegister(exchange, member, lambda: 0, FORGET_MS, run)
        self.run = run
        self.member = member
        self.number = 0
        self.rows = ScopeRows.empty()

    def publish(self, values: dict[int, int], published_ms: int = 10**12) -> ShareReport:
        rows, old = rows_of(values), self.rows
        self.number += 1
        self.rows = rows
        seen = {"b": Mark(3, 0, 4), "reader": Mark(5, 2**61, 6)}
        report = ShareReport(
            self.member, "name", Mark(1, self.run, self.number), published_ms, seen, rows, ShareSettings().terms
        )
        changed = rows.take(np.flatnonzero(rows.differ(old)))
        self.register.publish(Update(report, changed, np.setdiff1d(old.ids, rows.ids)))
        return report


def reader(exchange: Exchange, steady_ms: Callable[[], int] = lambda: 0) -> ShareRegister:
    return ShareRegister(exchange, "reader", steady_ms, FORGET_MS)


def ids(*values: int) -> Int64s:
    return np.array(sorted(values), dtype=np.int64)


def assert_equal(rows: ScopeRows, expected: ScopeRows) -> None:
    for name in ScopeRows.__slots__:
        assert getattr(rows, name).tolist() == getattr(expected, name).tolist(), name


@pytest.fixture(params=["files", "delta"])
def exchange(request: pytest.FixtureRequest, tmp_path: Path) -> Exchange:
    location = str(tmp_path / "exchange")
    return FileExchange(location) if request.param == "files" else DeltaExchange(location)


# Exchanges


def test_exchange_holds_what_was_put_last(exchange: Exchange) -> None:
    assert exchange.names() == []
    assert exchange.read("a.head") is None
    exchange.write("a.head", b"1")
    exchange.write("b.head", b"2")
    exchange.write("a.head", b"3" * 1000)
    assert exchange.names() == ["a.head", "b.head"]
    assert (exchange.read("a.head"), exchange.read("b.head")) == (b"3" * 1000, b"2")
    exchange.delete("a.head")
    exchange.delete("nobody's")
    assert exchange.names() == ["b.head"]


@pytest.mark.slow
def test_jobs_that_write_at_once_do_not_lose_each_others_reports(exchange: Exchange, tmp_path: Path) -> None:
    failed: list[Exception] = []

    def write(name: str) -> None:
        own = type(exchange)(str(tmp_path / "exchange"))  # type: ignore[call-arg]
        try:
            for number in range(5):
                own.write(name, str(number).encode())
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must show it
            failed.append(error)

    threads = [threading.Thread(target=write, args=(f"job{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [exchange.read(f"job{n}") for n in range(4)] == [b"4"] * 4


@pytest.mark.slow
def test_delta_exchange_keeps_its_objects_when_it_removes_old_files(tmp_path: Path) -> None:
    exchange = DeltaExchange(str(tmp_path / "table"))
    for number in range(5):
        exchange.write("a", str(number).encode())
    exchange._clean()
    assert exchange.read("a") == b"4"


# Reports


def test_report_is_read_as_it_was_published_but_for_what_it_had_seen_of_others_than_the_reader(
    exchange: Exchange,
) -> None:
    published = Publisher(exchange).publish({5: 1, 9: 2, 7: 3})
    found = reader(exchange).read(ids(5, 6, 9))
    report = found.reports["a"]
    assert (report.member, report.name, report.mark, report.published_ms, report.seen) == (
        "a", "name", Mark(1, 0, 1), 10**12, {"reader": Mark(5, 2**61, 6)},
    )  # fmt: skip
    assert_equal(report.rows, published.rows.only(ids(5, 9)))
    assert not found.unreadable


many = st.dictionaries(st.integers(0, 30), st.integers(0, 1000), max_size=20)


@pytest.mark.slow
@examples(15)
@given(st.lists(st.tuples(many, st.booleans(), st.booleans()), max_size=12), st.sets(st.integers(0, 30)))
def test_any_reports_are_read_as_they_were_published_whatever_was_missed(
    steps: list[tuple[dict[int, int], bool, bool]], wanted: set[int]
) -> None:
    exchange = MemoryExchange()
    publisher, register = Publisher(exchange), reader(exchange)
    publisher.register._base_bytes = 0
    filler = {n: n for n in range(1000, 1600)}  # more than goes without a base
    asked = ids(*wanted)
    for number, (changing, fails, is_read) in enumerate(steps):
        exchange.failure = OSError("full") if fails else None
        values = changing | filler
        if fails:
            with pytest.raises(OSError, match="full"):
                publisher.publish(values)
        else:
            publisher.publish(values)
            if number == len(steps) // 2:
                asked = np.union1d(asked, ids(3, 17))  # scopes that the reader takes up later
            if is_read:
                assert_equal(register.read(asked).reports["a"].rows, rows_of(values).only(asked))
    exchange.failure = None
    published = publisher.publish({1: 1} | filler)
    assert published.rows.nbytes > WHOLE_BYTES
    assert_equal(reader(exchange).read(ids(1, 2, 1001)).reports["a"].rows, published.rows.only(ids(1, 1001)))


@pytest.mark.slow
def test_change_of_few_scopes_costs_few_bytes_and_the_base_is_read_once() -> None:
    exchange = MemoryExchange()
    publisher, register = Publisher(exchange), reader(exchange)
    values = {n: n for n in range(5000)}
    asked = ids(*range(5000))
    publisher.publish(values)
    register.read(asked)
    whole = publisher.register.written_bytes
    for cycle in range(10):
        values[cycle] = 7_777
        publisher.publish(values)
        assert_equal(register.read(asked).reports["a"].rows, rows_of(values))
    assert publisher.register.written_bytes - whole < whole // 10
    assert sum(name.endswith(".base") for name in exchange.read_names) == 1
    assert len(exchange.objects) == 2


def test_base_is_written_anew_before_the_heads_cost_more_and_the_old_one_is_removed() -> None:
    exchange = MemoryExchange()
    publisher = Publisher(exchange)
    values = dict.fromkeys(range(1000), 1)
    publisher.publish(values)
    base = [name for name in exchange.objects if name.endswith(".base")]
    for cycle in range(2, 8):
        publisher.publish(dict.fromkeys(values, cycle))
    assert [name for name in exchange.objects if name.endswith(".base")] != base
    assert len(exchange.objects) == 2
    assert publisher.register.written_bytes < 8 * 1.2 * rows_of(values).nbytes


def test_report_whose_base_is_replaced_while_it_is_read_is_read_again() -> None:
    exchange = MemoryExchange()
    publisher = Publisher(exchange)
    publisher.publish(dict.fromkeys(range(1000), 1))
    old = dict(exchange.objects)
    values = dict.fromkeys(range(1000), 1)
    while (base := [name for name in exchange.objects if name.endswith(".base")]) == [n for n in old if n in base]:
        values = {each: value + 1 for each, value in values.items()}
        publisher.publish(values)
    newest, stale = exchange.objects["a.head"], [old["a.head"]]
    reads = exchange.read
    exchange.read = lambda name: stale.pop() if name == "a.head" and stale else reads(name)  # type: ignore[method-assign]
    found = reader(exchange).read(ids(1))
    assert exchange.objects["a.head"] == newest
    assert found.reports["a"].rows.claim[0, 0] == values[1]


def test_report_whose_base_is_lost_cannot_be_read_until_its_job_writes_it_again() -> None:
    exchange = MemoryExchange()
    publisher = Publisher(exchange)
    publisher.publish(dict.fromkeys(range(1000), 1))
    for is_lost in (True, False):
        (base,) = [name for name in exchange.objects if name.endswith(".base")]
        exchange.objects[base] = b"garbled"
        if is_lost:
            del exchange.objects[base]
        found = reader(exchange).read(ids(1))
        assert not found.reports
        assert found.unreadable.keys() == {"a"}
        # The job finds out when it visits, and its next report has a new base.
        assert not publisher.register.read(ids(1)).is_own_whole
        publisher.publish(dict.fromkeys(range(1000), 1))
        assert reader(exchange).read(ids(1)).reports.keys() == {"a"}
        assert publisher.register.read(ids(1)).is_own_whole


def test_register_that_cannot_be_opened_is_named_and_the_others_are_read() -> None:
    exchange = MemoryExchange()
    Publisher(exchange).publish({1: 1})
    Publisher(exchange, "b").publish({1: 2})
    reads = exchange.read

    def refusing(name: str) -> bytes | None:
        if name == "a.head":
            raise PermissionError(13, "Permission denied")
        return reads(name)

    exchange.read = refusing  # type: ignore[method-assign]
    found = reader(exchange).read(ids(1))
    assert found.reports.keys() == {"b"}
    assert found.unreadable["a"] == UnreadableRegister("PermissionError: [Errno 13] Permission denied", None)
    # If a job's own register cannot be read, the exchange is at fault.
    with pytest.raises(PermissionError):
        ShareRegister(exchange, "a", lambda: 0, FORGET_MS).read(ids(1))


@pytest.mark.slow
def test_registers_are_read_several_at_a_time_and_a_read_that_never_ends_keeps_no_process_alive() -> None:
    exchange = MemoryExchange()
    for number in range(64):
        Publisher(exchange, f"job{number:02}").publish({1: 1})
    together, reads = threading.Barrier(16, timeout=60), exchange.read

    threads = set[threading.Thread]()

    def waiting(name: str) -> bytes | None:
        threads.add(threading.current_thread())
        together.wait()  # until sixteen are here
        return reads(name)

    exchange.reads_at_once, exchange.read = 16, waiting  # type: ignore[method-assign]
    assert len(reader(exchange).read(ids(1)).reports) == 64
    assert [each.daemon for each in threads - {threading.current_thread()}] == [True] * 15


def test_register_whose_bytes_are_whole_and_say_nothing_is_one_that_cannot_be_understood() -> None:
    exchange = MemoryExchange()
    Publisher(exchange, "b").publish({1: 2})
    exchange.objects["a.head"] = pack(Mark(1, 2, 3))
    found = reader(exchange).read(ids(1))
    assert found.reports.keys() == {"b"}
    assert "it holds Mark, not StoredHead" in found.unreadable["a"].problem
    assert found.unreadable["a"].digest is not None


def test_folder_in_an_exchange_is_no_register(tmp_path: Path) -> None:
    exchange = FileExchange(str(tmp_path))
    Publisher(exchange).publish({1: 1})
    (tmp_path / "old.1.head").mkdir()
    found = reader(exchange).read(ids(1))
    assert found.reports.keys() == {"a"}
    assert not found.unreadable


def test_register_that_cannot_be_understood_is_removed_once_it_has_stood_for_too_long() -> None:
    exchange, now_ms = MemoryExchange(), [0]
    exchange.objects["a.1f.head"] = b"garbled"
    register = reader(exchange, lambda: now_ms[0])
    assert register.read(ids(1)).unreadable
    now_ms[0] = FORGET_MS - 1
    exchange.objects["a.1f.head"] = b"garbled in another way"
    register.read(ids(1))
    now_ms[0] = 2 * FORGET_MS - 2
    register.read(ids(1))
    assert exchange.objects
    now_ms[0] = 2 * FORGET_MS - 1
    register.read(ids(1))
    assert not exchange.objects


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _: b"garbled", "it has 7 bytes"),
        (lambda block: block[:-3], "checksum"),
        (lambda _: b"", "it has 0 bytes"),
    ],
)
def test_report_that_cannot_be_understood_is_named_and_the_others_are_read(
    damage: Callable[[bytes], bytes], said: str
) -> None:
    exchange = MemoryExchange()
    Publisher(exchange).publish({1: 1})
    Publisher(exchange, "b").publish({1: 2})
    exchange.objects["a.head"] = damage(exchange.objects["a.head"])
    found = reader(exchange).read(ids(1))
    assert found.reports.keys() == {"b"}
    assert said in found.unreadable["a"].problem


def test_report_under_another_jobs_name_is_not_believed() -> None:
    exchange = MemoryExchange()
    Publisher(exchange).publish({1: 1})
    exchange.objects["b.head"] = exchange.objects["a.head"]
    assert "it belongs to 'a'" in reader(exchange).read(ids(1)).unreadable["b"].problem


def test_report_that_stands_for_too_long_is_passed_over_and_removed_with_its_base() -> None:
    exchange, now_ms = MemoryExchange(), [-5]
    lives = Publisher(exchange, "b")
    Publisher(exchange).publish(dict.fromkeys(range(1000), 1))
    register = reader(exchange, lambda: now_ms[0])
    for now_ms[0] in (-5, FORGET_MS - 6):
        lives.publish({1: 2})
        assert register.read(ids(1)).reports.keys() == {"a", "b"}
    now_ms[0] = FORGET_MS - 5
    assert register.read(ids(1)).reports.keys() == {"b"}
    assert exchange.objects.keys() == {"b.head"}


@pytest.mark.parametrize("published_ms", [-(10**15), 5, 10**15])
def test_report_is_read_whatever_the_wall_clock_of_its_machine_says(published_ms: int) -> None:
    exchange = MemoryExchange()
    Publisher(exchange).publish({1: 1}, published_ms=published_ms)
    for steady_ms in (-(10**15), 10**15):
        assert reader(exchange, lambda now_ms=steady_ms: now_ms).read(ids(1)).reports.keys() == {"a"}  # type: ignore[misc]


def test_rows_say_which_of_them_differ() -> None:
    rows = rows_of({1: 1, 2: 2, 3: 4, 4: 5})
    other = replace(rows, bin_weight=rows.bin_weight + (rows.bin_row == 1).astype(np.uint32)).take(ids(0, 1, 2))
    assert rows.differ(other).tolist() == [False, True, False, True]


# Runs


def test_each_run_of_a_job_has_a_register_of_its_own_and_both_are_read() -> None:
    exchange = MemoryExchange()
    big, bigger = dict.fromkeys(range(1000), 1), dict.fromkeys(range(1000), 2)
    first, second = Publisher(exchange, run=10), Publisher(exchange, run=11)
    first.publish(big)
    second.publish(bigger)
    first.publish(big)
    register = reader(exchange)
    found = {report.mark: report.rows for report in register.read(ids(1, 2)).reports.values()}
    assert found.keys() == {Mark(1, 10, 2), Mark(1, 11, 1)}
    assert_equal(found[Mark(1, 10, 2)], rows_of({1: 1, 2: 1}))
    assert_equal(found[Mark(1, 11, 1)], rows_of({1: 2, 2: 2}))


def test_run_removes_the_registers_of_those_before_it_and_no_others() -> None:
    exchange = MemoryExchange()
    for run in (0, 7, 9):
        Publisher(exchange, run=run).publish(dict.fromkeys(range(1000), 1))
    Publisher(exchange, "b").publish({1: 1})
    exchange.objects["a.3.head"] = b"garbled"
    own = Publisher(exchange, run=8)
    own.publish({1: 1})
    found = own.register.read(ids(1))
    assert not found.unreadable
    own.register.remove_before(Mark(1, 8, 1))
    left = {name for name in exchange.objects if name.endswith(".head")}
    assert left == {"a.8.head", "a.9.head", "b.head"}
    assert sum(name.endswith(".base") for name in exchange.objects) == 1


def of_an_hour(publisher: Publisher, claims: dict[int, int], period: Period = Period.HOUR) -> None:
    """Publish claims of budgets of an hour, or of another period."""
    rows = rows_of(claims)
    rows = replace(rows, period=np.full_like(rows.period, 1 + period))
    publisher.number += 1
    mark = Mark(1, publisher.run, publisher.number)
    report = ShareReport(publisher.member, publisher.member, mark, 0, {}, rows, ShareSettings().terms)
    publisher.register.publish(Update(report, rows, np.zeros(0, dtype=np.int64)))


@pytest.mark.parametrize(("period", "hours"), [(Period.HOUR, 1), (Period.DAY, 24), (Period.MONTH, 31 * 24)])
def test_report_that_claims_a_budget_stands_until_its_windows_have_surely_ended(period: Period, hours: int) -> None:
    exchange, now_ms = MemoryExchange(), [0]
    of_an_hour(Publisher(exchange), {1: 5}, period)
    register = reader(exchange, lambda: now_ms[0])
    for now_ms[0] in (0, 3 * hours * 3_600_000 - 1):
        assert register.read(ids(1)).reports.keys() == {"a"}
    now_ms[0] = 3 * hours * 3_600_000
    assert not register.read(ids(1)).reports
    assert not exchange.objects


@pytest.mark.parametrize(("shared", "stands"), [((1, 2), False), ((1,), True)])
def test_register_of_an_earlier_run_stays_while_it_claims_a_budget_that_this_run_does_not_share(
    shared: tuple[int, ...], stands: bool
) -> None:
    exchange = MemoryExchange()
    of_an_hour(Publisher(exchange, run=7), {1: 5, 2: 6})
    own = Publisher(exchange, run=8)
    own.publish({1: 1})
    found = own.register.read(ids(*shared))
    assert found.reports["a.7"].rows.amount.tolist() == [5, 6][: len(shared)]
    own.register.remove_before(Mark(1, 8, 1))
    assert ("a.7.head" in exchange.objects) == stands


def test_base_of_a_job_that_started_a_million_times_is_read() -> None:
    exchange = MemoryExchange()
    publisher = Publisher(exchange, run=2**62 - 1)
    mark = Mark(10**6 << 20, publisher.run, 1)
    rows = rows_of(dict.fromkeys(range(1000), 5))
    report = ShareReport("a", "name", mark, 10**12, {}, rows, ShareSettings().terms)
    publisher.register.publish(Update(report, rows, ids()))
    (report,) = reader(exchange).read(ids(7)).reports.values()
    assert report.mark == mark
    assert_equal(report.rows, rows_of({7: 5}))
