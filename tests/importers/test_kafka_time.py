"""Kafka's `request_percentage` is looked up by itself, beside its quotas of bytes."""

from __future__ import annotations

from decimal import Decimal

from spark_throttle.importers.kafka import import_kafka
from spark_throttle.policy.quotas import NamespaceQuota


def test_kafka_looks_up_processing_time_by_itself() -> None:
    found = import_kafka(
        "Quota configs for user-principal 'A', client-id 'c' are producer_byte_rate=5, request_percentage=12.5\n"
        "Quota configs for user-principal 'A', the default client-id are request_percentage=50, consumer_byte_rate=7\n"
        "Quota configs for the default user-principal, the default client-id are request_percentage=1\n"
        "Quota configs for user-principal 'B', client-id 'd' are producer_byte_rate=9\n"
        "Quota configs for the default user-principal are request_percentage=3\n"
    )
    namespaces = found.document.namespaces
    assert namespaces["A/c"].publish == NamespaceQuota(bytes_per_second=Decimal(5), request_percentage=Decimal("12.5"))
    assert namespaces["A/c"].dispatch == NamespaceQuota(bytes_per_second=Decimal(7))
    assert namespaces["A/*"].publish == NamespaceQuota(request_percentage=Decimal(50))
    assert found.document.defaults.publish == NamespaceQuota(request_percentage=Decimal(1))
    assert namespaces["B/d"].publish == NamespaceQuota(bytes_per_second=Decimal(9), request_percentage=Decimal(1))
    (note,) = found.unexpressed
    assert note.startswith("user <default>: request_percentage 3 needs one bucket for each user")
