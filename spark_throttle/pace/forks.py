"""What a fork does to a pacer: the child gets a copy in which nobody waits.

A fork copies the memory, but of the threads only the one that forks. A lock that another thread held would stay taken
in the child for ever, and a thread that kept watch would be waited for in vain. So a fork waits until no queue is in
the middle of a change, and the child forgets who waited. Balances are copied: from then on each process has its own.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Final, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What is copied by a fork."""

    @property
    def lock(self) -> Lock:
        """Held while it changes."""

    def begin_in_child(self) -> None:
        """Forget what stayed in the parent; called under the lock."""


_FORKED: Final[WeakSet[Forked]] = WeakSet()
_HELD: Final[list[Forked]] = []
"""Those whose locks are held for the time of a fork."""


def outlive_forks(forked: Forked) -> None:
    """Make something whole in the children of this process."""
    _FORKED.add(forked)


def _before() -> None:
    for forked in list(_FORKED):
        forked.lock.acquire()
        _HELD.append(forked)


def _after(*, is_child: bool) -> None:
    while _HELD:
        forked = _HELD.pop()
        if is_child:
            forked.begin_in_child()
        forked.lock.release()


if hasattr(os, "register_at_fork"):  # elsewhere nothing forks
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(is_child=False),
        after_in_child=lambda: _after(is_child=True),
    )
