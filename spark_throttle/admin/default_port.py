"""The port of the admin server where nobody names another; the command line, the API and the docs have this one."""

from __future__ import annotations

from typing import Final

DEFAULT_PORT: Final = 8182
