"""A namespace falls under the most specific glob that it matches, and globs are tried in one order."""

from __future__ import annotations

import fnmatch
import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.names.globs import covers, first_match, is_glob, is_of_tenant, specificity
from tests.oracle.reference_rules import falls_under

TEXT = st.text(st.sampled_from("ab/*.ü\\[(^$+?|\n-"), max_size=6)


def position(name: str, patterns: list[str]) -> int:
    tenant = name.split("/", maxsplit=1)[0]
    found = first_match(pa.array([name]), pa.array([tenant]), pa.array(patterns, pa.string()))
    return int(found[0])


@pytest.mark.parametrize(
    ("pattern", "name", "falls"),
    [
        ("acme/*", "acme/orders", True),
        ("acme/*", "acme/", True),
        ("acme/*", "acme/a/b", True),
        ("acme/*", "acme", False),
        ("acme/*", "acmee/x", False),
        ("acme*", "acme", True),
        ("*", "", True),
        ("*", "any/thing\nat all", True),
        ("*/orders", "acme/orders", True),
        ("*/orders", "acme/old/orders", True),
        ("*/orders", "orders", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*b*", "abc", True),
        ("a.c/*", "abc/x", False),
        ("a[b]*", "ab", False),
        ("zoë/*/ü", "zoë/x/ü", True),
        ("/*", "/x", True),
        ("a*\\", "a\\", True),
        ("b", "a", False),
    ],
)
def test_star_stands_for_any_text_and_every_other_character_for_itself(pattern: str, name: str, falls: bool) -> None:
    assert (position(name, [pattern]) == 0) is falls
    assert falls_under(name, pattern) is falls
    assert covers(pattern, name) is falls


@pytest.mark.slow
@given(st.lists(TEXT.filter(is_glob), max_size=5), st.lists(TEXT, max_size=8))
def test_first_match_is_the_first_pattern_that_the_oracle_finds(patterns: list[str], names: list[str]) -> None:
    tenants = [name.split("/", maxsplit=1)[0] for name in names]
    found = first_match(pa.array(names, pa.string()), pa.array(tenants, pa.string()), pa.array(patterns, pa.string()))
    expected = [next((i for i, glob in enumerate(patterns) if falls_under(name, glob)), -1) for name in names]
    assert found.tolist() == expected


@pytest.mark.slow
@given(st.text("ab/", max_size=6), st.text("ab/*", min_size=1, max_size=5))
def test_oracle_agrees_with_the_shell_on_what_both_know(name: str, pattern: str) -> None:
    assert falls_under(name, pattern) is fnmatch.fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("acme/orders*", "acme/*"),
        ("acme/*", "acme*"),
        ("acme/*", "*/a-very-long-suffix"),  # bytes before the first star go before bytes in all
        ("acme/*-eu", "acme/*"),
        ("acme/*-eu", "acme/**-eu"),
        ("*/orders", "*"),
        ("a*b", "a*c"),
        ("ü*", "a*"),  # two bytes
    ],
)
def test_of_two_globs_the_more_specific_goes_first(first: str, second: str) -> None:
    assert specificity(first) < specificity(second)


@pytest.mark.slow
@given(st.lists(TEXT.filter(is_glob), min_size=2, max_size=4, unique=True))
def test_order_of_globs_is_total_and_does_not_rest_on_how_they_were_written(patterns: list[str]) -> None:
    orders = {tuple(sorted(each, key=specificity)) for each in itertools.permutations(patterns)}
    assert len(orders) == 1


def test_any_number_of_tenants_is_looked_up_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import spark_throttle.core.names.globs as module

    calls: list[str] = []
    matches = module._matches

    def counted(names: pa.StringArray, glob: str) -> pa.BooleanArray:
        calls.append(glob)
        return matches(names, glob)

    monkeypatch.setattr(module, "_matches", counted)
    patterns = [*(f"tenant-{i}/*" for i in range(1000)), "*/orders"]
    assert position("tenant-7/x", patterns) == 7
    assert position("other/orders", patterns) == 1000
    assert calls == ["*/orders", "*/orders"]
    assert not is_of_tenant("*/*")
    assert not is_of_tenant("/*")
