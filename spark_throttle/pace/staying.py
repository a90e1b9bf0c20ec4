"""What stays in the process that made it.

A copy would have balances, and a queue, of its own, so it would not limit together with the original. Without this a
function that is sent to an executor, with a pacer among its variables, fails over a lock that its author never saw.
"""

from __future__ import annotations

from typing import Never


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
