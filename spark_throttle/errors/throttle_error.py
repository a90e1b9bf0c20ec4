"""The root of the errors: a message, and a remedy that each door says in words of its own."""

from __future__ import annotations

from spark_throttle.remedies import IN_PYTHON, Remedy, Words


class ThrottleError(Exception):
    """The root of every error that this package raises.

    Parameters
    ----------
    message
        What is wrong, and the remedy if it is the same at every door.
    door_remedy
        A remedy that each door says in words of its own; `None` if the message has it.

    Examples
    --------
    >>> from spark_throttle.remedies import Remedy
    >>> error = ThrottleError("no limit is left", Remedy.CONFIRM)
    >>> str(error), error.told({Remedy.CONFIRM: "say yes"})
    ('no limit is left; confirm it with Author(is_confirmed=True) if it is meant', 'no limit is left; say yes')
    """

    def __init__(self, message: str = "", door_remedy: Remedy | None = None) -> None:
        self.message = message
        self.door_remedy = door_remedy
        super().__init__(self.told(IN_PYTHON))

    def told(self, words: Words) -> str:
        """Return the message with its remedy in the words of a door."""
        return self.message if self.door_remedy is None else f"{self.message}; {words[self.door_remedy]}"
