"""Which characters nobody sees, and that every door shows them escaped; traffic with them is limited as any other."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

from spark_throttle.core.names.matching import match
from spark_throttle.core.names.visible_text import is_visible, visible
from spark_throttle.policy.codec import dump_policies
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.yaml_text import dump_yaml
from spark_throttle.store.policy_location import load_policies

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
