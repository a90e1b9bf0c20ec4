"""The job's settings: strict, and the same in the file as in the code."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from demos.demo import GROUPS, OVERLOADED, demo_settings
from jobs.settings import CostSettings, JobSettings, SourceSettings, load_settings, parse_settings
from spark_throttle.errors import ConfigurationError
from spark_throttle.load.traffic import LoadOptions
from spark_throttle.policy.yaml_text import read_yaml
from spark_throttle.store.policy_location import load_policies

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf" / "throttle.yaml"
SAID_IN_A_COMMENT: dict[str, Any] = {
    "source.options": {},
    "throttle.size": None,
    "throttle.order_by": [],
    "sink.path": None,
    "rejected": None,
    "rejected.path": None,
    "usage": None,
}
"""Where the file's value is an example, and a comment there says the default."""

SMALL: dict[str, Any] = {
    "source": {"format": "throttle_load"},
    "throttle": {"policies": "p.yaml", "namespace": "key", "order_by": ["id"]},
    "sink": {"format": "delta", "path": "out"},
    "checkpoint": "checkpoint",
}


def test_file_names_every_setting_and_states_its_default() -> None:
    document = read_yaml(CONF.read_bytes())
    assert isinstance(document, dict)
    check_section(document, JobSettings, "")


def check_section(section: dict[str, Any], model: type[BaseModel], path: str) -> None:
    assert section.keys() == {field.alias or name for name, field in model.model_fields.items()}
    for name, field in model.model_fields.items():
        key = field.alias or name
        value, dotted = section[key], f"{path}{key}"
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner is not None and value is not None:
            check_section(value, inner, f"{dotted}.")
        elif not field.is_required():
            assert field.default == SAID_IN_A_COMMENT.get(dotted, value), dotted


def test_comment_on_the_costs_names_all_their_settings() -> None:
    comment = CONF.read_text().partition("\ncosts: null")[0].rpartition("\n\n")[2]
    keys = [field.alias or name for name, field in CostSettings.model_fields.items()]
    assert [key for key in keys if not re.search(rf"\b{key}\b", comment)] == []


def test_file_names_every_format_of_a_source() -> None:
    comment = CONF.read_text().partition("  format: ")[0].splitlines()[-1]
    formats = get_args(SourceSettings.model_fields["format"].annotation)
    assert [name for name in formats if not re.search(rf"\b{name}\b", comment)] == []


def test_file_is_valid_and_its_source_knows_its_options() -> None:
    settings = load_settings(CONF)
    assert LoadOptions.parse(settings.source.options).limit == 4_800_000
    assert load_policies(ROOT / str(settings.throttle.policies)).resource_groups


def test_what_is_left_out_is_the_default() -> None:
    settings = parse_settings(SMALL)
    assert settings.trigger.processing_time == "1 second"
    assert settings.report_seconds == Decimal(60)
    assert settings.rejected is None


def test_options_become_the_text_that_spark_takes() -> None:
    options = {"header": True, "limit": 5, "exponent": Decimal("0.5"), "name": "x"}
    settings = parse_settings(SMALL | {"source": {"format": "throttle_load", "options": options}})
    assert settings.source.options == {"header": "true", "limit": "5", "exponent": "0.5", "name": "x"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("throttle.direction=dispatch", lambda s: s.throttle.direction == "dispatch"),
        ("stop_after_seconds=2.5", lambda s: s.stop_after_seconds == Decimal("2.5")),
        ("trigger={processing_time: null, available_now: true}", lambda s: s.trigger.available_now),
        ("source.options.kafka.bootstrap.servers=a:1", lambda s: s.source.options["kafka.bootstrap.servers"] == "a:1"),
        ("spark.conf.spark.ui.enabled=false", lambda s: s.spark.conf["spark.ui.enabled"] == "false"),
        ("rejected=null", lambda s: s.rejected is None),
        ("throttle.policies=/lake/{env}/p.yaml", lambda s: s.throttle.policies == "/lake/{env}/p.yaml"),
        ("throttle.policies=delta:/lake/policies", lambda s: s.throttle.policies == "delta:/lake/policies"),
        ("throttle.policies={job: {}}", lambda s: s.throttle.policies == {"job": {}}),
        ("throttle.units=0", lambda s: s.throttle.units == "0"),
        ("source.select=[a AS b, c]", lambda s: s.source.select == ["a AS b", "c"]),
    ],
)
def test_override_replaces_one_setting(override: str, expected: Any) -> None:
    assert expected(load_settings(CONF, [override]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("throttle.direct=publish", r"^throttle.direct: unknown key; did you mean direction\?$"),
        ("sources.format=kafka", r"^sources: unknown key; did you mean source\?$"),
        ("rejected.formats=delta", r"^rejected.formats: unknown key; did you mean format\?$"),
        (
            "source.zzz=1",
            r"^source.zzz: unknown key; the keys here are format, path, schema, options, select, decide_on$",
        ),
        ("throttle.order_by=ts", r"^throttle.order_by: 'ts': Input should be a valid list"),
        ("source.format=csv", "^source.format: 'csv': Input should be 'throttle_load', 'kafka'"),
        ("source.format=delta", "^source: a delta source needs a path$"),
        ("source.format=json", "^source: a stream of json files needs a schema"),
        ("trigger.available_now=true", r"^trigger: give either processing_time, or"),
        (
            "costs={format: kafka, identity: id, units: n}",
            "^costs: they settle what rows reserved; give throttle.reservation",
        ),
        ("costs={format: kafka, identity: id}", "^costs.units: a value is required$"),
        ("sink.table=t", "^sink: path and table are both given; keep one$"),
        ("checkpoint.x=5", r"^checkpoint: .* Input should be a valid string$"),
        ("stop_after_seconds=0", r"^stop_after_seconds: .*greater than 0"),
        ("usage", "^--set usage: write it as key=value"),
        ("usage=[", r"^--set usage: line .* this is not YAML"),
    ],
)
def test_wrong_setting_is_an_error_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_settings(CONF, [override])


def test_missing_settings_are_all_named() -> None:
    with pytest.raises(ConfigurationError, match=r"^throttle: a value is required; checkpoint: a value is required$"):
        parse_settings({"source": SMALL["source"], "sink": SMALL["sink"]})


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the settings '.*nowhere.yaml'"):
        load_settings(tmp_path / "nowhere.yaml")
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(ConfigurationError, match="should be a mapping with the keys source, throttle"):
        load_settings(tmp_path / "list.yaml")
    (tmp_path / "twice.yaml").write_text("usage: a\nusage: b")
    with pytest.raises(ConfigurationError, match=r"twice.yaml: line 2: the key 'usage' is repeated"):
        load_settings(tmp_path / "twice.yaml")


# ------------------------------------------------------------------------------------------ the demonstration


def test_demonstration_is_what_the_readme_says() -> None:
    settings = demo_settings(Path("out"), ROOT / "conf/policies/demo.yaml", seconds=30, seed=1)
    load = LoadOptions.parse(settings.source.options)
    assert load.traffic.rows_per_second >= 20_000
    assert load.limit == 30 * load.traffic.rows_per_second
    assert len(load.traffic.namespaces()) == 200


def test_demonstration_overloads_one_group_threefold_by_a_policy_that_knows_all_tenants() -> None:
    policies = load_policies(ROOT / "conf/policies/demo.yaml")
    settings = demo_settings(Path("out"), ROOT / "conf/policies/demo.yaml", seconds=30, seed=1)
    traffic = LoadOptions.parse(settings.source.options).traffic
    names = traffic.namespaces().to_pylist()
    assert {name.partition("/")[0] for name in names} == set(policies.tenants)
    assert set(policies.namespaces) <= set(names)
    assert {tenant: policy.resource_group for tenant, policy in policies.tenants.items()} == {
        f"{group['prefix']}-{tenant:02d}": group["prefix"] for group in GROUPS for tenant in (0, 1)
    }
    overload = {
        group["prefix"]: group["messages_per_second"]
        / policies.resource_groups[group["prefix"]].publish.messages_per_second
        for group in GROUPS
    }
    assert overload[OVERLOADED] == 3
    assert all(
        policies.resource_groups[name].publish.on_excess == "reject" for name in overload if 1 < overload[name] < 3
    )
