"""The fenced blocks of README and docs, and what becomes of each: it runs, or it says why not.

A block that cannot run stands below the comment ``<!-- not run: … -->``, which gives the reason; the names in it are
checked all the same (`names`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from jobs.settings import JobSettings, parse_settings
from spark_throttle.command_line.app import app
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.yaml_text import read_yaml
from tests.sessions import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = ("python", "yaml", "sql", "bash")
"""Of the blocks that run. A block of text, or without a language, is shown and not run."""

_FENCE = re.compile(r"^```(.*)$")
_MARK = re.compile(r"^<!-- not run: (.+) -->$")
_FILE = re.compile(r"^# (\S+\.yaml)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    """Line of the fence above its text."""

    language: str
    text: str
    why_not_run: str | None

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in their order; directives of the site generator are none."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    start, language = -1, ""
    for at, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start < 0:
            start, language = at, fence[1].strip()
            continue
        if not language.startswith("{"):
            mark = _MARK.match(lines[start - 1])
            text = "\n".join(lines[start + 1 : at]) + "\n"
            found.append(Block(page, start + 1, language, text, mark[1] if mark else None))
        start = -1
    assert start < 0, f"{page}: the fence of line {start + 1} has no end"
    return found


def running(page: Path) -> list[Block]:
    """Return the blocks of a page that run."""
    return [block for block in blocks_of(page) if block.language in LANGUAGES and block.why_not_run is None]


def needs_spark(page: Path) -> bool:
    """Return whether a block of a page asks for a session or a stream."""
    return any(
        block.language == "sql" or (block.language == "python" and re.search(r"\b(spark|events)\b\.?(?!_)", block.text))
        for block in running(page)
    )


class Reader:
    """One who pastes a page's blocks, one after the other, in an empty directory.

    What the page puts below ``/tmp`` goes into that directory.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession | None) -> None:
        self._home = home
        self._monkeypatch = monkeypatch
        self._spark = spark
        self._names: dict[str, Any] = {"__name__": "__main__"}
        if spark is not None:
            self._names |= {"spark": spark, "events": _any_stream(spark)}

    def paste(self, block: Block) -> None:
        """Run a block."""
        text = block.text.replace("/tmp/", f"{self._home}/")  # noqa: S108 - what a page says, and is not written
        run = {"python": self._python, "yaml": self._yaml, "sql": self._sql, "bash": self._bash}[block.language]
        run(block, text)

    def _python(self, block: Block, text: str) -> None:
        code = compile("\n" * block.line + text, str(block.page), "exec")
        exec(code, self._names)  # noqa: S102 - as the reader does

    def _yaml(self, block: Block, text: str) -> None:
        document = read_yaml(text)
        assert isinstance(document, dict), block.place
        if set(document) <= set(PolicyDocument.model_fields):
            parse_policies(text)
        elif set(document) <= set(JobSettings.model_fields):
            parse_settings(document)
        else:
            assert set(document) == {"groups"}, f"{block.place} is neither policies nor settings nor alert rules"
        name = _FILE.match(text)
        if name is not None:
            (self._home / name[1]).write_text(text)

    def _sql(self, block: Block, text: str) -> None:
        assert self._spark is not None
        assert self._spark.sql(text.strip().removesuffix(";")).collect(), f"{block.place} shows no row"

    def _bash(self, block: Block, text: str) -> None:
        for words in commands(text):
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                self._monkeypatch.setenv(name, value)
                continue
            assert words[0] == "spark-throttle", (
                f"{block.place}: {words[0]} cannot be run; mark the block with a reason"
            )
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{block.place}: {shlex.join(words)}: {result.output}{result.exception or ''}"


def commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's block, in words."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&")
        lexer.whitespace_split = True
        words = list(lexer)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield words[:end]
            words = words[end + 1 :]


def _any_stream(spark: SparkSession) -> Any:
    """Return a stream for the pages that take one as given."""
    return spark.readStream.format("rate").load().selectExpr("'acme' AS tenant", "'orders' AS topic", "value")


def visit(home: Path, monkeypatch: pytest.MonkeyPatch, page: Path, spark: SparkSession | None = None) -> None:
    """Paste all blocks of a page that run."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in [name for name in os.environ if name.startswith("SPARK_THROTTLE_")]:
        monkeypatch.delenv(variable)
    reader = Reader(home, monkeypatch, spark)
    for block in running(page):
        reader.paste(block)
