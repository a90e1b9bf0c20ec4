"""Remedies that every door says in its own words: Python, the command line, the admin API.

An error that a caller mends by an option names the remedy, not the option: a flag of the command line helps nobody who
calls over HTTP. `ThrottleError.told` puts it into the words of a door; the message itself has Python's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeAlias


class Remedy(Enum):
    """What a caller can do about an error by an option of the call."""

    CONFIRM = auto()
    """Make the change although it costs protection."""

    MOVE_NAMESPACE = auto()
    """Take a namespace from one group to another in one step."""

    MOVE_OTHER = auto()
    """Take a tenant or the defaults from one group to another in one step."""

    MAKE_STORE = auto()
    """Make the policy store that is not there."""

    NAME_TABLE = auto()
    """Name the table of an imported text."""

    NAME_GROUP = auto()
    """Name the resource group of an imported text."""


Words: TypeAlias = Mapping[Remedy, str]
"""The words of a door, without a full stop; they end a message."""

WHY_ONE_STEP: Final = "between a detach and an attach it would have no group"
"""Why a move is one step; every door says it with its own call."""

_MOVE: Final = (
    f"to move it in one step, attach it with is_moved=True, or change resource_group in its entry; {WHY_ONE_STEP}"
)

IN_PYTHON: Final[Words] = {
    Remedy.CONFIRM: "confirm it with Author(is_confirmed=True) if it is meant",
    Remedy.MOVE_NAMESPACE: _MOVE,
    Remedy.MOVE_OTHER: _MOVE,
    Remedy.MAKE_STORE: "make one with `spark-throttle policy apply --init`, or correct the path",
    Remedy.NAME_TABLE: "give table",
    Remedy.NAME_GROUP: "give group",
}
"""A store is made from a shell, whoever misses it."""
