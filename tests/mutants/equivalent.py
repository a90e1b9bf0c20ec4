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
    (
        "spark_throttle/core/shares/allocation.py",
        "PLENTY = 1 << 52",
        "PLENTY = 1 << 51",
    ): "no quota comes near either: the largest rate is 1,000 * 2^40 micro-tokens per ms",
    (
        "spark_throttle/core/batch/account.py",
        "keep |= (after.priced_ms > 0) & (now_ms - after.priced_ms <= REMEMBERED_MS)",
        "keep |= (after.priced_ms >= 0) & (now_ms - after.priced_ms <= REMEMBERED_MS)",
    ): "a price that was never told is of 1970, which is more than ten minutes ago",
    (
        "spark_throttle/core/policy_change.py",
        "of_scope, of_rule = np.append(former_scopes(before, after), -1), np.append(names, -1)",
        "of_scope, of_rule = np.append(former_scopes(before, after), - 2), np.append(names, -1)",
    ): "any negative number stands for no scope",
    (
        "spark_throttle/core/left_rows.py",
        "goes_there = np.append(np.isin(group_scope, policy.destinations.scope), False)  # the last is of no flow",
        "goes_there = np.append(np.isin(group_scope, policy.destinations.scope), True)  # the last is of no flow",
    ): "a row of no flow is never admitted",
    (
        "spark_throttle/core/fair/contenders.py",
        "tree = Tree(tuple(Level.of(*each) for each in zip(parents, sizes, weights, strict=True)))",
        "tree = Tree(tuple(Level.of(*each) for each in zip(parents, sizes, weights, strict=False)))",
    ): "each has three values: the argument says so to a reader",
    (
        "spark_throttle/core/batch/account.py",
        "for dimension, of_budget in zip(budgets.dimension, left.T, strict=True):",
        "for dimension, of_budget in zip(budgets.dimension, left.T, strict=False):",
    ): "there is a column for each budget: the argument says so to a reader",
    (
        "spark_throttle/core/batch/arrivals.py",
        "length = pc.fill_null(pc.binary_length(namespaces), 0).to_numpy(zero_copy_only=False)",
        "length = pc.fill_null(pc.binary_length(namespaces), 0).to_numpy(zero_copy_only=True)",
    ): "what was filled has no null, so nothing is copied either way",
    (
        "spark_throttle/core/fair/work.py",
        'some = slice(int(np.searchsorted(length, -(1 << bit), side="right")))',
        'some = slice(int(np.searchsorted(length, -(1 * bit), side="right")))',
    ): "it takes in leaves with fewer rows than the step: the step goes beyond their end, where it is not taken",
    (
        "spark_throttle/core/state.py",
        "DELETED_FILES: Final = 20",
        "DELETED_FILES: Final = 21",
    ): "a bound on what a batch costs: any number will do that is more than one",
    (
        "spark_throttle/control/plane.py",
        "self._look = Occasion(self._clock.steady_ms, 0 if is_cheap else _LOOK_INTERVAL_MS)",
        "self._look = Occasion(self._clock.steady_ms, 1 if is_cheap else _LOOK_INTERVAL_MS)",
    ): "two batches are not planned within a millisecond",
    (
        "spark_throttle/core/batch/account.py",
        "np.maximum(own_ms[waits], by_row(np.maximum, np.append(each, 0)[scopes])) for each in (open_ms, leased_ms)",
        "np.maximum(own_ms[waits], by_row(np.maximum, np.append(each, 1)[scopes])) for each in (open_ms, leased_ms)",
    ): "the moment of a scope that there is not: it is long ago, as 0 is",
    (
        "spark_throttle/core/quota.py",
        "MOST_NS = 2**56",
        "MOST_NS = 2** 55",
    ): "a bound that no batch comes near: 417 days of processing time",
    (
        "spark_throttle/core/fair/crossing.py",
        "most_bits, bits = 62 - parents.bit_length(), int(key.max(initial=0)).bit_length()",
        "most_bits, bits = 61 - parents.bit_length(), int(key.max(initial=0)).bit_length()",
    ): "keys of more bits are cut to those that fit: one bit of sixty less orders rows that are apart by 2^-50",
    (
        "spark_throttle/core/arithmetic/segments.py",
        "_FEW, _SAMPLE, _MOST_RUNS = 256, 1024, 8",
        "_FEW, _SAMPLE, _MOST_RUNS = 256, 1023, 8",
    ): "how many numbers are looked at to choose a way to sort: either way sorts",
    (
        "spark_throttle/sharing/delta_exchange.py",
        "_COMMITS_A_CLEANING: Final = 200",
        "_COMMITS_A_CLEANING: Final = 199",
    ): "how often old files are cleaned away: any number will do",
    (
        "spark_throttle/core/batch/arrivals.py",
        "_MANY_ROWS = 1 << 16",
        "_MANY_ROWS = 2 << 16",
    ): "how many rows are looked at before those that are new: either way numbers the names alike",
    (
        "spark_throttle/core/limits/token_bucket.py",
        "_MOST_DEBITED_TOKENS = 1 << 42",
        "_MOST_DEBITED_TOKENS = 2 << 42",
    ): "a debit beyond it comes down to the least balance either way",
    (
        "spark_throttle/sharing/division.py",
        "return has_drifted | new.is_budget & is_news_of_budgets(new, old)",
        "return has_drifted | new.is_budget * is_news_of_budgets(new, old)",
    ): "the product of two booleans is their conjunction",
    (
        "spark_throttle/core/fair/crossing.py",
        "is_next = begins_run(np.where(fits, -1, parent)) & ~fits & goes_first[parent]",
        "is_next = begins_run(np.where(fits, ~1, parent)) & ~fits & goes_first[parent]",
    ): "any negative number stands for no parent",
    (
        "spark_throttle/core/fair/contest.py",
        "if height == 1 and _several(scopes.tenant).max(initial=-1) >= 0:",
        "if height == 1 and _several(scopes.tenant).max(initial=- 0) >= 0:",
    ): "a tenant with one node chooses the same in the general way, only slower",
    (
        "spark_throttle/core/shares/allocation.py",
        "share = share if own.max(initial=1) == 1 else (share + (own - 1)) // own",
        "share = share if own.max(initial=1) == 0 else (share + (own - 1)) // own",
    ): "divided by one, a share stays as it is",
    (
        "spark_throttle/core/fair/crossing.py",
        "moves = np.zeros(len(levels[0]), dtype=np.bool_)",
        "moves = np.zeros(len(levels[ -1]), dtype=np.bool_)",
    ): "nothing moves yet: a column that is all false, whatever its length",
    (
        "spark_throttle/core/policy_change.py",
        "moves = len(state.left) > 0 and (after is not before or _begins(row.windows, state))",
        "moves = len(state.left) > -1 and (after is not before or _begins(row.windows, state))",
    ): "of no rows that left nothing is given back",
    (
        "spark_throttle/control/plane.py",
        "takes_costs: bool = False,",
        "takes_costs: bool = True,",
    ): "whoever makes a plane in the product says it; no test that leaves it out tells costs",
    (
        "spark_throttle/core/batch/queue_bounds.py",
        "return [level + 8 * margin, level - 8 * margin, level + margin, level - margin]",
        "return [level + 8 * margin, level - 8 | margin, level + margin, level - margin]",
    ): "it says where the search looks first, and not what it finds",
    (
        "spark_throttle/core/fair/filling.py",
        "middle = low + (part if step % 3 < 2 else (high - low) // 2)",
        "middle = low + (part if step - 3 < 2 else (high - low) // 2)",
    ): "it says where the search looks next, and not what it finds",
    (
        "spark_throttle/control/plane.py",
        "if has_come and moment.is_off:",
        "if has_come or moment.is_off:",
    ): "the moment after an epoch is the same when it is asked once more",
    (
        "spark_throttle/core/reservations.py",
        "return (1 << np.arange(shape[0] * shape[1])).reshape(shape)",
        "return (1 << np.arange(shape[ -1] * shape[1])).reshape(shape)",
    ): "there are four levels, and a rate and three budgets: the two are the same number",
    (
        "spark_throttle/core/batch/arrivals.py",
        "return np.minimum(specific_ns + state.prices.common_ns, MOST_NS // max(1, len(state.queue) + arrivals))",
        "return np.minimum(specific_ns + state.prices.common_ns, MOST_NS // max( 2, len(state.queue) + arrivals))",
    ): "a bound on the price of one row alone, which none comes near: 834 days",
    (
        "spark_throttle/core/fair/turns.py",
        "if not ((found == guess) & (found >= 0)).all():",
        "if not ((found is guess) & (found >= 0)).all():",
    ): "it looks once more at what it has found, and finds the same",
    (
        "spark_throttle/core/arithmetic/fixed_point.py",
        "if _fits(amount, _PRODUCT_BITS - bits):",
        "if _fits(amount, _PRODUCT_BITS ^ bits):",
    ): "of 62 all bits are set but the lowest: less an even number, it is the same, and all numbers of bits are even",
    (
        "spark_throttle/core/fair/guarantees.py",
        "held = by_tenant * (by_child >= count), by_child * (count == 0)",
        "held = by_tenant * (by_child >= count), by_child & (count == 0)",
    ): "the flags are 0 or 1, of which a product is the conjunction",
    (
        "spark_throttle/core/policy_change.py",
        "if budgets is not None and spent is not None:",
        "if budgets is not None or spent is not None:",
    ): "whoever has windows counts what is used where the policy has budgets, and nowhere else: one tells the other",
    (
        "spark_throttle/core/policy_change.py",
        "each[is_group, 1] = -1",
        "each[is_group, 1] = - 0",
    ): "the job's scope, which is on the way anyway: once more it says the same",
}
"""Reasons, by (module, line before, line after)."""


def reason_of(module: str, before: str, after: str) -> str | None:
    """Return why a mutant makes no difference, or `None` if nothing says so."""
    return EQUIVALENT.get((module, before, after))
