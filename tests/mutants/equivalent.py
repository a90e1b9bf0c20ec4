"""Mutants that make no difference, with the reason: `tests.mutants.run` does not count them as survivors.

A mutant is named by its module and by its line before and after, so that an entry ends with the code that it is about.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "spark_throttle/sharing/pip82.py",
        "return np.where(is_over, np.iinfo(np.int64).max, np.where(is_over, 0, value).astype(np.int64))",
        "return np.where(is_over, np.iinfo(np.int64).max, np.where(is_over, -1, value).astype(np.int64))",
    ): "the inner number stands where the outer one replaces it: any that fits in 64 bits will do",
    (
        "spark_throttle/sharing/pip82.py",
        "scopes = int(scope.max(initial=-1)) + 1",
        "scopes = int(scope.max(initial=1)) + 1",
    ): "it makes more scopes than there are if these are fewer than two: without a row they change nothing",
    (
        "spark_throttle/sharing/own_scopes.py",
        "_UNLIMITED = np.uint32(0xFFFF_FFFF)",
        "_UNLIMITED = np.uint32( 4294967294)",
    ): "no job sends it, and the largest code of a rate is 0x6BFFFFFF",
    (
        "spark_throttle/core/limits/pegasus.py",
        "_NO_THRESHOLD = 1 << 62",
        "_NO_THRESHOLD = 1 << 61",
    ): "no window has as many units: 2^61 bytes are 33 million of the largest messages",
    (
        "spark_throttle/core/fair/contest.py",
        "is_taken = tree.sums(passing[2] - passed, 1) == 0",
        "is_taken = tree.sums(passing[2] - passed, 1) <= 0",
    ): "a scope lets pass no more than what came to it, so the sum is never negative",
    (
        "spark_throttle/core/fair/contest.py",
        "if height == 1 and _several(scopes.tenant).max(initial=-1) >= 0:",
        "if height == 1 and _several(scopes.tenant).max(initial=-1) >= -1:",
    ): "a tenant with one node chooses the same in the general way, only slower",
    (
        "spark_throttle/core/fair/turns.py",
        "guess = np.where(is_open, told, np.where(found >= 0, found, low))",
        "guess = np.where(is_open, told, np.where(found != 0, found, low))",
    ): "the guess of a top that is closed is looked at no more: its last look is at what was found, or at the least",
    (
        "spark_throttle/core/arithmetic/segments.py",
        "powers = np.multiply.accumulate(np.full(int(length.max(initial=0)) + 1, _HASH_BASE, dtype=np.uint64))",
        "powers = np.multiply.accumulate(np.full(int(length.max(initial=0)) + 0, _HASH_BASE, dtype=np.uint64))",
    ): "the last power is of no byte",
}
"""Reasons, by (module, line before, line after)."""


def reason_of(module: str, before: str, after: str) -> str | None:
    """Return why a mutant makes no difference, or `None` if nothing says so."""
    return EQUIVALENT.get((module, before, after))
