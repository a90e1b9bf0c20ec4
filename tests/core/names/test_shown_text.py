"""No two namespaces are shown alike, every door escapes what nobody sees, and traffic with either is limited as any."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.names.visible_text import is_visible, visible
from spark_throttle.policy.codec import dump_policies
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.yaml_text import dump_yaml
from spark_throttle.store.policy_location import load_policies
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


IGNORABLE = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0), *range(0x180B, 0x1810),
    *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10),
    *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000),
]  # fmt: skip
"""Default_Ignorable_Code_Point, from Unicode's DerivedCoreProperties.txt."""

EMPTY = [0x2800, 0x16FE4, 0x1D159, 0x00A0, 0x2000, 0x3000]


@pytest.mark.parametrize("codes", [IGNORABLE, EMPTY], ids=["ignorable", "empty"])
def test_no_character_that_nobody_sees_counts_as_visible(codes: list[int]) -> None:
    for code in codes:
        assert not is_visible(chr(code)), hex(code)
        shown = visible(f"acme/x{chr(code)}")
        assert shown.isascii(), hex(code)
        assert shown != "acme/x"


def test_letters_marks_and_symbols_stay_as_they_are() -> None:
    for text in ("acme/ü", "中文", "한국어", "e\u0301", "\u2801", "\u1100\u1161", "नमस्ते", "❤", "a b"):
        assert (is_visible(text), visible(text)) == (True, text), ascii(text)
    hidden = {code for code in range(0x110000) if chr(code).isprintable() and not is_visible(chr(code))}
    assert hidden <= {*IGNORABLE, *EMPTY}
    assert {unicodedata.category(chr(code)) for code in hidden} == {"Lo", "Mn", "So"}


@pytest.mark.parametrize("code", [0x3164, 0x2800, 0xFE0F, 0x115F, 0x1160, 0xFFA0, 0x034F, 0xE0100, 0x1D159])
def test_name_with_a_character_that_nobody_sees_is_limited_and_shown_escaped(code: int, tmp_path: Path) -> None:
    name = f"acme/x{chr(code)}"
    text = dump_yaml({"namespaces": {name: {"publish": {"messages_per_second": 7}}}})
    assert chr(code) not in text
    (tmp_path / "p.yaml").write_text(text)
    document = load_policies(str(tmp_path / "p.yaml"))
    assert document.namespaces.keys() == {name}
    assert chr(code) not in dump_policies(document)
    policy = compile_policy(document, "publish")
    names = pa.array([name, "acme/x"])
    assert match(names, policy).rule.tolist() == [0, policy.default_rule]


@pytest.mark.parametrize("code", [0x3164, 0x2800, 0xFE0F, 0xE0100])
def test_answers_hold_no_character_that_nobody_sees(code: int) -> None:
    from spark_throttle.admin.api.requests import VisibleJSONResponse
    from spark_throttle.admin.cli.output import as_json

    values = {"name": f"acme/x{chr(code)}"}
    for written in (bytes(VisibleJSONResponse(values).body).decode(), as_json(values)):
        assert written.isascii()
        assert json.loads(written) == values


def test_caller_has_no_name_that_looks_like_anothers() -> None:
    from spark_throttle.admin.caller import is_name

    assert [is_name(name) for name in ("ann", "ann\u3164", "\u2800", "ann\ufe0f")] == [True, False, False, False]
