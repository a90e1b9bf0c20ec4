"""What other commands of the same systems print: it is refused by the command's name, or passed over, never misread."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from spark_throttle.errors import PolicyError
from spark_throttle.importers.kafka import import_kafka
from spark_throttle.importers.origin import ImportResult
from spark_throttle.importers.pegasus import import_pegasus
from spark_throttle.importers.pulsar import import_pulsar

SIBLINGS = {
    "pulsar-admin namespaces policies": '{"auth_policies": {}, "publishRate": {"publishThrottlingRateInMsg": 1}}',
    "pulsar-admin namespaces get-publish-rate": '{\n  "publishThrottlingRateInMsg" : 10\n}',
    "pulsar-admin namespaces get-dispatch-rate": '{"dispatchThrottlingRateInMsg": 5, "relativeToPublishRate": false}',
    "pulsar-admin namespaces get-resource-group": "null\n",
    "pulsar-admin namespaces list": "public/default\npublic/orders\n",
    "pulsar-admin tenants get": '{"adminRoles": [], "allowedClusters": ["standalone"]}',
    "pulsar-admin topics list": "persistent://public/default/orders\n",
    "kafka-configs.sh --describe --entity-type topics": "Dynamic configs for topic orders are:\n  retention.ms=1000\n",
    "kafka-configs.sh --describe --entity-type brokers": "Configs for broker 1 are log.cleaner.threads=2\n",
    "kafka-topics.sh --describe": "Topic: orders\tTopicId: mw\tPartitionCount: 1\n",
    "app": "[parameters]\napp_name   : temp\n[replicas]\npidx  ballot\n",
    "ls": "[general_info]\napp_id  status  app_name\n1  AVAILABLE  temp\n",
}  # fmt: skip


@pytest.mark.parametrize("command", SIBLINGS)
@pytest.mark.parametrize("read", [import_kafka, import_pegasus, import_pulsar])
def test_text_of_a_sibling_command_is_refused_by_its_name(read: Callable[[str], ImportResult], command: str) -> None:
    with pytest.raises(PolicyError, match=rf"the text is what {re.escape(command)} prints; give what "):
        read(SIBLINGS[command])


def test_lines_of_a_log_are_passed_over_and_refused_where_nothing_else_is_there() -> None:
    logged = "[2026-11-28 10:00:00,123] WARN [AdminClient clientId=x] Connection lost (org.apache.kafka.clients)\n"
    quota = "Quota configs for user-principal 'alice' are producer_byte_rate=1024.0\n"
    assert import_kafka(logged + quota + logged) == import_kafka(quota)
    with pytest.raises(PolicyError, match=r"only lines of the tool's log, such as .*Connection lost"):
        import_kafka(logged)


@pytest.mark.parametrize(
    "text", ["use temp\n", "use temp\nOK\n", "use temp\n[app_envs]\n", '{"temp": null}', '{"temp": {}}', "temp:\n"]
)
def test_pegasus_table_without_environments_is_listed(text: str) -> None:
    found = import_pegasus(text)
    assert (found.document.namespaces, found.unexpressed) == (
        {}, ("temp: the table has no environments, so nothing limits it",)
    )  # fmt: skip
