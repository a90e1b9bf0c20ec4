"""YAML, read strictly: what a policy says must be what its author sees.

It differs from PyYAML's `safe_load` wherever that would silently change a quota:

* a repeated key is an error, instead of the last one winning;
* keys are text as written, so a tenant may be called `007`, `no` or `2026-01-01`;
* only decimal numbers are numbers, and they are kept exact; `010`, `0x10`, `1:30` and `1_000` stay text,
  which no number field accepts (YAML 1.1 reads 8, 16, 90 and 1000);
* only `true` and `false` are booleans, so the group `no` is a group;
* tags, several documents, and nesting beyond `MAX_DEPTH` are errors.

Anchors, aliases and merge keys (`<<`) work. Values are built directly from libyaml's events, without the
node tree; this is what makes 100,000 namespaces quick to read.

It is written so that it reads back as it was, and so that a reader sees every character of a name. What has no glyph of
its own (a bidirectional control, a zero-width character, a line separator) is escaped in double quotes: as it is, it
could make one name look like another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NoReturn

import yaml
from yaml.emitter import ScalarAnalysis

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.names.visible_text import is_visible
from spark_throttle.errors import PolicyError

MAX_DEPTH: Final = 32

_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,39})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,39})\.[0-9]{0,40}", re.ASCII)
_WORDS: Final = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str | bytes) -> object:
    r"""Return the value of the only document in `text`; `None` if there is no document.

    Raises
    ------
    PolicyError
        If the text cannot be read; the message gives the line of the mistake, if it has one.

    Examples
    --------
    >>> read_yaml("a: {007: 0.2, x: no}")
    {'a': {'007': Decimal('0.2'), 'x': 'no'}}
    >>> read_yaml("a: 1\na: 2")
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: line 2: the key 'a' is repeated; keep one of them
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        loader = _LOADER(data.decode("utf-8-sig").encode())
    except UnicodeError as error:
        raise PolicyError("", f"the document is not valid UTF-8 ({error}); save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise _syntax_error(error) from None
    try:
        return _Builder(loader.get_event).build_stream()
    except yaml.YAMLError as error:
        raise _syntax_error(error) from None
    finally:
        loader.dispose()


class _Builder:
    """Builds values from a stream of events."""

    def __init__(self, next_event: Callable[[], Any]) -> None:
        self._next_event = next_event
        self._anchors: dict[str, object] = {}

    def build_stream(self) -> object:
        self._next_event()
        if type(self._next_event()) is yaml.StreamEndEvent:
            return None
        value = self._build(self._next_event(), 0)
        self._next_event()
        event = self._next_event()
        if type(event) is not yaml.StreamEndEvent:
            _refuse(event, "a second document starts here; keep one")
        return value

    def _build(self, event: Any, depth: int) -> object:  # noqa: ANN401 - PyYAML's stubs say no more
        if type(event) is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                _refuse(event, f"*{event.anchor} has no anchor above; text that starts with * needs quotes")
            return self._anchors[event.anchor]
        if event.tag is not None:
            _refuse(event, f"the tag {event.tag} is not allowed; leave it out")
        if depth > MAX_DEPTH:
            _refuse(event, f"this is nested deeper than {MAX_DEPTH} levels; a policy has four")
        if type(event) is yaml.ScalarEvent:
            value = _plain_value(event.value) if event.implicit[0] else event.value
        elif type(event) is yaml.MappingStartEvent:
            value = self._build_mapping(depth + 1)
        else:
            value = self._build_list(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _build_list(self, depth: int) -> list[object]:
        values = []
        while type(event := self._next_event()) is not yaml.SequenceEndEvent:
            values.append(self._build(event, depth))
        return values

    def _build_mapping(self, depth: int) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] | None = None
        while type(key := self._next_event()) is not yaml.MappingEndEvent:
            if type(key) is not yaml.ScalarEvent:
                _refuse(key, "a key is not plain text; write it as text")
            if key.value in own:
                _refuse(key, f"the key {describe(key.value)} is repeated; keep one of them")
            value = self._build(self._next_event(), depth)
            if key.value == "<<" and key.implicit[0]:
                if merged is not None:
                    _refuse(key, "the key '<<' is repeated; give it a list: <<: [*one, *other]")
                merged = self._merge(key, value)
            else:
                own[key.value] = value
        return (merged or {}) | own

    @staticmethod
    def _merge(key: Any, value: object) -> dict[str, object]:  # noqa: ANN401
        merged: dict[str, object] = {}
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                _refuse(key, f"<< takes a mapping, but this is {describe(source)}")
            merged = source | merged
        return merged


@lru_cache(maxsize=4096)
def _plain_value(text: str) -> object:
    """Return the value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else text


def _refuse(event: Any, problem: str) -> NoReturn:  # noqa: ANN401
    raise PolicyError("", f"line {event.start_mark.line + 1}: {problem}")


def _syntax_error(error: yaml.YAMLError) -> PolicyError:
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if "alias" in (getattr(error, "context", None) or ""):
        said += "; text that starts with * needs quotes"
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return PolicyError("", f"{where}this is not YAML: {said}")


def dump_yaml(values: object, *, width: int = 80) -> str:
    r"""Return plain values as YAML; `read_yaml` reads equal values from it.

    Parameters
    ----------
    width
        Columns after which a long text is folded.

    Examples
    --------
    >>> print(dump_yaml({"acme/\u202ex": {"weight": Decimal("0.5")}}), end="")
    "acme/\u202Ex":
      weight: 0.5
    """
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)
    if all(map(_is_visible, text)):
        return text
    return "".join(c if _is_visible(c) else _escaped(c) for c in text)


def _is_visible(character: str) -> bool:
    return is_visible(character) or character == "\n"


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04X}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08X}"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the base class's signature
        return True

    def analyze_scalar(self, scalar: str) -> ScalarAnalysis:
        analysis = super().analyze_scalar(scalar)
        if not all(map(_is_visible, scalar)):
            # Only double quotes have escapes. PyYAML itself escapes what is beyond the basic plane, and control codes.
            analysis.allow_flow_plain = analysis.allow_block_plain = False
            analysis.allow_single_quoted = analysis.allow_block = False
        return analysis


def _represent_decimal(dumper: yaml.SafeDumper, value: Decimal) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:float" if value % 1 else "tag:yaml.org,2002:int"
    return dumper.represent_scalar(tag, f"{value:f}")


_Dumper.add_representer(Decimal, _represent_decimal)
