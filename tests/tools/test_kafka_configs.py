"""`kafka-configs --describe` of a real broker, as the importer reads it."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from spark_throttle.importers.kafka import import_kafka
from tests.kafka.broker import running_broker
from tests.tools.java_session import java_session

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ALTERED = (
    (("users", "alice"), "producer_byte_rate=10485760,request_percentage=200.5"),
    (("users", "alice"), "SCRAM-SHA-256=[iterations=8192,password=hidden]"),
    (("users", "we are 'here', client-id=5"), "producer_byte_rate=10"),
    (("users", "bob", "clients", None), "consumer_byte_rate=7000000000"),
    (("clients", "it, is 'x'"), "consumer_byte_rate=7"),
)


def entity(*words: str | None) -> list[str]:
    """Return the options that name an entity; a kind whose name is `None` is the default of its kind."""
    options: list[str] = []
    for kind, name in zip(words[::2], words[1::2], strict=True):
        options += ["--entity-type", str(kind), *(["--entity-default"] if name is None else ["--entity-name", name])]
    return options


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the descriptions of users, of users' clients and of clients, one after the other."""
    folder = tmp_path_factory.mktemp("kafka")
    with (
        running_broker(folder) as broker,
        java_session("KafkaConfigsSession.java", "kafka-broker", folder / "java.log") as kafka_configs,
    ):
        server = ("--bootstrap-server", broker.bootstrap)
        for names, configs in ALTERED:
            kafka_configs.printed(*server, "--alter", "--add-config", configs, *entity(*names))
        kinds = (["users"], ["users", "clients"], ["clients"])
        options = [[word for kind in each for word in ("--entity-type", kind)] for each in kinds]
        yield "".join(kafka_configs.printed(*server, "--describe", *each) for each in options)


@pytest.mark.thorough
def test_description_of_a_broker_is_imported_whole(described: str) -> None:
    found = import_kafka(described)
    groups, namespaces = found.document.resource_groups, found.document.namespaces
    assert groups["user alice"].publish.bytes_per_second == 10_485_760
    assert groups["user we are 'here', client-id=5"].publish.bytes_per_second == 10
    assert groups["client-id it, is 'x'"].dispatch.bytes_per_second == 7
    assert namespaces["bob/*"].dispatch.bytes_per_second == 7_000_000_000
    assert groups["user alice"].publish.request_percentage == Decimal("200.5")
    assert sorted(found.unexpressed) == [
        "user-principal 'alice': SCRAM credentials are not a quota",
    ]
