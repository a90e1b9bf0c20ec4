"""Diagrams from text: ``{diagram} name`` shows `diagrams/name.d2`, light and dark.

The pictures are checked in beside their sources, because README shows one of them. Each names the digest of its source;
a build draws anew what no longer matches, with the `d2` of the documentation's environment.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives

if TYPE_CHECKING:
    from sphinx.application import Sphinx

THEMES = {"light": "0", "dark": "200"}
"""d2's numbers of the themes, which have no fill behind the picture."""


def pictures_of(source: Path) -> dict[str, Path]:
    """Return the pictures of a source, by theme."""
    return {theme: source.with_name(f"{source.stem}-{theme}.svg") for theme in THEMES}


def mark_of(source: Path) -> str:
    """Return the line that a picture ends with while it shows what its source says."""
    return f"<!-- {source.name} {hashlib.sha256(source.read_bytes()).hexdigest()} -->\n"


def draw(source: Path) -> None:
    """Draw a source's pictures, where they are not of its text."""
    for theme, picture in pictures_of(source).items():
        if picture.exists() and picture.read_text().endswith(mark_of(source)):
            continue
        d2 = Path(sys.executable).with_name("d2")
        command = [d2, "--theme", THEMES[theme], "--pad", "10", "--elk-nodeNodeBetweenLayers", "40", source, picture]
        subprocess.run(command, check=True, capture_output=True)
        text = picture.read_text()
        picture.write_text(text.rstrip("\n") + "\n" + mark_of(source))
        picture.chmod(0o644)


def draw_all(app: Sphinx) -> None:
    """Draw what is out of date, before the first page is read."""
    for source in sorted(Path(app.srcdir, "diagrams").glob("*.d2")):
        draw(source)


class Diagram(Directive):
    """Shows a diagram; its caption is the directive's content, and `alt` says it to those who do not see it."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged_required, "width": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return the figure."""
        figure = nodes.figure(classes=["diagram"])
        for theme in THEMES:
            uri = f"/diagrams/{self.arguments[0]}-{theme}.svg"
            image = nodes.image(uri=uri, alt=self.options.get("alt", ""), classes=[f"only-{theme}"])
            if "width" in self.options:
                image["width"] = self.options["width"]
            else:
                image["classes"].append("wide")
            figure += image
        if self.content:
            caption = nodes.caption()
            caption += nodes.Text(" ".join(self.content))
            figure += caption
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.connect("builder-inited", draw_all)
    app.add_directive("diagram", Diagram)
    return {"parallel_read_safe": True}
