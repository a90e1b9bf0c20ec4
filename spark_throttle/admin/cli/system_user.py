"""The user that the operating system runs this process for."""

from __future__ import annotations

import os
import pwd


def system_user() -> tuple[str, int]:
    """Return the name and the number of the user; no variable of the environment changes them."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name, uid
    except KeyError:  # as in a container that runs under any number
        return "unnamed", uid
