"""What the administrator of a tenant is told where the whole text may name other tenants, or paths of the platform."""

from __future__ import annotations

from typing import Final

from spark_throttle.status.liveness import Liveness

OWNERS_SEE: Final = "a problem that the platform's owners see"


def problem_in_words(problem: str | None, *, is_wide: bool) -> str | None:
    """Return a problem as its reader may see it; `None` stays `None`.

    Parameters
    ----------
    is_wide
        Whether the reader may see what belongs to no single tenant.
    """
    return problem if is_wide or problem is None else OWNERS_SEE


def life_in_words(life: Liveness, *, is_wide: bool) -> str:
    """Return the state of a job in words; what is not known of it may be due to a damaged file, whose path it holds."""
    is_known = life.state != "unknown" or not life.has_begun
    return life.detail if is_wide or is_known else "it is not known whether the job lives"
