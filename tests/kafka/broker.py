"""A real Kafka broker for tests: one node in KRaft mode, on loopback, in a temporary directory.

The broker's jars come from `make kafka-jars`. What a test says to it itself goes through kafka-python, without a JVM.

``python -m tests.kafka.broker [DIRECTORY]`` starts one, tells its address, and stops it when its input ends, as it does
too if the process at the other end was killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from tests.sessions import JARS, jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST = "127.0.0.1"
START_SECONDS = 90
STOP_SECONDS = 20
SEND_SECONDS = 30
# Kafka's identifier of a cluster: 16 bytes in URL-safe base64. A drawn one may begin with a dash, which the storage
# tool reads as an option: one start in 64 failed.
CLUSTER_ID = "c3BhcmstdGhyb3R0bGUgdA"

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
# One node: nothing can be replicated.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# What a test wrote stays until the test is over.
log.retention.hours=-1
"""


class BrokerError(Exception):
    """The broker did not start."""


@dataclass(frozen=True, slots=True)
class Record:
    """A key and a value; a record without the one or the other is another than one in which it is empty."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker."""

    port: int

    @property
    def bootstrap(self) -> str:
        """What Spark calls `kafka.bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def answers(self) -> bool:
        """Return whether the broker serves requests, which it does once it is registered with its controller."""
        try:
            KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=1_000).close()
        except KafkaError:
            return False
        return True

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic of one replica, and wait until each of its partitions is served."""
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True)

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Append records to a partition, in their order."""
        with contextlib.closing(KafkaProducer(bootstrap_servers=self.bootstrap)) as producer:
            sent = [producer.send(topic, record.value, record.key, partition=partition) for record in records]
            for each in sent:
                each.get(SEND_SECONDS)

    def records(self, topic: str, partition: int) -> Iterator[Record]:
        """Yield all that a partition has, in the order of the offsets, which begin with 0 and leave none out."""
        place, settings = TopicPartition(topic, partition), {"auto_offset_reset": "earliest", "group_id": None}
        with contextlib.closing(KafkaConsumer(bootstrap_servers=self.bootstrap, **settings)) as consumer:
            consumer.assign([place])
            end = consumer.end_offsets([place])[place]
            while consumer.position(place) < end:
                for found in consumer.poll(timeout_ms=1_000).get(place, []):
                    yield Record(found.key, found.value)


@contextlib.contextmanager
def running_broker(scratch: Path) -> Iterator[Broker]:
    """Start a broker that keeps all that it writes below `scratch`, wait until it serves, and stop it at the end."""
    port, controller_port = _free_ports(2)
    properties = scratch / "server.properties"
    properties.write_text(
        SERVER_PROPERTIES.format(host=HOST, port=port, controller_port=controller_port, data=scratch / "data")
    )
    jars("kafka-broker")  # says how to get them when there are none
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", str(JARS / "kafka-broker" / "*")]
    log_path = scratch / "broker.log"
    with log_path.open("wb") as log:
        storage_tool = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        formatted = subprocess.run(storage_tool, stdout=log, stderr=log, check=False)
        if formatted.returncode != 0:
            msg = f"the broker's storage could not be formatted:\n{log_path.read_text()}"
            raise BrokerError(msg)
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log, cwd=scratch)
    try:
        broker = Broker(port)
        _wait_until_it_answers(broker, process, log_path)
        yield broker
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_answers(broker: Broker, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not broker.answers():
        # Waiting for the process to end is the pause between two tries: it returns at once if the broker dies.
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(0.1)
            msg = f"the broker ended with code {code}:\n{log_path.read_text()}"
            raise BrokerError(msg)
        if time.monotonic() > deadline:
            msg = f"the broker did not answer within {START_SECONDS} s:\n{log_path.read_text()}"
            raise BrokerError(msg)


def _free_ports(count: int) -> list[int]:
    """Return ports that were free together a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [found.getsockname()[1] for found in sockets]


def main() -> None:
    """Run a broker until standard input ends."""
    with contextlib.ExitStack() as stack:
        place = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(tempfile.TemporaryDirectory())
        started = stack.enter_context(running_broker(Path(place)))
        os.write(1, f"{started.bootstrap}\n".encode())
        os.read(0, 1)


if __name__ == "__main__":
    main()
