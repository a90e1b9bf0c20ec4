"""A picture of "what if": how long the messages of the worst groups and tenants wait, under one policy or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from spark_throttle.errors import NotInstalledError
from spark_throttle.what_if.outcome import ScopeChange, WhatIf

_SHOWN: Final = 15
_INK, _PALE, _NOW, _BEFORE = "#222222", "#BBBBBB", "#D55E00", "#0072B2"  # of Okabe and Ito, told apart by all


def draw(found: WhatIf, target: Path) -> None:
    """Write the picture as a PNG.

    Raises
    ------
    NotInstalledError
        If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise NotInstalledError("matplotlib", "this Python", "pip install 'spark-throttle[jobs]'") from None
    scopes = [each for each in found.scopes if each.level != "job" and _longest_ms(each)]
    scopes = sorted(scopes, key=_longest_ms, reverse=True)[:_SHOWN][::-1]
    style: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _PALE}
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 1.4 + 0.5 * max(1, len(scopes))), layout="constrained")
        axes = figure.subplots()
        title = (
            "How long delayed messages wait: half of them up to the small dot, 99 % up to the next, all up to the last"
        )
        axes.set_title(title if scopes else "Nothing waits", loc="left", fontsize=10, x=0)
        for at, scope in enumerate(scopes):
            for outcome, shift, colour in ((scope.against, 0.17, _BEFORE), (scope.policy, -0.17, _NOW)):
                if outcome is not None and outcome.longest_ms:
                    seconds = [
                        (each or 0) / 1000 for each in (outcome.delay_p50_ms, outcome.delay_p99_ms, outcome.longest_ms)
                    ]
                    axes.plot([0, seconds[-1]], [at + shift] * 2, color=colour, linewidth=1.5)
                    axes.scatter(seconds, [at + shift] * 3, color=colour, s=(16, 36, 70), zorder=3)
        axes.set_yticks(
            range(len(scopes)), [f"{each.level.replace('resource_', '')} {each.scope}" for each in scopes], color=_INK
        )
        axes.set_xlabel("seconds")
        axes.set_xlim(left=0)
        axes.set_ylim(-0.6, max(1, len(scopes)) - 0.4)
        has_other = any(each.against is not None for each in scopes)
        names = (("this policy", _NOW), ("the other policy", _BEFORE)) if has_other else (("this policy", _NOW),)
        for name, colour in names:
            axes.scatter([], [], color=colour, label=name)
        figure.legend(loc="outside lower right", frameon=False, ncols=2)
        figure.savefig(target, dpi=120)


def _longest_ms(scope: ScopeChange) -> int:
    return max(scope.policy.longest_ms, 0 if scope.against is None else scope.against.longest_ms)
