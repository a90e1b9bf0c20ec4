"""How namespaces are shown that no text is a name of: never two alike, and text as it is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

PIECES = st.lists(
    st.sampled_from([b"a", b"/", b"\\", b"\\x", b"E9", b"\xe9", "é".encode(), b"\xff", b"\0", b"\xed\xa0\x80", b"xE"])
)
NAMES = st.builds(b"".join, PIECES) | st.binary(max_size=5)


def names_of(names: list[bytes | None]) -> pa.StringArray:
    return pa.array(names, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"acme/orders", "acme/orders"), (b"a\\b", "a\\b"), (b"a\\x", "a\\x"), (b"acme/\xe9", "acme/\\xE9"),
        (b"acme/\\xE9", "acme/\\\\xE9"), (b"a\\b\xff", "a\\\\b\\xFF"), ("é\0".encode(), "é\0"), (b"", ""),
    ],
)  # fmt: skip
def test_name_is_shown_as_it_is_unless_it_is_no_text(name: bytes, expected: str) -> None:
    assert shown(names_of([name, None])).to_pylist() == [expected, None]


@pytest.mark.slow
@given(st.lists(NAMES, max_size=6, unique=True))
def test_names_that_differ_are_never_shown_alike(names: list[bytes]) -> None:
    found = shown(names_of([*names, None]))
    found.validate(full=True)
    assert len(set(found.to_pylist())) == len(names) + 1
    assert shown(names_of([*names, None]).slice(1)).equals(found.slice(1))


def test_name_that_is_no_text_has_the_limits_of_its_tenant_its_glob_or_the_defaults() -> None:
    policy = make_policy(
        tenants={"acme": Tenant(limit(messages_per_second=1))},
        namespaces={glob: Namespace(limit(messages_per_second=2)) for glob in ("*/*-eu", "b*d/x", "b/*")},
        default=Namespace(limit(messages_per_second=3)),
    )
    globs = policy.glob_patterns.to_pylist()
    found = match(names_of([b"acme/\xe9", b"acme/\xe9-eu", b"b\xffd/x", b"b/\xff", b"\xff/x"]), policy)
    assert found.tenant.tolist() == [0, 0, -1, -1, -1]
    rules = [None if rule == policy.default_rule else globs[rule] for rule in found.rule.tolist()]
    assert rules == [None, "*/*-eu", "b*d/x", "b/*", None]
