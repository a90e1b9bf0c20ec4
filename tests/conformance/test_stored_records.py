"""One stored record a kind: it stays readable, and is packed to the same bytes, as long as the format is what it is.

``python -m tests.conformance.test_stored_records`` writes what has no file. A file that no longer fits is not written
anew without a new `record.FORMAT`, once anything was released.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.definition import Definition, OpenBatch
from spark_throttle.checkpoint.delivery import Delivery
from spark_throttle.checkpoint.manifest import Drained, Manifest
from spark_throttle.control.notes import ExceptionInForce, NextPolicies, SignOfLife
from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.epoch import Epoch, SettledTime
from spark_throttle.core.limits.budgets import BudgetClaims, CalendarWindows, Spent
from spark_throttle.core.limits.token_bucket import ClockReading, PayingTime
from spark_throttle.core.measured_time import MeanPrices, MeasuredTime
from spark_throttle.core.quota import UNLIMITED, Destinations, Guarantees, OnExcess, Overflow, QueueBounds
from spark_throttle.core.reservations import LateCosts, Reservations
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.shares.destinations import DestinationRates, Told
from spark_throttle.core.state import ControlRow, DeciderState, Flows, NodeLeads, Queue, QueueFiles, StoredState
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.core.usage import pack_usage, unpack_head, unpack_usage
from spark_throttle.errors import DamagedError, UnknownVersionError
from spark_throttle.files.storage import Directory, read_block, read_note
from spark_throttle.record import of_json, pack, to_json, unpack
from spark_throttle.sharing.report import ReplacedRuns, StoredHead, StoredRows
from spark_throttle.sharing.settings import ShareTerms
from spark_throttle.sharing.status import Observation, PeerStatus
from spark_throttle.spark.metering.charging import Refusal
from spark_throttle.spark.move.held_files import HeldFiles
from spark_throttle.spark.move.waiting_files import InlineFiles
from spark_throttle.spark.references.extents import Extent, ExtentName, SourceFile
from spark_throttle.spark.rows.digest import InlineFile
from tests.core.reports import usage_of_two
from tests.oracle.worlds import Namespace, Tenant, Window, limit, make_policy

HERE: Final = Path(__file__).parent / "records"

NOTES: Final[list[Any]] = [
    Manifest("5eed-1", "publish"),
    Drained(41, "s3a://lake/waiting", "delta", "5eed", is_finished=True),
    OpenBatch(
        41,
        "0123456789abcdef",
        Definition(
            {"namespace": "ns", "order_by[0]": "id", "partitionBy": "day"},
            (("id", "bigint"), ("ns", "string"), ("day", "date")),
            "5eed",
            {"spark.sql.session.timeZone": "UTC"},
            {"the sink": "Delta /lake/zoë"},
        ),
    ),
    NextPolicies(
        "5eed0001", 7, "tenants.acme: unknown key", (ExceptionInForce("tenants.zoë", 1_760_000_000_000, "a move"),)
    ),
    SignOfLife("5eed", 7, 10_000, 1_760_000_000_000, 5_000_000, "boot", 20, 4_000, has_ended=True, cores=8),
    Refusal("it is busy", "acme", 2_500),
]
POLICY: Final = replace(
    make_policy(
        job=limit(
            messages_per_second=1_000,
            bytes_per_second=2**40,
            on_excess=OnExcess.OBSERVE,
            messages_per_day=7,
            bytes_per_month=2**40,
        ),
        tenants={"acme": Tenant(limit(messages_per_second=0.2, burst_seconds=10), "gold"), "zoë": Tenant()},
        groups={
            "gold": limit(
                bytes_per_second=5_000,
                weight=7,
                on_excess=OnExcess.REJECT,
                max_message_bytes=2**20,
                request_percentage=250,
                units_per_second=7,
            )
        },
        namespaces={
            "acme/orders": Namespace(limit(messages_per_second=0), None, Window(2_000, 100, 5_000, 50)),
            "zoë/ü/logs": Namespace(limit(weight=1000), "gold", Window(), Window(1024, 1, 2048, 2)),
            "zoë/*": Namespace(limit(weight=2, max_message_bytes=7), "gold"),
            "*/logs": Namespace(limit(bytes_per_second=7)),
        },
        exempt=["acme/audit", "infra/*"],
        between_namespaces=["gold"],
        default=Namespace(limit(messages_per_second=5, request_percentage=0.5)),
        queue=QueueBounds(1_000_000, 2**28, 60_000, Overflow.FAIL),
        revision="0123456789abcdef",
    ),
    time_zone="Europe/Berlin",
    unit="tokens",
    reservation_ms=90_000,
    destinations=Destinations(np.array([3]), np.array([5_000]), np.array([2_500]), np.array([1])),
    guarantees=Guarantees(
        np.array([1, 0]),
        np.array([-1, 1]),
        np.array([[1, 3, 0], [2, -1, 0]]),
        np.array([[5_000, -1, 3, 2**40], [0, 7, -1, -1]]),
        np.array([10_000, 1]),
        np.array([[1, 2, 7, 3], [4, 5, 8, 2**40]]),
    ),
)
ROWS: Final = StoredRows(
    np.array([5, 2**62]), np.array([[1, 2], [3, 2**32 - 1]], np.uint32), np.array([[0, 255], [1, 2]], np.uint8),
    np.array([[1, 2], [3, 4]], np.uint32), np.array([1, 2], np.uint8), np.array([[1, 2], [3, 4], [5, 6]], np.uint32),
    np.array([1, 1000, 7], np.uint32), np.array([0, 3], np.uint8),
)  # fmt: skip
COSTS: Final = LateCosts(np.array([[2**62, -5], [7, 0]]), np.array([2**36, 0]), 3)
CHARGES: Final = TimeCharges.of({"zoë/ü/logs": 2**40, "acme/orders": 0}, unattributed_ns=7, costs=COSTS)
NAMES: Final = pa.array(["acme/orders", "zoë/ü/logs"])
ONE, TWO, PAIRS = np.array([-1]), np.array([5, 2**40]), np.array([[0, 2**40], [-7, 5]])
TOKENS = np.array([[0, 2**40, 9, -1], [-7, 5, 2**36, 2**50]])
WINDOWS: Final = CalendarWindows(*np.array([[7, 1, 0], [5, 6, 2**41], [8, 9, 2**42]]))
CLAIMS: Final = BudgetClaims(PAIRS, PAIRS > 0, 2 * PAIRS, "5eed")
MEASURED: Final = MeasuredTime(NAMES, TWO, 2 * TWO, 3 * TWO, 4 * TWO)
UNDELIVERED: Final = Undelivered.of([
    UndeliveredCall("acme/orders", 0, 2**40), UndeliveredCall("zoë/ü/logs", 5, 7, 12, "9a3e", 3),
])  # fmt: skip
STATE: Final = DeciderState(
    5_000, Flows(NAMES, TOKENS, 5 * TOKENS, 2 * PAIRS, 3 * PAIRS, TWO, 4 * PAIRS, 2 * TWO, 3 * TWO,
                 Spent(PAIRS, 2 * PAIRS)),
    replace(Queue(np.array([1, 0, 1]), *np.arange(12).reshape(4, 3)), identity=np.arange(6).reshape(3, 2)),
    SharedBuckets(TOKENS, 4_000, 2 * TOKENS, 3 * TOKENS, Spent(PAIRS, 3 * PAIRS), CLAIMS, 4 * TOKENS), 7,
    NodeLeads(pa.array([None, "gold"], pa.string()), pa.array(["acme", None], pa.string()), PAIRS),
    replace(Queue(*np.arange(10).reshape(5, 2)), identity=np.arange(4).reshape(2, 2)), ONE,
    MeanPrices(5, 2**50, 2**41), 5, 7, WINDOWS,
    Reservations(np.array([[2**62, -5], [7, 0]]), *np.arange(12).reshape(6, 2)),
    CorrectedRows(ONE, ONE, TWO, 2 * TWO, 3 * TWO, PAIRS),
)  # fmt: skip
BLOCKS: Final[list[Any]] = [
    POLICY,
    StoredState(
        STATE, b"a policy", [b"a frame", b"\x00\xff"], np.array([0, 0, 1, 1, 1]), np.array([0, 2, 1, 3, 4]),
        PayingTime(5_000, 2**41), QueueFiles(3, ("0/2-b",), (("0/1-a", 6),), ("0/0-f",)), np.array([4, 0]),
    ),
    HeldFiles(
        7, 12, TWO, ("a.parquet", "b.parquet"), 2 * TWO, np.array([1, 0]), np.array([0, 1]), 3 * TWO,
        4 * TWO, 5 * TWO, 6 * TWO, ("", "000000000007-rest-b.parquet"), (("c.parquet", True),), (("d.parquet", 3),),
    ),
    InlineFiles(("b.parquet",), (b"\x00\xff",)),
    InlineFile("b.parquet", b"\x00\xff"),
    usage_of_two(),
    usage_of_two().head,
    ControlRow(7, b"a policy", PayingTime(5_000, 2**41), TOKENS, TWO, MEASURED, UNDELIVERED, TWO, WINDOWS,
               CLAIMS, 3 * TOKENS, COSTS),
    Epoch(
        7, "0123456789abcdef", 5_000, ClockReading(2**41, 2**41 + 1, 9, "boot"), 41, TOKENS, TWO,
        SettledTime(MEASURED, 4 * TWO, 5 * TWO, 6 * TWO, 7 * TWO, 1, 2, 3),
        DestinationRates(*np.arange(14).reshape(7, 2)), UNDELIVERED, WINDOWS, CLAIMS, 3 * TOKENS, COSTS,
    ),
    COSTS,
    replace(CHARGES, common_ns=np.array([0, 2**40])),
    Delivery(
        {"gold": Told(2**40, 3, 2**20, 0, 1_500, 2**41), "zoë": Told(0, 1, 1, 5, 2**40, slows=1)}, UNDELIVERED, ("zoë",)
    ),
    ROWS,
    StoredHead(
        "5eed", "a job", 10**12, 7, pa.array(["reader"]), np.array([[1 << 20, 2**62, 7], [5, 0, 6]]), np.array([9]),
        ROWS, ShareTerms(60_000, 10, 1), 1, 3, {"another": ReplacedRuns(2**62, np.array([5, 9]), np.array([7, 2**40]))},
    ),
    Extent(
        41, ExtentName(40, "000000000040-0123456789abcdef"),
        (SourceFile(3, "day=zoë/a.parquet", 100, 7, (("day", "zoë"),)),), {"version": 7},
        (SourceFile(0, "b.parquet", 100, 0, (("day", None),)),),
    ),
    Observation(
        np.array([5, 2**62]), np.array([[9, UNLIMITED]] * 2), np.array([[5, 0]] * 2), np.array([[7, 1]] * 2),
        (PeerStatus("another", "f00d", 250, "live"),), np.array([1]), np.array([0]), np.array([[3, 4]]),
        np.array([[1, 2]]), is_leased=True, lease_age_ms=1, lease_left_ms=2, as_of_ms=3, problem="it is slow",
    ),
]  # fmt: skip
RECORDS: Final[dict[str, Any]] = {f"{type(each).__name__}.json": each for each in NOTES}
RECORDS.update({f"{type(each).__name__}.bin": each for each in BLOCKS})


def written(name: str) -> bytes:
    return to_json(RECORDS[name]) if name.endswith(".json") else pack(RECORDS[name])


def read(name: str, content: bytes) -> Any:
    kind = type(RECORDS[name])
    return of_json(kind, content, name) if name.endswith(".json") else unpack(kind, content, name)


def plain(value: Any) -> Any:
    """A value in a form that compares arrays too."""
    if is_dataclass(value):
        return (type(value), {each.name: plain(getattr(value, each.name)) for each in fields(value)})
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tolist())
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, pa.Array):
        return (value.type, value.to_pylist())
    return value


def test_every_kind_has_a_file() -> None:
    assert {path.name for path in HERE.iterdir()} == RECORDS.keys()


@pytest.mark.parametrize("name", RECORDS)
def test_stored_record_stays_readable_and_is_written_as_it_was(name: str) -> None:
    content = (HERE / name).read_bytes()
    assert plain(read(name, content)) == plain(RECORDS[name])
    assert written(name) == content


@pytest.mark.parametrize("name", RECORDS)
def test_stored_record_that_is_cut_off_or_altered_is_refused(name: str) -> None:
    """A note that was altered may still say the same: it is text."""
    content = (HERE / name).read_bytes()
    for at in range(len(content)):
        with pytest.raises(DamagedError, match="is damaged"):
            read(name, content[:at])
        altered = content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
        if name.endswith(".bin"):
            with pytest.raises(DamagedError, match="is damaged"):
                read(name, altered)
        else:
            with suppress(DamagedError, UnknownVersionError):
                assert plain(read(name, altered)) == plain(RECORDS[name])


def test_usage_report_that_is_cut_off_or_altered_is_refused() -> None:
    """It is stored with its head before it."""
    content = pack_usage(usage_of_two())
    assert plain(unpack_usage(content, "it")) == plain(usage_of_two())
    assert plain(unpack_head(content, "it")) == plain(usage_of_two().head)
    for at in range(len(content)):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]):
            with pytest.raises(DamagedError, match="is damaged"):
                unpack_usage(damaged, "it")


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_of_a_stored_record_has_a_value(name: str) -> None:
    """So a field that is not stored fails above."""

    def unset(value: Any) -> Iterator[str]:
        for each in fields(value):
            found = getattr(value, each.name)
            if found is None:
                yield f"{type(value).__name__}.{each.name}"
            elif is_dataclass(found):
                yield from unset(found)

    assert list(unset(RECORDS[name])) == []


def test_damaged_file_is_named_by_its_path(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    assert read_note(directory, "drained.json", Drained, "the note") is None
    assert read_block(directory, "drained.json", Drained) is None
    directory.write("drained.json", b"{")
    with pytest.raises(DamagedError, match=rf"the note {tmp_path}/drained\.json is damaged: .*; restore it"):
        read_note(directory, "drained.json", Drained, "the note")
    with pytest.raises(DamagedError, match=rf"the file {tmp_path}/drained\.json is damaged"):
        read_block(directory, "drained.json", Drained)
    directory.write("drained.json", b'{"format": 99}')
    with pytest.raises(UnknownVersionError, match=rf"the note {tmp_path}/drained\.json has format version 99"):
        read_note(directory, "drained.json", Drained, "the note")


def main() -> None:
    """Write the files that are missing."""
    for name in RECORDS:
        if not (HERE / name).exists():
            (HERE / name).write_bytes(written(name))


if __name__ == "__main__":
    main()
