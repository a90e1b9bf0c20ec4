"""What a test says to a broker without a client library: records come back as they were sent, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.broker import FETCHED_BYTES, BrokerError
from tests.kafka.records import Record

if TYPE_CHECKING:
    from tests.kafka.broker import Broker


def test_records_come_back_as_they_were_appended(broker: Broker) -> None:
    broker.create_topic("records", partitions=2)
    odd = [Record(None, b""), Record(b"", None), Record(b"\xe9", b"\xff\0")]
    large = [Record(b"%d" % number, bytes(FETCHED_BYTES // 3)) for number in range(8)]
    assert broker.append("records", 1, odd) == 0
    assert [broker.append("records", 1, [record]) for record in large] == [*range(3, 11)]
    assert list(broker.records("records", 1)) == odd + large
    assert list(broker.records("records", 0)) == []


def test_topic_that_is_not_there_is_an_error(broker: Broker) -> None:
    with pytest.raises(BrokerError, match="partition 0 of topic 'missing'"):
        broker.append("missing", 0, [Record(None, b"")])
    with pytest.raises(BrokerError, match="partition 0 of topic 'missing'"):
        next(broker.records("missing", 0))
