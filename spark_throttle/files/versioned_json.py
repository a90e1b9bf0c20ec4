"""JSON that names its format: a release reads the newest format that it knows, and all older ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, UnknownVersionError

FORMAT_KEY: Final = "format"

Parsed = TypeVar("Parsed")


def parse_versioned(
    text: str | bytes,
    what: str,
    newest_format: int,
    parse: Callable[[dict[str, Any]], Parsed],
    *,
    remedy: str = RESTORE_CHECKPOINT,
) -> Parsed:
    """Return the result of `parse` on the fields of a JSON object that names its format.

    Parameters
    ----------
    what
        Names the object in errors.
    newest_format
        The newest format that this release knows.
    remedy
        What to do if it is damaged.

    Raises
    ------
    UnknownVersionError
        If a newer release wrote it.
    DamagedError
        If it cannot be read.

    Examples
    --------
    >>> parse_versioned('{"format": 1, "batch": 7}', "a note", 1, lambda fields: fields["batch"])
    7
    """
    try:
        fields = _fields(json.loads(text))
        found = int(fields[FORMAT_KEY])
        if found > newest_format:
            raise UnknownVersionError(what, found, newest_format)
        return parse(fields)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(what, _problem(error), remedy) from error


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401 - what json reads
    if not isinstance(value, dict):
        raise TypeError("it is not a mapping")
    return value


def _problem(error: Exception) -> str:
    """Return what is wrong with a text that cannot be read, in words."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error.msg}, line {error.lineno}, column {error.colno})"
    if isinstance(error, KeyError):
        return f"it has no field {error.args[0]}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) or repr(error)


def versioned(format_number: int, fields: dict[str, Any]) -> bytes:
    """Return the JSON that `parse_versioned` reads, one field per line."""
    return json.dumps({FORMAT_KEY: format_number, **fields}, indent=1).encode()
