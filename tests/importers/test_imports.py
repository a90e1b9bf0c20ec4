"""Other systems' quotas as policies: what they mean there is what they mean here, or it is listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.names.matching import match
from spark_throttle.errors import PolicyError
from spark_throttle.importers.kafka import import_kafka
from spark_throttle.importers.origin import ImportResult
from spark_throttle.importers.pegasus import import_pegasus
from spark_throttle.importers.pulsar import import_pulsar
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.quotas import Quota

# ---------------------------------------------------------------------------------------------------- Kafka


def kafka(*quotas: tuple[dict[str, str | None], float]) -> ImportResult:
    return import_kafka(json.dumps([{"entity": e, "quotas": {"producer_byte_rate": rate}} for e, rate in quotas]))


def bound(found: ImportResult, namespace: str) -> float | None:
    """Return the one rate that holds a namespace; two would be an error in Kafka's sense."""
    policy = compile_policy(found.document, "publish")
    matched = match(pa.array([namespace]), policy)
    own = policy.namespace_limits.rate_micro_per_ms[matched.rule, 1]
    scopes = matched.shared_scope[0]
    rates = np.concatenate([own, policy.shared.rate_micro_per_ms[scopes[scopes >= 0], 1]])
    held = rates[rates >= 0] / 1000
    assert len(held) <= 1
    return float(held[0]) if len(held) else None


CONFIGURED: list[tuple[dict[str, str | None], float]] = [
    ({"client-id": None}, 2000), ({"user": None, "client-id": None}, 3000),
    ({"user": "A"}, 4000), ({"user": "A", "client-id": "c1"}, 5000), ({"user": "B"}, 6000),
    ({"user": "B", "client-id": "c1"}, 7000), ({"user": "B", "client-id": None}, 8000),
    ({"user": "C"}, 10000), ({"client-id": "c1"}, 9000),
]  # fmt: skip
"""`testQuotaConfigPrecedence` of Kafka's ClientQuotaManagerTest, less the default of users."""


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("A/c1", 5000), ("A/c2", 4000), ("A/c3", 4000), ("B/c1", 7000), ("B/c2", 8000), ("B/c3", 8000), ("C/c1", 10000),
     ("D/c1", 3000), ("D/c2", 3000), ("E/c1", 3000)],
)  # fmt: skip
def test_kafka_precedence_holds_a_client_to_what_kafka_would(namespace: str, expected: float) -> None:
    assert bound(kafka(*CONFIGURED), namespace) == expected


def test_kafka_levels_that_share_a_bucket_there_share_one_here() -> None:
    policy = compile_policy(kafka(*CONFIGURED).document, "publish")
    groups = match(pa.array(["A/c1", "A/c2", "A/c3", "B/c2", "D/c1"]), policy).group
    assert groups[1] == groups[2] >= 0
    assert groups[[0, 3, 4]].tolist() == [-1, -1, -1]


def test_kafka_lists_what_is_hidden_and_what_has_no_counterpart() -> None:
    found = kafka(*CONFIGURED, ({"user": None}, 1000))
    assert [line.partition(":")[0] for line in found.unexpressed] == [
        "user B", "user <default>", "client-id c1", "client-id <default>",
    ]  # fmt: skip
    assert "never acts" in found.unexpressed[0]
    assert "needs one bucket for each user" in found.unexpressed[1]


def test_kafka_client_quotas_without_users_hold_all_users_together() -> None:
    found = kafka(({"client-id": "app"}, 500))
    assert bound(found, "A/app") == 500
    assert bound(found, "A/other") is None
    policy = compile_policy(found.document, "publish")
    assert len(set(match(pa.array(["A/app", "B/app"]), policy).group.tolist())) == 1


def test_kafka_client_of_every_user_has_a_bucket_for_each() -> None:
    found = kafka(({"user": None, "client-id": "app"}, 500), ({"user": "A"}, 100))
    assert bound(found, "B/app") == 500
    assert bound(found, "A/app") == 100
    assert match(pa.array(["B/app"]), compile_policy(found.document, "publish")).group.tolist() == [-1]


def test_kafka_quotas_of_one_direction_leave_the_other_to_the_next_level() -> None:
    text = json.dumps([
        {"entity": {"user": "A", "client-id": "c"}, "quotas": {"producer_byte_rate": 1}},
        {"entity": {"user": "A"}, "quotas": {"consumer_byte_rate": 2}},
        {"entity": {"user": None, "client-id": None}, "quotas": {"producer_byte_rate": 3, "consumer_byte_rate": 4}},
    ])  # fmt: skip
    found = import_kafka(text)
    assert found.unexpressed == ()
    namespaces = found.document.namespaces
    assert namespaces["A/c"].publish.bytes_per_second == 1
    assert namespaces["A/c"].resource_group == namespaces["A/*"].resource_group == "user A"
    assert namespaces["A/*"].publish.bytes_per_second == 3


def test_kafka_lines_of_the_shell_are_read() -> None:
    found = import_kafka(
        "Quota configs for user-principal 'A', client-id 'it, is' are producer_byte_rate=1024.0, "
        "consumer_byte_rate=2048.0\n"
        "Quota configs for user-principal 'A' are request_percentage=200.0\n"
        "Quota configs for the default user-principal, the default client-id are consumer_byte_rate=1.0\n"
        "Quota configs for ip '10.0.0.1' are connection_creation_rate=5.0\n"
    )
    rule = found.document.namespaces["A/it, is"]
    assert [rule.publish.bytes_per_second, rule.dispatch.bytes_per_second] == [1024, 2048]
    assert found.document.defaults.dispatch.bytes_per_second == 1
    assert sorted(line.partition(":")[0] for line in found.unexpressed) == ["ip '10.0.0.1'"]
    assert found.document.resource_groups["user A"].publish == Quota(request_percentage=Decimal(200))
    assert rule.resource_group == "user A"  # a client's time is one of its user's


PRINTED_BY_KAFKA_CONFIGS = """\
Quota configs for the default user-principal are consumer_byte_rate=1.0
Quota configs for user-principal 'we are 'here', client-id=5' are producer_byte_rate=10.0
Quota configs for user-principal 'alice' are request_percentage=200.5, producer_byte_rate=1.048576E7
SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-512=iterations=4096, SCRAM-SHA-256=iterations=8192
Quota configs for user-principal 'alice', client-id 'app' are consumer_byte_rate=2048.0, producer_byte_rate=1024.0
Quota configs for user-principal 'bob', the default client-id are consumer_byte_rate=7.0E9
Quota configs for client-id 'it, is 'x'' are consumer_byte_rate=7.0
Quota configs for ip '10.0.0.1' are connection_creation_rate=5.0
"""
"""What Kafka 4.1.0 printed for `--describe` of users, of users and clients, of clients and of ips."""


def test_kafka_output_of_the_tool_is_read_whole() -> None:
    found = import_kafka(PRINTED_BY_KAFKA_CONFIGS)
    document = found.document
    groups = document.resource_groups
    assert document.namespaces["alice/app"].publish.bytes_per_second == 1024
    assert groups["user alice"].publish.bytes_per_second == 10_485_760
    assert groups["user we are 'here', client-id=5"].publish.bytes_per_second == 10
    assert groups["client-id it, is 'x'"].dispatch.bytes_per_second == 7
    assert document.namespaces["bob/*"].dispatch.bytes_per_second == 7_000_000_000
    assert {line.partition(":")[0] for line in found.unexpressed} >= {
        "user-principal 'alice'", "user <default>", "ip '10.0.0.1'",
    }  # fmt: skip
    assert groups["user alice"].publish.request_percentage == Decimal("200.5")
    assert "alice/app: its time quota is that of user alice; it limits more than that" in found.unexpressed
    assert "user-principal 'alice': SCRAM credentials are not a quota" in found.unexpressed


@pytest.mark.parametrize(
    "line",
    [
        "SCRAM credential configs for user-principal 'A' are SCRAM-SHA-256=iterations=8192",
        "Error retrieving SCRAM credential configs for user-principal 'A': ResourceNotFoundException: no SCRAM",
        "Configs for user-principal 'A' are SCRAM-SHA-256=salt=c2VjcmV0,stored_key=c2VjcmV0,iterations=4096",
    ],
)
def test_kafka_credentials_are_listed_without_what_they_hold(line: str) -> None:
    """The tool prints them between the quotas of users; older ones print a secret, which must not go on."""
    found = import_kafka(f"{line}\nQuota configs for user-principal 'A' are producer_byte_rate=5.0\n")
    assert found.document.resource_groups["user A"].publish.bytes_per_second == 5
    (said,) = found.unexpressed
    assert said.startswith("user-principal 'A': SCRAM")
    assert "c2VjcmV0" not in said
    assert "4096" not in said


def test_kafka_quota_beside_a_credential_of_an_older_tool_is_kept() -> None:
    found = import_kafka(
        "Configs for user-principal 'A' are producer_byte_rate=7,SCRAM-SHA-256=salt=a==,stored_key=b,server_key=c,"
        "iterations=4096,consumer_byte_rate=5,SCRAM-SHA-512=salt=a==,stored_key=b,server_key=c,iterations=4096"
    )
    group = found.document.resource_groups["user A"]
    assert [group.publish.bytes_per_second, group.dispatch.bytes_per_second] == [7, 5]
    assert len(found.unexpressed) == 2


def test_kafka_names_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(PolicyError, match="line 2: it is unclear where one name ends"):
        import_kafka("\nQuota configs for user-principal 'a', client-id 'b', client-id 'c' are producer_byte_rate=5.0")


def test_kafka_key_that_is_no_quota_is_refused_outside_of_credentials() -> None:
    with pytest.raises(PolicyError, match="iterations is not a quota of Kafka"):
        import_kafka("Quota configs for user-principal 'A' are iterations=5")


@pytest.mark.parametrize(
    ("entity", "quotas", "problem"),
    [
        ({"user": "A"}, {"producer_byte_rate": 0}, "must be greater than 0"),
        ({"user": "A"}, {"producer_byte_rate": -1}, "must be greater than 0"),
        ({"user": "A"}, {"consumer_byte_rate": 1.5}, "cannot be a fractional value"),
        ({"user": "A"}, {"consumer_byte_rate": "x"}, "is not a number"),
        ({"user": "A"}, {"foobar": 1}, "foobar is not a quota of Kafka"),
        ({}, {"producer_byte_rate": 1}, "names neither a user nor a client-id"),
        ({"group": "A"}, {"producer_byte_rate": 1}, "'group' is not a kind of entity"),
        ({"user": "A", "ip": "::1"}, {"producer_byte_rate": 1}, "an ip stands alone"),
        (None, {}, "stands where a mapping belongs"),
    ],
)
def test_kafka_refuses_what_kafka_refuses(entity: object, quotas: object, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        import_kafka(json.dumps([{"entity": entity, "quotas": quotas}]))


@pytest.mark.parametrize("user", ["a/b", "a*", ""])
def test_kafka_names_that_are_no_namespace_are_listed(user: str) -> None:
    found = kafka(({"user": user, "client-id": "c"}, 5))
    assert found.document.namespaces == {}
    assert len(found.unexpressed) == 1


def test_kafka_text_that_is_something_else_is_refused() -> None:
    with pytest.raises(PolicyError, match="line 1: this is not a line"):
        import_kafka("producer_byte_rate is 5")


# -------------------------------------------------------------------------------------------------- Pegasus


def test_pegasus_shell_output_is_read() -> None:
    found = import_pegasus(
        ">>> use temp\nOK\n>>> get_app_envs\n[app_envs]\n"
        "replica.write_throttling          : 1000*delay*100,2000*reject*200\n"
        "replica.write_throttling_by_size  : 1000M*delay*100,2000M*reject*200\n"
        "replica.read_throttling           : 1000*delay*100,2000*reject*200\n"
        "manual_compact.once.trigger_time  : 1525930272\n\n"
        ">>> use other\nOK\n[app_envs]\nreplica.deny_client_request : x\n"
    )
    assert list(found.document.namespaces) == ["temp"]
    temp = found.document.namespaces["temp"]
    assert temp.write_throttling == "1000*delay*100,2000*reject*200"
    assert temp.write_throttling_by_size == "1000M*delay*100,2000M*reject*200"
    assert temp.read_throttling == "1000*delay*100,2000*reject*200"
    assert [line.partition(" =")[0] for line in found.unexpressed] == [
        "temp: manual_compact.once.trigger_time", "other: replica.deny_client_request",
    ]  # fmt: skip


WRITTEN = {"replica.read_throttling": "1000*delay*100", "replica.write_throttling_by_size": "10M*reject*5"}


def as_tabular(envs: dict[str, str]) -> str:
    """Return what `table_printer::output_in_tabular` of Pegasus' src/utils/output_utils.cpp prints for one column."""
    names, values = max(map(len, envs)), max(map(len, envs.values()))
    rows = [name.ljust(names + 2) + (": " + value).ljust(values + 2) for name, value in envs.items()]
    return "\n".join(["[app_envs]", *rows, ""])


def as_json(envs: dict[str, str]) -> str:
    """Return what its `json_encode` prints for `get_app_envs -j`."""
    return json.dumps({"app_envs": envs}, indent=4) + "\n"


def as_equations(envs: dict[str, str]) -> str:
    """Return what the shell's `get_app_envs` printed before it had tables."""
    rows = [f"{name} = {value}" for name, value in envs.items()]
    return "\n".join([f"get app envs succeed, count = {len(envs)}", "=" * 33, *rows, "=" * 33, ""])


FORMS = pytest.mark.parametrize("printed", [as_tabular, as_json, as_equations])


@FORMS
def test_pegasus_shell_is_read_in_every_form_that_it_prints(printed: Callable[[dict[str, str]], str]) -> None:
    more = WRITTEN | {"default_ttl": "86400"}
    found = import_pegasus(
        f">>> use temp\nOK\n>>> get_app_envs\n{printed(more)}>>> use other\nOK\n>>> get_app_envs -j\n"
        f"{printed({'replica.write_throttling': '20K*delay*100'})}>>> exit\ndsn exit with code 0\n"
    )
    temp, other = found.document.namespaces["temp"], found.document.namespaces["other"]
    assert (temp.read_throttling, temp.write_throttling_by_size) == tuple(WRITTEN.values())
    assert other.write_throttling == "20K*delay*100"
    assert found.unexpressed == ("temp: default_ttl = 86400 is not a quota of a policy",)


@FORMS
def test_pegasus_form_without_a_table_takes_it_from_the_option(printed: Callable[[dict[str, str]], str]) -> None:
    found = import_pegasus(printed(WRITTEN), table="temp")
    assert found.document.namespaces["temp"].read_throttling == WRITTEN["replica.read_throttling"]
    with pytest.raises(PolicyError, match="line 1: the text does not name the table; give table"):
        import_pegasus(printed(WRITTEN))


@FORMS
def test_pegasus_later_list_of_a_table_takes_the_place_of_the_earlier(printed: Callable[[dict[str, str]], str]) -> None:
    """Between the two an environment may have been deleted: together they would limit by what is no longer there."""
    later = {"replica.read_throttling": "7*delay*100"}
    found = import_pegasus(f">>> use temp\nOK\n{printed(WRITTEN)}>>> get_app_envs\n{printed(later)}")
    temp = found.document.namespaces["temp"]
    assert [temp.read_throttling, temp.write_throttling_by_size] == ["7*delay*100", None]


@FORMS
def test_pegasus_lists_of_several_tables_need_their_names(printed: Callable[[dict[str, str]], str]) -> None:
    with pytest.raises(PolicyError, match="a second list, and no line `use TABLE` says whose"):
        import_pegasus(printed(WRITTEN) + printed(WRITTEN), table="temp")


def test_pegasus_token_bucket_is_a_rate_with_a_burst_of_a_second_whose_excess_is_rejected() -> None:
    found = import_pegasus('{"replica.read_throttling_by_size": "200K"}', table="temp")
    quota = found.document.namespaces["temp"].dispatch
    assert [quota.bytes_per_second, quota.burst_seconds, quota.on_excess] == [204_800, 1, "reject"]
    assert found.unexpressed == ()


@pytest.mark.parametrize(
    "value", ["*delay*100", "20m*delay*100", "20KB*delay*1", "2K*delay*1,3K*delay*1", "20K*pass*1"]
)
def test_pegasus_rules_that_pegasus_refuses_are_listed(value: str) -> None:
    found = import_pegasus(json.dumps({"temp": {"replica.write_throttling": value}}))
    assert found.document.namespaces == {}
    (line,) = found.unexpressed
    assert line.startswith(f"temp: replica.write_throttling = {value} cannot be read: ")


def test_pegasus_text_without_a_table_asks_for_it() -> None:
    with pytest.raises(PolicyError, match="give table"):
        import_pegasus("[app_envs]\nreplica.write_throttling : 1*delay*1\n")


# --------------------------------------------------------------------------------------------------- Pulsar


def test_pulsar_groups_and_what_is_attached_to_them_are_read() -> None:
    found = import_pulsar(json.dumps({
        "resourcegroups": {"rg": {"publishRateInMsgs": 100, "publishRateInBytes": 1000, "dispatchRateInMsgs": -1,
                                  "dispatchRateInBytes": 0}, "none": {"PublishRateInbytes": None}},
        "tenants": {"acme": "rg"},
        "namespaces": {"acme/x": {"resource_group_name": "none"}, "acme/y": "rg", "blue/z": {"resourceGroup": None}},
    }))  # fmt: skip
    group = found.document.resource_groups["rg"]
    assert [group.publish.messages_per_second, group.publish.bytes_per_second] == [100, 1000]
    assert [group.dispatch.messages_per_second, group.dispatch.bytes_per_second] == [None, None]
    assert found.document.tenants["acme"].resource_group == "rg"
    assert {name: entry.resource_group for name, entry in found.document.namespaces.items()} == {
        "acme/x": "none", "acme/y": "rg",
    }  # fmt: skip
    (line,) = found.unexpressed
    assert line.startswith("namespaces.acme/x counts only in none; in Pulsar it also counts in rg")


def test_pulsar_fields_that_are_no_rate_are_listed() -> None:
    found = import_pulsar('{"rg": {"publishRateInMsgs": 1, "replicationDispatchRateInMsgs": 5}}')
    assert found.unexpressed == ("resourcegroups.rg.replicationDispatchRateInMsgs = 5 is not a rate of a policy",)


@pytest.mark.parametrize("rate", ["x", 1.5])
def test_pulsar_rates_that_are_no_numbers_are_refused(rate: object) -> None:
    with pytest.raises(PolicyError, match=r"resourcegroups\.rg\.publishRateInMsgs"):
        import_pulsar(json.dumps({"rg": {"publishRateInMsgs": rate}}))


def test_pulsar_namespace_of_an_unknown_group_is_refused() -> None:
    with pytest.raises(PolicyError, match="'gone' is not a resource group"):
        import_pulsar('{"resourcegroups": {}, "namespaces": {"a/b": "gone"}}')


PRINTED_BY_GET = """\
{
  "publishRateInMsgs" : 9,
  "publishRateInBytes" : 500,
  "dispatchRateInMsgs" : -1,
  "dispatchRateInBytes" : -1
}
"""
"""What pulsar-admin 4.0.8 prints for `resourcegroups get`; it prints the names of `list` one a line."""


def test_pulsar_output_of_get_is_the_group_that_the_option_names() -> None:
    found = import_pulsar(PRINTED_BY_GET, group="gold")
    quota = found.document.resource_groups["gold"].publish
    assert [quota.messages_per_second, quota.bytes_per_second] == [9, 500]
    assert found.unexpressed == ()
    with pytest.raises(PolicyError, match="the rates of one group without its name; give group"):
        import_pulsar(PRINTED_BY_GET)


@pytest.mark.parametrize("text", ["gold\nteam:a b\n", '["gold", "team:a b"]'])
def test_pulsar_output_of_list_is_names_whose_rates_are_missing(text: str) -> None:
    found = import_pulsar(text)
    assert list(found.document.resource_groups) == ["gold", "team:a b"]
    assert [line.partition("; ")[0] for line in found.unexpressed] == [
        "resourcegroups.gold: only its name is known", "resourcegroups.team:a b: only its name is known",
    ]  # fmt: skip
    with pytest.raises(PolicyError, match="the text names its groups"):
        import_pulsar(text, group="gold")


def test_pulsar_names_with_their_rates_are_read() -> None:
    found = import_pulsar(f"gold\n{PRINTED_BY_GET}\niron\n{PRINTED_BY_GET.replace('500', '700')}bare\n")
    groups = found.document.resource_groups
    assert [groups[name].publish.bytes_per_second for name in ("gold", "iron", "bare")] == [500, 700, None]
    assert [line.partition(":")[0] for line in found.unexpressed] == ["resourcegroups.bare"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"gold\n{PRINTED_BY_GET}{PRINTED_BY_GET}", "rates follow those of the group 'gold'; print the next name"),
        ("gold\ngold\n", "the group 'gold' is there twice"),
        ("gold\n{\n", "what stands after the name 'gold' is not JSON"),
    ],
)
def test_pulsar_output_that_leaves_a_group_unclear_is_refused(text: str, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        import_pulsar(text)


@pytest.mark.parametrize("rate", ["null", "-1", "0"])
def test_pulsar_rates_of_replication_that_limit_nothing_are_not_listed(rate: str) -> None:
    found = import_pulsar(f'{{"publishRateInMsgs": 5, "replicationDispatchRateInMsgs": {rate}}}', group="gold")
    assert found.unexpressed == ()


# ------------------------------------------------------------------------------------------------- of each other

TEXTS = {
    "kafka": [
        "Quota configs for user-principal 'alice', client-id 'app' are producer_byte_rate=1024.0\n",
        "Configs for user-principal 'alice' are request_percentage=5\n",
        "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192\n",
        '[{"entity": {"user": "a"}, "quotas": {"request_percentage": 5}}]',
        '{"quotas": {"producer_byte_rate": 5}, "entity": {"user": "a"}}',
    ],
    "pegasus": [
        ">>> use temp\nOK\n>>> get_app_envs\n[app_envs]\ndefault_ttl  : 86400\n",
        "use temp\nget app envs succeed, count = 1\n=================\nx = y\n=================\n",
        'use temp\n{"app_envs":{"default_ttl":"86400"}}',
        '{"temp": {"replica.write_throttling": "2000*delay*100"}}',
        "temp:\n  replica.read_throttling_by_size: 20M\n",
    ],
    "pulsar": [
        '{"gold": {"publishRateInMsgs": 5}}', "gold:\n  dispatchRateInBytes: 5\n",
        'gold\n{\n  "publishRateInMsgs" : 5\n}\n', '{"resourcegroups": {"gold": {}}, "tenants": {"a": "gold"}}',
    ],
    "policy": ["resource_groups:\n  gold: {}\n", "job: {publish: {bytes_per_second: 5}}"],
}  # fmt: skip
IMPORTERS: dict[str, list[Callable[[str], ImportResult]]] = {
    "kafka": [import_kafka],
    "pegasus": [import_pegasus, lambda text: import_pegasus(text, table="temp")],
    "pulsar": [import_pulsar, lambda text: import_pulsar(text, group="gold")],
}


@pytest.mark.parametrize("importer", IMPORTERS)
@pytest.mark.parametrize(("origin", "text"), [(origin, text) for origin, texts in TEXTS.items() for text in texts])
def test_importer_refuses_the_text_of_another_and_says_which_reads_it(importer: str, origin: str, text: str) -> None:
    if importer == origin:
        IMPORTERS[importer][0](text)
        return
    for read in IMPORTERS[importer]:
        remedy = "apply it as it is" if origin == "policy" else f"import it as {origin}"
        with pytest.raises(PolicyError, match=rf"the text is of {origin} \('[\w .]+'\), not of {importer}; {remedy}$"):
            read(text)


def test_text_with_words_of_another_system_is_read_if_it_has_its_own() -> None:
    user = "Quota configs for user-principal 'replica.write_throttling: publishRateInMsgs' are producer_byte_rate=5.0"
    assert list(import_kafka(user).document.namespaces) == ["replica.write_throttling: publishRateInMsgs/*"]
    assert list(import_pulsar('{"app_envs": {"publishRateInMsgs": 5}}').document.resource_groups) == ["app_envs"]
    envs = {"temp": {"producer_byte_rate": "5", "replica.read_throttling": "5K*delay*1"}}
    assert import_pegasus(json.dumps(envs)).unexpressed == ("temp: producer_byte_rate = 5 is not a quota of a policy",)


def test_name_given_for_a_text_that_names_its_own_is_refused() -> None:
    with pytest.raises(PolicyError, match="the text names its groups, so 'iron' cannot be the name of one group's"):
        import_pulsar('{"gold": {"publishRateInMsgs": 5}}', group="iron")
    with pytest.raises(PolicyError, match="the text names its tables, so 'temp' cannot be the name of one table's"):
        import_pegasus('{"stat": {"replica.write_throttling": "2*delay*1"}}', table="temp")
    found = import_pulsar('{"publishRateInMsgs": 5, "replicatorDispatchRate": {}}', group="gold")
    assert list(found.document.resource_groups) == ["gold"]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (import_pegasus, "# resource_groups: none yet\ntemp: {default_ttl: 86400}\n"),
        (import_pegasus, "temp: {business.info: 'messages_per_second: 5 agreed'}"),
        (import_pegasus, 'use temp\n{"app_envs": {"business.info": "producer_byte_rate=5"}}'),
        (import_pulsar, "gold: {}   # was: producer_byte_rate=5\n"),
        (import_pulsar, "gold: {}\n# quotas: none; entity: none\n"),
        (import_kafka, "Quota configs for user-principal 'resource_groups: a' are request_percentage=5\n"),
        (import_kafka, "[{entity: {user: 'resource_groups: a'}, quotas: {request_percentage: 5}}] # app_envs: no\n"),
    ],
)
def test_words_of_another_system_in_a_comment_or_a_value_say_nothing(
    read: Callable[[str], ImportResult], text: str
) -> None:
    read(text)
