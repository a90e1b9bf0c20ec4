"""Whether what a block names exists, where the block itself cannot run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs

import typer

from spark_throttle.command_line.app import app
from spark_throttle.spark import Throttle, ThrottledStreamWriter
from spark_throttle.status.usage_table import USAGE_SCHEMA, WAITED
from tests.docs.snippets import Block, commands
from tests.sessions import ROOT

_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
_FILE = re.compile(r"^(conf|jobs|notebooks|docs|scripts)/[\w./-]+\.\w+$")


def make_targets() -> set[str]:
    """Return what `make` can be told."""
    return set(_TARGET.findall((ROOT / "Makefile").read_text()))


def check_names(block: Block) -> None:
    """Assert that functions, arguments, commands, options and files of a block exist."""
    if block.language == "python":
        check_python(block)
    elif block.language == "bash":
        for words in commands(block.text):
            check_command(block, words)
    elif block.language == "sql":
        columns = re.findall(r"(?<!AS )\b\w+_(?:messages|bytes|id|time|ms)\b", block.text)
        known = {*USAGE_SCHEMA.names, *(field.name for field in WAITED)}
        assert set(columns) <= known, f"{block.place}: {columns}"


def check_python(block: Block) -> None:
    """Assert that a block compiles, and names what the library has."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_throttle"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block.place}: {node.module} has no {alias.name}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Throttle":
            given = {each.arg for each in node.keywords}
            assert given <= set(inspect.signature(Throttle).parameters), f"{block.place}: {given}"
        if isinstance(node, ast.Attribute) and "write_stream" in _called(node.value):
            assert hasattr(ThrottledStreamWriter, node.attr), f"{block.place}: a throttled writer has no {node.attr}"


def _called(node: ast.expr) -> set[str]:
    """Return the names of the methods in a chain of calls."""
    found = set()
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
            node = node.value
        else:
            node = node.func
    return found


def check_command(block: Block, words: list[str]) -> None:
    """Assert that a command, its options and the files of this repository that it names exist."""
    for word in words:
        assert not _FILE.match(word) or (ROOT / word).exists(), f"{block.place}: there is no {word}"
    program, *arguments = words
    if program == "spark-throttle":
        check_cli(block, arguments)
    elif program == "make":
        targets = {word for word in arguments if "=" not in word}
        assert targets <= make_targets(), f"{block.place}: {targets}"
    elif program in ("python", "python3") and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), f"{block.place}: there is no module {arguments[1]}"
    elif program == "spark-submit":
        check_jars(block, " ".join(arguments))
    elif program == "curl":
        check_call(block, arguments)
    else:
        assert program in ("pip", "source"), f"{block.place}: nothing checks {program}"


def check_call(block: Block, arguments: list[str]) -> None:
    """Assert that the admin API has a call with this method, path and query, and that its body is JSON."""
    options = dict(pairwise(arguments))
    (address,) = [word for word in arguments if word.startswith("$address/")]
    path, _, query = address.removeprefix("$address").partition("?")
    paths = json.loads((ROOT / "conf" / "openapi.json").read_text())["paths"]
    fitting = [
        methods[options.get("-X", "GET").lower()]
        for template, methods in paths.items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and options.get("-X", "GET").lower() in methods
    ]
    assert fitting, f"{block.place}: no call is {options.get('-X', 'GET')} {path}"
    known = {each["name"] for call in fitting for each in call.get("parameters", ())}
    assert set(parse_qs(query)) <= known, f"{block.place}: {query}"
    json.loads(options.get("-d", "{}"))


def check_jars(block: Block, text: str) -> None:
    """Assert that jars have the versions that the project is tested with."""
    ivy = (ROOT / "scripts" / "jars" / "ivy.xml").read_text()
    for name, version in re.findall(r"[\w.]+:([\w.-]+):([\d.]+)", text):
        assert re.search(rf'name="{re.escape(name)}"[^>]*rev="{re.escape(version)}"', ivy), (
            f"{block.place}: {name} {version}"
        )


def check_cli(block: Block, arguments: list[str]) -> None:
    """Assert that the command line has a command, and its options."""
    command: Any = typer.main.get_command(app)
    words = list(arguments)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", None), f"{block.place}: {arguments} names no command"
    known = {name for each in command.params for name in each.opts}
    asked = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert asked <= known, f"{block.place}: {asked - known}"
