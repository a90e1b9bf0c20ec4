"""A shorter history that breaks the same law: steps are taken out in ever smaller pieces (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.life.drawing import Step


def shrunk(steps: Sequence[Step], breaks: Callable[[Sequence[Step]], bool], *, most_plays: int = 200) -> list[Step]:
    """Return a part of `steps`, in their order, of which `breaks` is still true; no single step of it can go.

    Parameters
    ----------
    most_plays
        How often `breaks` is asked at most; the answer may then be longer than need be.
    """
    kept, size, plays = list(steps), max(1, len(steps) // 2), 0
    while plays < most_plays:
        start, was_cut = 0, False
        while start < len(kept) and plays < most_plays:
            without = kept[:start] + kept[start + size :]
            plays += 1
            if breaks(without):
                kept, was_cut = without, True
            else:
                start += size
        if size == 1 and not was_cut:
            return kept
        size = max(1, size // 2)
    return kept
