"""The law of what is guaranteed speaks where a guarantee lets nothing go first, and is silent where it does."""

from __future__ import annotations

from typing import Any, Final

import pytest

from spark_throttle.core.fair.guarantees import Claims
from tests.life.laws import Violation
from tests.life.life import Birth, Life

GUARANTEED: Final[dict[str, Any]] = {
    "version": 1,
    "job": {"publish": {"messages_per_second": 20, "burst_seconds": 2}},
    "tenants": {"acme": {"publish": {"guaranteed_messages_per_second": 10}}, "blue": {"publish": {"weight": 9}}},
}


def flooded() -> None:
    life = Life(Birth(GUARANTEED), laws=["L9"])
    for _ in range(12):
        life.offer([("acme/a", 1, 60), ("blue/a", 1, 60)])
        life.trigger(1_000)


def test_guarantee_that_is_kept_is_silent() -> None:
    flooded()


def test_guarantee_that_lets_nothing_go_first_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "are_any", False)
    with pytest.raises(Violation, match=r"L9: \('tenant', 'acme'\) is behind what it is guaranteed by"):
        flooded()
