r"""YAML, written so that it reads back as it was, and so that a reader sees every character of a name.

What has no glyph of its own (a bidirectional control, a zero-width character, a line separator) is escaped in double
quotes: as it is, it could make one name look like another.
"""

from __future__ import annotations

from decimal import Decimal

import yaml
from yaml.emitter import ScalarAnalysis

from spark_throttle.core.names.shown_names import is_visible


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
