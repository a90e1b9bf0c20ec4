"""The reference pages that the code writes: the command line, and the calls of the admin API.

They are written into `docs/generated/`, which is not checked in, before the first page is read.
"""

from __future__ import annotations

import enum
import json
import re
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx


def command_line() -> str:
    """Return the page of the command line."""
    import typer

    from spark_throttle.command_line.app import app

    top = typer.main.get_command(app)
    lines = ["# Command line", "", f"{top.help}", ""]
    lines += ["Every command has `--help`, and those that answer have `--output json`. ", ""]
    lines += ["This page is made from the commands themselves.", ""]
    for name, command in top.commands.items():
        lines += _command(f"spark-throttle {name}", command, level=2)
    return "\n".join(lines)


def _command(path: str, command: Any, level: int) -> Iterator[str]:
    yield from ["#" * level + f" `{path}`", "", _text(command.help), ""]
    commands = getattr(command, "commands", None)
    if commands:
        for name, inner in commands.items():
            yield from _command(f"{path} {name}", inner, level + 1)
        return
    options = [each for each in command.params if not each.hidden and each.name != "help"]
    words = [_word(each) for each in options if each.param_type_name == "argument"]
    yield from ["```{code-block} text", " ".join([path, *words, "[OPTIONS]"]), "```", ""]
    yield from ["| argument or option | meaning | default |", "|---|---|---|"]
    for each in options:
        yield f"| {_names(each)} | {_help(each)} | {_default(each)} |"
    yield ""


def _word(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    return word if argument.required or word.startswith("[") else f"[{word}]"


def _names(each: Any) -> str:
    if each.param_type_name == "argument":
        return f"`{_word(each)}`"
    value = "" if each.is_flag else " " + (each.metavar or _kind(each))
    return ", ".join(f"`{name}`" for name in each.opts) + (f" `{value.strip()}`" if value.strip() else "")


def _kind(each: Any) -> str:
    annotation = each.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(str(one.value) for one in annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(typing.get_args(annotation))
    if annotation in (int, float):
        return "NUMBER"
    return "TEXT"


def _help(each: Any) -> str:
    said = _text(each.help or "")
    variable = getattr(each, "envvar", None)
    return f"{said} Environment: `{variable}`." if variable else said


def _default(each: Any) -> str:
    if each.required:
        return "required"
    value = each.default.value if isinstance(each.default, enum.Enum) else each.default
    return "" if value in (None, "", False, ()) else f"`{value}`"


def _text(said: str) -> str:
    plain = " ".join(said.split()).replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")
    return re.sub(r"(?<![`\w-])--[a-z][a-z-]*", r"`\g<0>`", plain)  # two hyphens alone become a dash


def calls(document: dict[str, Any]) -> str:
    """Return the page of the admin API's calls."""
    info = f"{document['info']['title']}, version {document['info']['version']}"
    lines = [
        "# Calls of the admin API",
        "",
        f"{info}. This page is made from `conf/openapi.json`, which has every field.",
    ]
    lines += ["[The control plane](../admin.md) says who may make which call.", ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            said = _text((operation.get("description") or operation.get("summary") or "").split("\n\n")[0])
            lines += [f"`{method.upper()} {path}`", f": {said}", ""]
    return "\n".join([*lines, ""])


def write_all(app: Sphinx) -> None:
    """Write the pages, and leave alone those that say the same."""
    folder = Path(app.srcdir, "generated")
    folder.mkdir(exist_ok=True)
    openapi = json.loads(Path(app.srcdir).parent.joinpath("conf", "openapi.json").read_text())
    for name, text in (("cli", command_line()), ("calls", calls(openapi))):
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx to have the pages written."""
    app.connect("builder-inited", write_all)
    return {"parallel_read_safe": True}
