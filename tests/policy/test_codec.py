"""Policy documents: every field, every bound, and what an error says."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.names.visible_text import BIDIRECTIONAL
from spark_throttle.core.quota import MAX_BURST_TOKENS
from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.codec import dump_policies
from spark_throttle.policy.model import NamespacePolicy, PolicyDocument
from spark_throttle.policy.quotas import NamespaceQuota, Quota
from spark_throttle.store.policy_location import load_policies

EXAMPLES = sorted((Path(__file__).parents[2] / "conf" / "policies").glob("*.yaml"))


def problem_of(source: str | dict[str, object]) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        load_policies(source)
    return caught.value


def test_empty_document_limits_nothing() -> None:
    document = load_policies("{}")
    assert document == PolicyDocument()
    assert document.defaults.publish == NamespaceQuota()
    assert document.defaults.publish.messages_per_second is None
    assert document.queue.messages == 1_000_000
    assert document.queue.bytes == 256 * 2**20
    assert document.queue.age_seconds is None
    assert document.queue.on_overflow == "reject"


@pytest.mark.parametrize("value", ["8MiB", "8 MB", "1kB/s", "8B", "0.5GiB"])
def test_number_of_messages_takes_no_unit_of_bytes(value: str) -> None:
    error = problem_of({"tenants": {"acme": {"publish": {"messages_per_second": value}}}})
    assert error.path == "tenants.acme.publish.messages_per_second"
    assert "is a number of bytes; give a number of messages without a unit, such as 500 or 0.2" in error.problem
    assert load_policies({"tenants": {"acme": {"publish": {"bytes_per_second": value}}}}).tenants


@pytest.mark.parametrize("value", ["8K", "8k", "1M"])
def test_number_of_messages_takes_no_bare_prefix(value: str) -> None:
    error = problem_of({"tenants": {"acme": {"publish": {"messages_per_second": value}}}})
    assert f"has the unit '{value[-1]}'; messages and units are counted without one" in error.problem


def test_every_field_is_read() -> None:
    document = load_policies("""
    version: 1
    resource_groups:
      gold:
        publish: {messages_per_second: 500, bytes_per_second: 1MiB, burst_seconds: 2.5, weight: 3}
        dispatch: {max_message_bytes: 1MiB}
    tenants:
      acme: {resource_group: gold, dispatch: {messages_per_second: 0, on_excess: reject}}
    namespaces:
      acme/orders:
        resource_group: gold
        publish: {messages_per_second: 0.2, on_excess: observe}
        write_throttling: 20K*delay*100
        write_throttling_by_size: 20M*reject*50
        read_throttling: 100*delay*1
    defaults: {resource_group: gold, publish: {weight: 1000}, read_throttling: 5*reject*5}
    job: {dispatch: {bytes_per_second: "1.5 MB", on_excess: delay}}
    queue: {messages: 10, bytes: 64KiB, age_seconds: 1min, on_overflow: fail}
    """)
    gold = document.resource_groups["gold"].publish
    assert gold == Quota(
        messages_per_second=Decimal(500), bytes_per_second=Decimal(2**20), burst_seconds=Decimal("2.5"), weight=3
    )
    assert document.resource_groups["gold"].dispatch == Quota(max_message_bytes=2**20)
    assert document.tenants["acme"].dispatch == Quota(messages_per_second=Decimal(0), on_excess="reject")
    orders = document.namespaces["acme/orders"]
    assert orders.publish.messages_per_second == Decimal("0.2")
    assert (orders.resource_group, orders.publish.on_excess) == ("gold", "observe")
    assert orders.write_throttling == "20K*delay*100"
    assert orders.write_throttling_by_size == "20M*reject*50"
    assert orders.read_throttling == "100*delay*1"
    assert document.defaults.publish.weight == 1000
    assert document.defaults.read_throttling == "5*reject*5"
    assert document.job.dispatch.bytes_per_second == 1_500_000
    assert (document.queue.messages, document.queue.bytes) == (10, 65_536)
    assert document.queue.age_seconds == 60
    assert document.queue.on_overflow == "fail"


@pytest.mark.parametrize("section", ["resource_groups", "tenants", "namespaces", "defaults", "job", "queue"])
def test_section_with_nothing_below_it_is_as_absent(section: str) -> None:
    assert load_policies(f"{section}:\n  # nothing yet\n") == PolicyDocument()


def test_scope_with_nothing_below_it_is_named_and_unlimited() -> None:
    document = load_policies("namespaces:\n  a/b:\ntenants:\n  a:\n    publish:\n")
    assert document.namespaces == {"a/b": NamespacePolicy()}
    assert document.tenants["a"].publish == Quota()


def test_zero_is_a_limit_and_absent_is_none() -> None:
    publish = load_policies("job: {publish: {messages_per_second: 0}}").job.publish
    assert publish.messages_per_second == 0
    assert publish.messages_per_second is not None
    assert publish.bytes_per_second is None


def test_names_are_in_the_order_of_their_utf_8_bytes() -> None:
    names = ["b", "Z", "ä", "a/10", "a/2", "\U0001f600", "\uffee"]
    document = load_policies({"namespaces": {name: {} for name in names}})
    assert list(document.namespaces) == sorted(names, key=str.encode)


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        (
            "tenants: {acme: {publish: {mesages_per_second: 5}}}",
            "tenants.acme.publish.mesages_per_second",
            "unknown key; did you mean messages_per_second?",
        ),
        ("job: {publish: {tokens_per_minute: 5}}", "job.publish.tokens_per_minute", "and burst_seconds: 60"),
        ("job: {publish: {tokens_per_month: 5}}", "job.publish.tokens_per_month", "did you mean units_per_month?"),
        ("job: {publish: {mesages_per_month: 5}}", "job.publish.mesages_per_month", "mean messages_per_month?"),
        ("tenents: {}", "tenents", "unknown key; did you mean tenants?"),
        ("xyz: 1", "xyz", "unknown key; the keys here are version, resource_groups, tenants, namespaces, exempt"),
        ("exempt: ops/*", "exempt", "'ops/*' is one name; write a list: [ops/*]"),
        ("queue: {messages_: 1}", "queue.messages_", "did you mean messages?"),
        ("job: {publis_: {}}", "job.publis_", "did you mean publish?"),
        ("job: {dispatch: {weigth_: 1}}", "job.dispatch.weigth_", "did you mean weight?"),
        ("defaults: {publish: {on_exces: delay}}", "defaults.publish.on_exces", "did you mean on_excess?"),
        ("namespaces: {a: {write_throtling: x}}", "namespaces.a.write_throtling", "did you mean write_throttling?"),
        ("namespaces: {publish: {x: 1}}", "namespaces.publish.x", "the keys here are publish, dispatch"),
        ("tenants: {a: {write_throttling: 5*delay*5}}", "tenants.a.write_throttling", "unknown key"),
        ("resource_groups: {g: {resource_group: g}}", "resource_groups.g.resource_group", "unknown key"),
        ("job: {resource_group: g}", "job.resource_group", "unknown key"),
        (
            "{resource_groups: {gold: {}}, namespaces: {a/b: {resource_group: gould}}}",
            "namespaces.a/b.resource_group",
            "'gould' is not a resource group; did you mean gold?",
        ),
        ("tenants: {a: {resource_group: gold}}", "tenants.a.resource_group", "define it under resource_groups"),
        ("defaults: {resource_group: gold}", "defaults.resource_group", "'gold' is not a resource group"),
        ("tenants: {a: {resource_group: 5}}", "tenants.a.resource_group", "5 is not text; put it in quotes"),
        ("tenants: {a: {resource_group: }}", "tenants.a.resource_group", "there is no value; write one, or leave"),
        ("job: {publish: {messages_per_second: -1}}", "job.publish.messages_per_second", "-1 is negative"),
        ("job: {publish: {messages_per_second: }}", "job.publish.messages_per_second", "there is no value"),
        ("job: {publish: {messages_per_second: true}}", "job.publish.messages_per_second", "true is not a number"),
        ("job: {publish: {messages_per_second: [1]}}", "job.publish.messages_per_second", "a list is not a number"),
        ("job: {publish: {messages_per_second: 1:30}}", "job.publish.messages_per_second", "'1:30' is not a number"),
        ("job: {publish: {messages_per_second: 010}}", "job.publish.messages_per_second", "starts with a zero"),
        ("job: {publish: {messages_per_second: .nan}}", "job.publish.messages_per_second", "'.nan' is not a number"),
        ("job: {publish: {messages_per_second: 0.0001}}", "job.publish.messages_per_second", "too fine"),
        ("job: {publish: {bytes_per_second: 64K}}", "job.publish.bytes_per_second", "KB (powers of 1000) or KiB"),
        ("job: {publish: {max_message_bytes: 0}}", "job.publish.max_message_bytes", "set bytes_per_second: 0"),
        ("job: {publish: {request_percentage: 1GB}}", "job.publish.request_percentage", "has the unknown unit 'GB'"),
        ("job: {publish: {request_percentage: 0.00001}}", "job.publish.request_percentage", "0.0001 % of a core"),
        ("job: {publish: {request_percentage: -1}}", "job.publish.request_percentage", "0 admits nothing"),
        (
            "job: {publish: {request_percentage: 1000000, burst_seconds: 20000000}}",
            "job.publish.burst_seconds",
            "is a burst over 10995116277760; give burst_seconds at most 10995116.277",
        ),
        ("job: {publish: {max_message_bytes: 1.5}}", "job.publish.max_message_bytes", "give whole bytes"),
        ("job: {publish: {max_message_bytes: }}", "job.publish.max_message_bytes", "there is no value"),
        (
            "job: {publish: {max_message_bytes: 65GiB}}",
            "job.publish.max_message_bytes",
            "'65GiB' is over 68719476736 bytes, the largest size allowed; give less",
        ),
        ("job: {publish: {burst_seconds: 0}}", "job.publish.burst_seconds", "0 is not a duration; give 1 ms or more"),
        ("job: {publish: {burst_seconds: 0.0001}}", "job.publish.burst_seconds", "give whole milliseconds"),
        ("job: {publish: {burst_seconds: -1}}", "job.publish.burst_seconds", "negative"),
        (
            "job: {publish: {messages_per_second: 1099511627776}}",
            "job.publish.burst_seconds",
            "10 s of messages_per_second 1099511627776 is a burst over 1099511627776; give burst_seconds at most 1",
        ),
        (
            "job: {publish: {bytes_per_second: 1TiB, burst_seconds: 1.001}}",
            "job.publish.burst_seconds",
            "1.001 s of bytes_per_second",
        ),
        ("job: {publish: {weight: 0}}", "job.publish.weight", "0 is less than 1"),
        ("job: {publish: {weight: 1001}}", "job.publish.weight", "1001 is more than 1000"),
        ("job: {publish: {weight: 1.5}}", "job.publish.weight", "1.5 is not a whole number"),
        ("job: {publish: {weight: true}}", "job.publish.weight", "true is not a whole number"),
        ("job: {publish: {weight: '3'}}", "job.publish.weight", "'3' is not a whole number"),
        ("job: {publish: {weight: 010}}", "job.publish.weight", "'010' is not a whole number"),
        ("job: {publish: {on_excess: dely}}", "job.publish.on_excess", "'dely' is none of delay, reject, observe; did"),
        ("job: {publish: {on_excess: }}", "job.publish.on_excess", "there is no value"),
        ("job: {publish: 5}", "job.publish", "5 stands where a mapping belongs"),
        ("tenants: [a]", "tenants", "a list stands where a mapping belongs"),
        ("tenants: {a: 5}", "tenants.a", "5 stands where a mapping belongs"),
        ("queue: {messages: 0}", "queue.messages", "0 is less than 1"),
        ("queue: {bytes: 0}", "queue.bytes", "set on_excess: reject"),
        ("queue: {bytes: -1}", "queue.bytes", "negative"),
        ("queue: {age_seconds: 0}", "queue.age_seconds", "give 1 ms or more"),
        ("queue: {age_seconds: }", "queue.age_seconds", "there is no value"),
        ("queue: {on_overflow: drop}", "queue.on_overflow", "'drop' is none of reject, fail"),
        ("version: 2", "version", "2 is not a version that this release reads; write version: 1"),
        ("version: true", "version", "true is not a version"),
        ("version: 1.0", "version", "1.0 is not a version"),
        ("namespaces: {'': {}}", 'namespaces.""', "a name is empty"),
        (
            "namespaces: {" + "ä" * 513 + ": {}}",
            "namespaces." + "ä" * 64 + "…",
            "1026 bytes of UTF-8; it may have at most 1024",
        ),
        ("tenants: {a/b: {}}", "tenants.a/b", "write 'a'"),
        ('namespaces: {"a.b c": {x: 1}}', 'namespaces."a.b c".x', "unknown key"),
        ("namespaces: {a: {write_throttling: 20KB*delay*100}}", "namespaces.a.write_throttling", "'20KB' should be an"),
        ("namespaces: {a: {read_throttling: 20*pass*1}}", "namespaces.a.read_throttling", "'delay' or 'reject'"),
        ("defaults: {write_throttling: 5}", "defaults.write_throttling", "5 is not a throttling string such as"),
        ("defaults: {write_throttling: }", "defaults.write_throttling", "there is no value"),
        ("a: 1\na: 2", "", "line 2: the key 'a' is repeated"),
        ("a: {", "", "this is not YAML"),
        ("- a\n- b", "", "the document is a list; it should be a mapping with the keys version, resource_groups"),
        ("'text: '", "", "the document is 'text: '"),
        ("", "", "the document is empty; write {} if nothing is to be limited"),
        ("# nothing\n", "", "the document is empty"),
    ],
)
def test_what_is_wrong_is_named_by_its_path_with_the_remedy(text: str, path: str, problem: str) -> None:
    error = problem_of(text)
    assert problem in error.problem
    assert error.path == path


@pytest.mark.parametrize(
    ("source", "path"),
    [({3: {}}, "3"), ({"tenants": {3: {}}}, "tenants.3"), ({"namespaces": {None: {}}}, "namespaces.None")],
)
def test_key_of_a_mapping_that_is_not_text_is_an_error(source: dict[str, object], path: str) -> None:
    error = problem_of(source)
    assert error.path == path
    assert "not text; put it in quotes" in error.problem


@pytest.mark.parametrize("number", [Decimal("sNaN"), Decimal("NaN"), float("inf"), object()])
def test_what_is_no_number_is_an_error_from_a_mapping_too(number: object) -> None:
    error = problem_of({"job": {"publish": {"messages_per_second": number}}})
    assert error.path == "job.publish.messages_per_second"
    assert "is not a number" in error.problem


def test_half_of_a_surrogate_pair_is_no_name() -> None:
    assert "surrogate" in problem_of({"namespaces": {"\ud800": {}}}).problem


def test_name_of_1024_bytes_is_allowed() -> None:
    assert len(load_policies({"namespaces": {"x" * 1024: {}}}).namespaces) == 1


def test_burst_of_exactly_the_bound_is_allowed() -> None:
    text = f"job: {{publish: {{bytes_per_second: {MAX_BURST_TOKENS // 1000}, burst_seconds: 1000}}}}"
    assert load_policies(text).job.publish.burst_seconds == 1000


def test_several_problems_are_one_error_that_lists_all() -> None:
    error = problem_of("{queue: {bytes: 0, messages_: 1}, job: {publish: {weight: 0}}}")
    assert error.path == "job.publish.weight"
    assert "2 more: queue.bytes: 0 lets nothing wait" in error.problem
    assert "queue.messages_: unknown key; did you mean messages?" in error.problem


def test_list_of_problems_stays_readable() -> None:
    error = problem_of({"tenants": {f"t{number:03d}": {"resource_group": "none"} for number in range(500)}})
    assert error.path == "tenants.t000.resource_group"
    assert "499 more" in error.problem
    assert error.problem.endswith("and 489 more)")
    assert len(error.problem) < 2000


def test_document_is_frozen() -> None:
    document = load_policies("{}")
    with pytest.raises(ValueError, match="frozen"):
        document.queue.messages = 5


def test_json_and_mappings_and_documents_are_policies_too() -> None:
    values = {"job": {"publish": {"messages_per_second": 0.2}}}
    document = load_policies(values)
    assert load_policies(json.dumps(values)) == document
    assert load_policies(document) is document
    assert document.job.publish.messages_per_second == Decimal("0.2")


def test_path_is_read_as_a_text_and_as_a_path(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("job: {publish: {weight: 2}}")
    assert load_policies(path) == load_policies(str(path))
    assert load_policies(path).job.publish.weight == 2


@pytest.mark.parametrize("source", ["/nowhere/policy.yaml", "/nul\0", 5, None])
def test_file_that_cannot_be_read_is_a_configuration_error(source: str) -> None:
    with pytest.raises(ConfigurationError, match="give the path of a YAML file"):
        load_policies(source)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load_and_survive_a_round_trip(path: Path) -> None:
    document = load_policies(path)
    assert document.version == 1
    assert load_policies(dump_policies(document)) == document


def test_there_are_examples() -> None:
    assert {"example.yaml", "pegasus.yaml", "dry_run.yaml"} <= {path.name for path in EXAMPLES}


def is_name(text: str) -> bool:
    is_path = text[1:].endswith("/") or not {".", ".."}.isdisjoint(text.split("/"))
    return not is_path and BIDIRECTIONAL.search(text) is None


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(is_name)


@st.composite
def documents(draw: st.DrawFn) -> PolicyDocument:
    def given_only(**fields: object) -> dict[str, object]:
        return {name: value for name, value in fields.items() if value is not None}

    def scope(**fields: object) -> dict[str, object]:
        directions = draw(st.fixed_dictionaries({}, optional={"publish": written_quotas, "dispatch": written_quotas}))
        return directions | given_only(**fields)

    written_quotas = st.fixed_dictionaries(
        {},
        optional={
            "messages_per_second": st.decimals(0, 10**9, places=3) | st.integers(0, 10**9),
            "bytes_per_second": st.sampled_from(["64KiB", "1.5 MB", "0.001B", 0]),
            "request_percentage": st.sampled_from([0, 250, "0.0001", "50%"]),
            "max_message_bytes": st.sampled_from(["64KiB", 1, 2**36]),
            "burst_seconds": st.decimals("0.001", 1000, places=3),
            "weight": st.integers(1, 1000),
            "on_excess": st.sampled_from(["delay", "reject", "observe"]),
        },
    )
    groups = draw(st.lists(names, unique=True, max_size=3))
    a_group = st.none() | st.sampled_from(groups) if groups else st.none()
    a_rule = st.none() | st.sampled_from(["20K*delay*100", "5*reject*1"])
    tenants = draw(st.lists(names.filter(lambda name: "/" not in name), unique=True, max_size=3))
    return PolicyDocument.model_validate(
        {
            "resource_groups": {name: scope() for name in groups},
            "tenants": {name: scope(resource_group=draw(a_group)) for name in tenants},
            "namespaces": {
                name: scope(resource_group=draw(a_group), write_throttling=draw(a_rule), read_throttling=draw(a_rule))
                for name in draw(st.lists(names, unique=True, max_size=3))
            },
            "defaults": scope(resource_group=draw(a_group), write_throttling_by_size=draw(a_rule)),
            "job": scope(),
            "queue": draw(st.fixed_dictionaries({}, optional={"age_seconds": st.integers(1, 10**6)})),
        }
    )


def test_dumped_document_repeats_numbers_rather_than_anchoring_them() -> None:
    quota = {"messages_per_second": 0.2, "burst_seconds": "250ms"}
    document = load_policies({"job": {"publish": quota, "dispatch": quota}})
    assert dump_policies(document).splitlines() == [
        "version: 1",
        "job:",
        "  publish:",
        "    messages_per_second: 0.2",
        "    burst_seconds: 0.25",
        "  dispatch:",
        "    messages_per_second: 0.2",
        "    burst_seconds: 0.25",
    ]


@pytest.mark.parametrize(
    "name", ["a\x85b", "\u2028", "\ufeff", "a: b", "no", "007", "1e3", "<<", "ä", "'", '"', "a\nb"]
)
def test_dumped_name_is_read_as_it_was(name: str) -> None:
    document = load_policies({"resource_groups": {name: {}}, "defaults": {"resource_group": name}})
    assert load_policies(dump_policies(document)) == document


@pytest.mark.slow
@given(documents())
def test_dumped_document_loads_to_an_equal_one(document: PolicyDocument) -> None:
    assert load_policies(dump_policies(document)) == document
