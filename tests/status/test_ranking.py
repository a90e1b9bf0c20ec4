"""The ranking of scopes: the worst first, and no two in much the same state take turns."""

from __future__ import annotations

import numpy as np

from spark_throttle.status.ranking import rates_per_second, ratio_of_quota, worst_first

Scope = tuple[int, int, float, int, int]
"""How long the oldest message waits in ms, rejected, used part of the quota, waiting, offered."""


def ranked(scopes: list[Scope], *, placed: set[int] | None = None) -> list[int]:
    oldest_ms, rejected, used, waiting, offered = (np.array(column) for column in zip(*scopes, strict=True))
    has_place = np.array([at in (placed or ()) for at in range(len(scopes))])
    return worst_first(
        oldest_ms=oldest_ms, rejected=rejected, used_ratio=used, waiting=waiting, offered=offered, has_place=has_place
    ).tolist()


def test_age_of_the_oldest_message_comes_before_rejections_and_these_before_nearness_to_the_quota() -> None:
    near, rejecting, old, quiet = (-1, 0, 0.99, 0, 9), (-1, 1, 0.5, 0, 9), (0, 0, 0.5, 1, 9), (-1, 0, -1.0, 0, 900)
    assert ranked([quiet, near, rejecting, old]) == [3, 2, 1, 0]
    assert ranked([(0, 0, np.inf, 0, 1), (0, 0, 1.2, 0, 1)]) == [0, 1]


def test_within_a_class_a_scope_keeps_its_place_and_else_waiting_and_offered_decide() -> None:
    alike = [(60_000, 5, 0.91, 10, 10), (50_000, 4, 0.95, 30, 10), (40_000, 6, 0.92, 30, 20)]
    assert ranked(alike) == [2, 1, 0]
    assert ranked(alike, placed={0}) == [0, 2, 1]
    assert ranked([*alike, (70_000, 0, 0.0, 1, 1)], placed={0}) == [3, 0, 2, 1]


def test_of_scopes_in_one_state_that_whose_own_quota_holds_comes_first() -> None:
    """A group waits with each of its tenants: what holds them may be the tenant's own quota."""
    same, zero = np.array([60_000, 60_000]), np.zeros(2, np.int64)
    order = worst_first(
        oldest_ms=same, rejected=zero, used_ratio=zero.astype(float), waiting=np.array([9, 5]), offered=zero,
        held=np.array([0, 5]),
    )  # fmt: skip
    assert order.tolist() == [1, 0]


def test_part_of_a_quota_is_unknown_without_a_quota_and_without_time() -> None:
    used, rates = np.array([[500, 0], [7, 7]]), rates_per_second(np.array([[1_000_000, -1], [0, 0]]))
    assert ratio_of_quota(used, rates, 1_000).tolist() == [[0.5, -1.0], [np.inf, np.inf]]
    assert ratio_of_quota(used, rates, 0).tolist() == [[-1.0, -1.0], [-1.0, -1.0]]
