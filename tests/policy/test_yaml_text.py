"""Strict YAML: what is read is what its author sees."""

from __future__ import annotations

from decimal import Decimal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_throttle.errors import PolicyError
from spark_throttle.policy import yaml_text
from spark_throttle.policy.yaml_text import read_yaml


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with PyYAML's C parser and with its Python one."""
    if request.param == "python":
        monkeypatch.setattr(yaml_text, "_LOADER", yaml.SafeLoader)


pytestmark = pytest.mark.usefixtures("parser")


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("500", 500),
        ("-5", -5),
        ("0.2", Decimal("0.2")),
        ("0.30000000000000000001", Decimal("0.30000000000000000001")),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("text", "text"),
        ("'500'", "500"),
        ('"true"', "true"),
        ("|\n  a\n  b\n", "a\nb\n"),
    ],
)
def test_scalar_has_the_type_it_shows(scalar: str, value: object) -> None:
    read = read_yaml(f"key: {scalar}")
    assert read == {"key": value}
    assert isinstance(read, dict)
    assert type(read["key"]) is type(value)


@pytest.mark.parametrize("surprise", ["010", "0x10", "0o17", "0b1", "1:30", "1_000", "yes", "no", "on", "2026-01-01"])
def test_scalar_that_yaml_1_1_would_turn_into_something_else_stays_text(surprise: str) -> None:
    assert read_yaml(f"key: {surprise}") == {"key": surprise}


@pytest.mark.parametrize("surprise", [".inf", ".nan", "1e3", "9" * 5000])
def test_number_that_is_no_plain_decimal_stays_text(surprise: str) -> None:
    assert read_yaml(f"[{surprise}]") == [surprise]


@pytest.mark.parametrize("key", ["007", "no", "null", "1.0", "2026-01-01", "true", "a/b:c"])
def test_key_is_text_as_written(key: str) -> None:
    assert read_yaml(f"{key}: 1") == {key: 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is repeated; keep one of them"),
        ("a: {x: 1, 'x': 2}", "line 1: the key 'x'"),
        ('{"a": {"x": 1, "\\u0078": 2}}', "line 1: the key 'x'"),
        ("a: &a {x: 1}\nb: &b {x: 2}\nc: {<<: *a, <<: *b}", "line 3: the key '<<' is repeated; give it a list"),
        ("a: [1, }", "line 1, column 8: this is not YAML"),
        ("a:\n\tb: 1", "line 2, column 1: this is not YAML"),
        ("a: 1\n---\nb: 2", "line 2: a second document starts"),
        ("a: *missing", "line 1: *missing has no anchor above"),
        ("a: *delay*100", "needs quotes"),
        ("a: &x [*x]", "*x has no anchor above"),
        ("a: !!python/object:os.system 1", "line 1: the tag tag:yaml.org,2002:python/object:os.system is not allowed"),
        ("a: !own {}", "the tag !own is not allowed"),
        ("[a, b]: 1", "line 1: a key is not plain text"),
        ("<<: 5", "line 1: << takes a mapping, but this is 5"),
        ("a: " + 50 * "[" + 50 * "]", "line 1: this is nested deeper than 32 levels"),
        ("a: \x01", "not YAML"),
    ],
)
def test_bad_yaml_is_one_error_that_says_where(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_yaml(text)
    assert problem in caught.value.problem


@pytest.mark.parametrize("data", [b"a: \xff", "a: \ud800"])
def test_document_that_is_not_utf_8_is_a_policy_error(data: bytes | str) -> None:
    with pytest.raises(PolicyError, match="not valid UTF-8"):
        read_yaml(data)


def test_byte_order_mark_is_skipped() -> None:
    assert read_yaml(b"\xef\xbb\xbfa: 1") == {"a": 1}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "---\n...\n"])
def test_empty_document_is_none(text: str) -> None:
    assert read_yaml(text) is None


def test_anchors_aliases_and_merge_keys_work() -> None:
    text = """
    base: &base {rate: 1, weight: 2}
    more: &more {rate: 9, burst: 3}
    same: *base
    own: {weight: 5, <<: *base}
    both: {<<: [*base, *more]}
    quoted: {"<<": 1}
    """
    assert read_yaml(text) == {
        "base": {"rate": 1, "weight": 2},
        "more": {"rate": 9, "burst": 3},
        "same": {"rate": 1, "weight": 2},
        "own": {"rate": 1, "weight": 5},
        "both": {"rate": 1, "weight": 2, "burst": 3},
        "quoted": {"<<": 1},
    }


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


# The fixture chooses the parser, which may stay for all examples.
@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plain)
def test_what_pyyaml_writes_is_read_as_it_was(value: object) -> None:
    assert read_yaml(yaml.safe_dump(value)) == value
