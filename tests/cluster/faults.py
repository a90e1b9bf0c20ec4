"""What happens to requests on their way to the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to requests that come while it is in force."""

    latency_ms: int = 0
    """By so much every request is later."""

    slow_down_share: float = 0.0
    """The part of requests that are answered with 503 SlowDown."""

    cut_share: float = 0.0
    """The part of requests whose connection is reset: of one half before they are done, of the other after it."""

    is_out: bool = False
    """Whether the store is not to be reached at all: connections are reset."""

    is_silent: bool = False
    """Whether requests get no answer until this ends, and then none either, as where a network drops packets."""


CALM: Final = Faults()
OUT: Final = Faults(is_out=True)
SILENT: Final = Faults(is_silent=True)
WEATHERS: Final = (
    CALM,
    Faults(latency_ms=20),
    Faults(latency_ms=100),
    Faults(latency_ms=5, slow_down_share=0.02),
    Faults(latency_ms=5, cut_share=0.01),
    Faults(latency_ms=20, slow_down_share=0.02, cut_share=0.01),
)
"""What a life of the job may have to live with."""
