"""JSON answers in which every character is visible; they read back as the exact text."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class VisibleJSONResponse(JSONResponse):
    r"""A JSON answer with what has no glyph of its own escaped, such as a bidirectional control in a name.

    Examples
    --------
    >>> print(VisibleJSONResponse({"name": "acme/ü\u202e"}).body.decode())
    {"name":"acme/ü\u202e"}
    """

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - as Starlette's
        """Return the text of an answer."""
        text = super().render(content).decode()
        if not text.isprintable():
            text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
        return text.encode()
