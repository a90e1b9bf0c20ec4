"""The page's files: a fixed set, shipped in the package; no part of a request becomes a path."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "advice.js": "text/javascript; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "client.js": "text/javascript; charset=utf-8",
    "confirm.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
    "entries.js": "text/javascript; charset=utf-8",
    "fairness.js": "text/javascript; charset=utf-8",
    "followed_change.js": "text/javascript; charset=utf-8",
    "group.js": "text/javascript; charset=utf-8",
    "history.js": "text/javascript; charset=utf-8",
    "numbers.js": "text/javascript; charset=utf-8",
    "policy_fields.js": "text/javascript; charset=utf-8",
    "policy_form.js": "text/javascript; charset=utf-8",
    "processing_time.js": "text/javascript; charset=utf-8",
    "throttled.js": "text/javascript; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
    "uPlot.LICENSE": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@router.get("/")
async def get_page() -> Response:
    """Return the page."""
    return await get_page_file("index.html")


@router.get("/page/{name}")
async def get_page_file(name: str) -> Response:
    """Return one of the page's files."""
    if name not in _TYPES:
        raise HTTPException(404, "the page has no such file")
    return Response(_content(name), media_type=_TYPES[name])


@cache
def _content(name: str) -> bytes:
    return (files("spark_throttle.admin") / "page" / name).read_bytes()
