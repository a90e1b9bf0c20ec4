"""A JVM that runs the commands of another system's tool, one after the other: to start one for each takes seconds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tests.sessions import JARS, SHORT_LIVED, jars

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command did."""

    is_done: bool
    """Whether it succeeded."""

    printed: str
    complained: str


@dataclass(frozen=True, slots=True)
class JavaSession:
    """A JVM that waits for commands."""

    process: subprocess.Popen[str]

    def run(self, *words: str) -> Answer:
        """Run a command."""
        commands, answers = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)
        commands.write(json.dumps(words) + "\n")
        commands.flush()
        return Answer(**json.loads(answers.readline()))

    def printed(self, *words: str) -> str:
        """Return what a command printed, which must succeed."""
        answer = self.run(*words)
        assert answer.is_done, answer.complained
        return answer.printed

    def refusal(self, *words: str) -> str:
        """Return the complaint of a command, which must fail."""
        answer = self.run(*words)
        assert not answer.is_done
        return answer.complained


@contextmanager
def java_session(source: str, use: str, log: Path, *arguments: str) -> Iterator[JavaSession]:
    """Start a source file of this folder with the jars of a use, and end its JVM."""
    jars(use)  # says how to get them when there are none
    command = ["java", *SHORT_LIVED.split(), "-cp", str(JARS / use / "*"), str(FOLDER / source), *arguments]
    pipe = subprocess.PIPE
    with log.open("w") as written, subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=written, text=True, encoding="utf-8"
    ) as process:  # fmt: skip
        try:
            yield JavaSession(process)
        finally:
            process.kill()
