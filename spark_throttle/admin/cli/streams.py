"""A stream of a command that cannot be read or written is told, by a line and by the exit code.

What is read from stdin is bounded, because a pipe may go on without an end.

What a command changes is changed before its answer is written. A stream that the caller has closed (``>&-``) swallows
what is written; so does stderr where it cannot be written, because nobody is left to tell.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Final, TextIO

from spark_throttle.errors import ConfigurationError

MOST_STDIN_BYTES: Final = 256 * 2**20
"""What is read from stdin at most; the document of a million namespaces is smaller."""

_STDOUT: Final = 1
_STDERR: Final = 2


class UnwrittenAnswerError(Exception):
    """An answer cannot be written to stdout; what the command changes is changed."""


class _AnswerStream(io.TextIOWrapper):
    """A stdout whose failures are told from those of other files; a pipe without a reader is no failure."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _unwritten(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _unwritten(error) from error


class _ErrorStream(io.TextIOWrapper):
    """A stderr that swallows what it cannot write: the exit code still tells what happened."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            swallow(_STDERR)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            swallow(_STDERR)


def read_stdin() -> bytes:
    """Return what comes on stdin, until its end.

    Raises
    ------
    ConfigurationError
        If it is closed, cannot be read, or is longer than `MOST_STDIN_BYTES`.
    """
    if sys.stdin is None:  # as Python has it if it was closed before it began
        raise ConfigurationError(
            "nothing can come on stdin, which is closed (<&-); pipe the text to it, or name a file"
        )
    try:
        text = sys.stdin.buffer.read(MOST_STDIN_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"stdin cannot be read ({error}); pipe the text to it, or name a file") from error
    if len(text) > MOST_STDIN_BYTES:
        raise ConfigurationError(
            f"more than {MOST_STDIN_BYTES} bytes came on stdin, which is the most that is read; name a file instead"
        )
    return text


def guard_streams() -> None:
    """Take care of stdout and stderr until the process ends."""
    # A file that is opened later would otherwise get the number of a closed stream, and what is written to that.
    for number in (_STDOUT, _STDERR):
        try:
            os.fstat(number)
        except OSError:
            swallow(number)
    sys.stdout = _AnswerStream(
        _buffer_of(sys.stdout, _STDOUT),
        encoding=getattr(sys.stdout, "encoding", None),
        errors=getattr(sys.stdout, "errors", None),
        line_buffering=getattr(sys.stdout, "line_buffering", False),
    )
    sys.stderr = _ErrorStream(
        _buffer_of(sys.stderr, _STDERR),
        encoding=getattr(sys.stderr, "encoding", None),
        errors="backslashreplace",
        line_buffering=True,
    )


def swallow(number: int) -> None:
    """Let a stream lead nowhere, by its number: also what is still buffered for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def swallow_answer() -> None:
    """Let stdout lead nowhere."""
    swallow(_STDOUT)


def _buffer_of(stream: TextIO | None, number: int) -> io.BufferedWriter:
    """Return what a stream writes to; Python has `None` for one that was closed before it began."""
    buffer = getattr(stream, "buffer", None)
    return buffer if isinstance(buffer, io.BufferedWriter) else open(number, "wb", closefd=False)


def _unwritten(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error
    return UnwrittenAnswerError(error.strerror or str(error))
