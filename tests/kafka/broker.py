"""A real Kafka broker for tests: one node in KRaft mode, on loopback, in a temporary directory.

The broker's jars come from `make kafka-jars`. The few requests that a test needs (is it up? make a topic, take records,
give them back) are spoken on the wire directly: their non-flexible versions are a few packed numbers, and need neither
a client library nor a JVM.

``python -m tests.kafka.broker [DIRECTORY]`` starts one, tells its address, and stops it when its input ends, as it does
too if the process at the other end was killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kafka.records import Record, pack, unpack
from tests.sessions import JARS, jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST = "127.0.0.1"
START_SECONDS = 90
STOP_SECONDS = 20
PRODUCE = 0
FETCH = 1
CREATE_TOPICS = 19
API_VERSIONS = 18
FETCHED_BYTES = 2**20
# A topic that was just created is unknown (3), or has no leader (6), for a moment.
NOT_YET_SERVED = (3, 6)
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
    """The broker did not start, or refused a request."""


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
            return len(self._request(API_VERSIONS, 0, b"")) > 0
        except OSError:
            return False

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic of one replica, and wait until each of its partitions is served."""
        # CreateTopics version 2: one topic with neither assignments nor settings, 30 s, not only validated.
        topic = _string(name) + struct.pack(">ihii", partitions, 1, 0, 0)
        answer = self._request(CREATE_TOPICS, 2, struct.pack(">i", 1) + topic + struct.pack(">i?", 30_000, False))
        _throttle_ms, _topics, name_bytes = struct.unpack_from(">iih", answer)
        (code,) = struct.unpack_from(">h", answer, 10 + name_bytes)
        if code != 0:
            msg = f"topic {name!r} was refused with Kafka's error code {code}"
            raise BrokerError(msg)
        deadline = time.monotonic() + START_SECONDS
        for partition in range(partitions):
            while (code := self._fetch(name, partition, 0)[0]) in NOT_YET_SERVED:
                if time.monotonic() > deadline:
                    msg = f"partition {partition} of topic {name!r} has the error code {code} after {START_SECONDS} s"
                    raise BrokerError(msg)
                threading.Event().wait(0.05)

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> int:
        """Append records to a partition, all or none; return the offset of the first."""
        # Produce version 3: of no transaction, answered when all replicas have it, 30 s, one topic of one partition.
        content = pack(records)
        head = struct.pack(">hhii", -1, -1, 30_000, 1) + _string(topic)
        answer = self._request(PRODUCE, 3, head + struct.pack(">iii", 1, partition, len(content)) + content)
        code, offset = struct.unpack_from(">hq", answer, 4 + len(_string(topic)) + 4 + 4)
        if code != 0:
            msg = f"records for partition {partition} of topic {topic!r} were refused with Kafka's error code {code}"
            raise BrokerError(msg)
        return int(offset)

    def records(self, topic: str, partition: int) -> Iterator[Record]:
        """Yield all that a partition has, in the order of the offsets, which begin with 0 and leave none out."""
        offset, end = 0, 1
        while offset < end:
            code, end, content = self._fetch(topic, partition, offset)
            if code != 0:
                msg = f"partition {partition} of topic {topic!r} cannot be read: Kafka's error code {code}"
                raise BrokerError(msg)
            before = offset
            for found, record in unpack(content):
                if found == offset:
                    offset += 1
                    yield record
            if offset == before and offset < end:
                msg = f"partition {partition} of topic {topic!r} has {end} records, and does not give number {offset}"
                raise BrokerError(msg)

    def _fetch(self, topic: str, partition: int, offset: int) -> tuple[int, int, bytes]:
        """Return an error's code or 0, the end of a partition, and batches of records from an offset on."""
        # Fetch version 4: a consumer that does not wait, of what is not committed too, one topic of one partition.
        head = struct.pack(">iiiibi", -1, 0, 0, FETCHED_BYTES, 0, 1) + _string(topic)
        answer = self._request(FETCH, 4, head + struct.pack(">iiqi", 1, partition, offset, FETCHED_BYTES))
        of_partition = struct.Struct(">hqqii")  # aborted transactions are not told to such a consumer
        at = 4 + 4 + len(_string(topic)) + 4 + 4
        code, end, _stable, _aborted, _length = of_partition.unpack_from(answer, at)
        return code, end, answer[at + of_partition.size :]

    def _request(self, api: int, version: int, body: bytes) -> bytes:
        """Send one request and return the body of its response."""
        message = struct.pack(">hhi", api, version, 1) + _string("spark-throttle tests") + body
        with socket.create_connection((HOST, self.port), timeout=35) as connection:
            connection.sendall(struct.pack(">i", len(message)) + message)
            (length,) = struct.unpack(">i", _receive(connection, 4))
            return _receive(connection, length)[4:]


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


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = connection.recv(length - len(received))
        if not part:
            msg = "the broker closed the connection"
            raise ConnectionResetError(msg)
        received += part
    return received


def main() -> None:
    """Run a broker until standard input ends."""
    with contextlib.ExitStack() as stack:
        place = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(tempfile.TemporaryDirectory())
        started = stack.enter_context(running_broker(Path(place)))
        os.write(1, f"{started.bootstrap}\n".encode())
        os.read(0, 1)


if __name__ == "__main__":
    main()
