"""A pacer stays in its process: a fork's child gets a copy in which nobody waits, and a pickle is refused.

A fork copies the memory, but of the threads only the one that forks. A lock that another thread held would stay taken
in the child for ever, and a thread that kept watch would be waited for in vain. So a fork waits until no queue is in
the middle of a change, and the child forgets who waited. Balances are copied: from then on each process has its own.

A copy would have balances, and a queue, of its own, so it would not limit together with the original. Without this a
function that is sent to an executor, with a pacer among its variables, fails over a lock that its author never saw.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Final, Never, Protocol
from weakref import WeakSet


class Staying:
    """A base of what can be neither pickled nor copied."""

    __slots__ = ()

    def __reduce__(self) -> Never:
        """Refuse to be pickled or copied.

        Raises
        ------
        TypeError
            Always, as Python's own locks and sockets do.
        """
        raise TypeError(
            f"{type(self).__name__} can be neither pickled nor copied, because a copy would have a limit of its own: "
            "make it in the process that uses it, such as inside the function that Spark runs on the "
            "executors"
        )


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
