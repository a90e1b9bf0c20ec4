"""What a test appends to a topic comes back as it was, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kafka.broker import Record

if TYPE_CHECKING:
    from tests.kafka.broker import Broker


def test_records_come_back_as_they_were_appended(broker: Broker) -> None:
    broker.create_topic("records", partitions=2)
    odd = [Record(None, b""), Record(b"", None), Record(b"\xe9", b"\xff\0")]
    large = [Record(b"%d" % number, bytes(300_000)) for number in range(8)]
    broker.append("records", 1, odd)
    broker.append("records", 1, large)
    assert list(broker.records("records", 1)) == odd + large
    assert list(broker.records("records", 0)) == []
