"""A change that is only shown: the entries that would differ, what that costs, and which rules take over."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from spark_throttle.admin.cli.output import Form, Output, shown

if TYPE_CHECKING:
    from spark_throttle.admin.shown_policies import Plan
    from spark_throttle.store.entries import Difference


def show_plan(plan: Plan, form: Form, *, notes: Sequence[str] = (), made_store: str | None = None) -> None:
    """Show what a change would do.

    Parameters
    ----------
    made_store
        The store that would be made; empty if it is there, `None` if the command makes none.
    """
    makes = {} if made_store is None else {"makes_store": bool(made_store)}

    def text() -> Any:  # noqa: ANN401 - what rich prints
        from rich.console import Group
        from rich.text import Text

        costs = [Text(shown(f"costs protection (--yes): {loss}"), style="bold red") for loss in plan.losses]
        made = [Text(shown(f"the policy store {made_store} would be made, with"))] if made_store else []
        said = [Text(shown(f"note: {note}")) for note in notes]
        return Group(*made, as_diff(plan.differences, plan.heirs), *costs, *said)

    Output(form).show({**asdict(plan), **makes, **({"notes": notes} if notes else {})}, text)


def as_diff(found: Sequence[Difference], heirs: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Any:  # noqa: ANN401 - what rich prints
    """Return differences for a terminal, each entry with its lines before and after."""
    from rich.text import Text

    text = Text()
    for each in found:
        before, after = (_lines(values) for values in (each.before, each.after))
        text.append(f"{shown(each.path)}", style="bold")
        text.append(
            {(True, False): "  new", (False, True): "  removed"}.get((each.before is None, each.after is None), "")
        )
        if each.kind == "namespace" and each.name in heirs:
            text.append(f": falls to {shown(' and '.join(heirs[each.name]))}")
        text.append("\n")
        for line in list(difflib.unified_diff(before, after, lineterm="", n=99))[3:]:
            style = {"+": "green", "-": "red"}.get(line[:1], "")
            text.append(f"  {line[:1]} {shown(line[1:])}\n", style=style)
    text.rstrip()
    return text if found else "nothing differs"


def _lines(values: dict[str, Any] | None) -> list[str]:
    from spark_throttle.policy.yaml_text import dump_yaml

    return dump_yaml(values, width=1000).splitlines() if values else []
