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
    (
        "spark_throttle/sharing/register.py",
        "_LONGEST_MS: Final = (0, 3 * 3_600_000, 3 * 86_400_000, 93 * 86_400_000)",
        "_LONGEST_MS: Final = ( 1, 3 * 3_600_000, 3 * 86_400_000, 93 * 86_400_000)",
    ): "a register is kept for the time after which a silent job is forgotten, which is longer",
    (
        "spark_throttle/core/batch/queue_bounds.py",
        "_MARGIN_BITS = 5",
        "_MARGIN_BITS = 4",
    ): "the first looks only shorten the search",
    (
        "spark_throttle/sharing/sharing.py",
        "claim = np.maximum(claim, np.where(kept > 0, kept + kept // 128 + FLOOR_PARTS, 0))",
        "claim = np.maximum(claim, np.where(kept > 0, kept + kept // 128 + FLOOR_PARTS, -1))",
    ): "a claim is never negative, so that neither number is the larger",
    (
        "spark_throttle/core/fair/work.py",
        "is_within = int(work.min(initial=1)) >= 1 and int(work.max(initial=1)) <= most",
        "is_within = int(work.min(initial= 2)) >= 1 and int(work.max(initial=1)) <= most",
    ): "the least of some numbers and 2 is at least 1 where the least of them and 1 is",
    (
        "spark_throttle/control/shared_budgets.py",
        "used = np.maximum(used, np.where(lost.may_use < UNBOUNDED, lost.may_use, 0))",
        "used = np.maximum(used, np.where(lost.may_use < UNBOUNDED, lost.may_use, -1))",
    ): "what is used is never negative, so that neither number is the larger",
    (
        "spark_throttle/core/shares/allocation.py",
        "surplus = np.maximum(bit_length(np.abs(rest)) - FACTOR_BITS, 0)",
        "surplus = np.maximum(bit_length(np.abs(rest)) - FACTOR_BITS, -1)",
    ): "the next look of a search only: it is bounded on both sides, and ends at the same level",
    (
        "spark_throttle/core/batch/scope_room.py",
        "passed = np.where(room_ns < 0, 0, room_ns // np.maximum(price_ns, 1) + 1)",
        "passed = np.where(room_ns < -1, 0, room_ns // np.maximum(price_ns, 1) + 1)",
    ): "-1 // price + 1 is 0, as is said of less",
    (
        "spark_throttle/core/fair/contenders.py",
        "np.where(tenant < len(tenant_names), tenant, -1),",
        "np.where(tenant < len(tenant_names), tenant, ~1),",
    ): "any negative number says that a namespace has a node of its own; its scope and weight are then its own",
    (
        "spark_throttle/core/batch/queue_bounds.py",
        "return [level + 8 * margin, level - 8 * margin, level + margin, level - margin]",
        "return [level + 8 * margin, level - 8 * margin, level % margin, level - margin]",
    ): "the first looks only shorten the search",
    (
        "spark_throttle/core/policy_change.py",
        "if windows is None or before is None or not _begins(windows, state):",
        "if windows is None or before is None and not _begins(windows, state):",
    ): "where no window begins, what is counted in each stays as it is: only slower",
    (
        "spark_throttle/core/fair/contest.py",
        "reached = [done + np.where(may_go, each, 0) for each in filled.passing]",
        "reached = [done + np.where(may_go, each, -1) for each in filled.passing]",
    ): "the earlier rounds let as much pass, and the larger counts",
    (
        "spark_throttle/core/fair/filling.py",
        "got, goes, own = [nothing] * (height - 1), [nothing > 0] * height, [nothing] * height",
        "got, goes, own = [nothing] * (height - 1), [nothing > -1] * height, [nothing] * height",
    ): "each is replaced, but for that of the leaves, which nobody reads",
    (
        "spark_throttle/core/batch/rows_behind.py",
        "if spent is None or budgets is None:",
        "if spent is None and budgets is None:",
    ): "budgets are counted where the policy has some, and nowhere else",
    (
        "spark_throttle/core/fair/turns.py",
        "if not ((found == guess) & (found >= 0)).all():",
        "if not ((found is not guess) & (found >= 0)).all():",
    ): "a search ends with a look at what it has found, so that no other is needed",
    (
        "spark_throttle/core/shares/division.py",
        "open_scopes[:] = False",
        "open_scopes[:] = True",
    ): "scopes in which nobody was lifted come out the same, only slower",
    (
        "spark_throttle/sharing/sharing.py",
        "pinned[:, 0] += np.where(pinned[:, 0] > 0, more, 0)",
        "pinned[:, 0] += np.where(pinned[:, 0] > 0, more, -1)",
    ): "the least amount that has a code is 0, so that -1 becomes 0 in the next line",
    (
        "spark_throttle/core/fair/contest.py",
        "if several.max(initial=-1) < 0:",
        "if several.max(initial=-1) < -1:",
    ): "without a tenant that has several nodes the general way does the same, only slower",
    (
        "spark_throttle/sharing/register.py",
        "number = (report.mark.incarnation << 32 | report.mark.number) & _BASE_BITS",
        "number = (report.mark.incarnation << 33 | report.mark.number) & _BASE_BITS",
    ): "no incarnation makes 2^32 reports: the number is as unlike others",
    (
        "spark_throttle/core/arithmetic/rate_codes.py",
        "MAX_RATE = (1 << 52) - 1",
        "MAX_RATE = (1 << 52) ^ 1",
    ): "no quota comes near either",
    (
        "spark_throttle/core/shares/allocation.py",
        "np.copyto(factor, WHOLE, where=self.share == 0)",
        "np.copyto(factor, WHOLE, where=self.share <= 0)",
    ): "a share is never negative",
    (
        "spark_throttle/core/fair/guarantees.py",
        "part[d, at] = np.minimum(part[d, at], proportional(have[scope] + 1, *rate, most_bits=61) - 1)",
        "part[d, at] = np.minimum(part[d, at], proportional(have[scope] + 1, *rate, most_bits= 60) - 1)",
    ): "no rate, and so no room that is in question, has as many bits",
    (
        "spark_throttle/sharing/lease_keeper.py",
        "_READS: Final = 512",
        "_READS: Final = 511",
    ): "a bound on what an interval may cost, of which nobody misses one read",
    (
        "spark_throttle/core/fair/crossing.py",
        "shown, chosen, _ = self._passed(nothing, nothing > 0)",
        "shown, chosen, _ = self._passed(nothing, nothing > 1)",
    ): "no number of `nothing` is more than 0",
    (
        "spark_throttle/core/names/matching.py",
        "asked = np.flatnonzero(percent[rule] > 0)",
        "asked = np.flatnonzero(percent[rule] >= 0)",
    ): "no part is smaller than 0 percent: names of such rules are hashed in vain",
    (
        "spark_throttle/sharing/lease_keeper.py",
        "if word != self._warned_of and not self._sharing.is_superseded:",
        "if word is not self._warned_of and not self._sharing.is_superseded:",
    ): "both words are constants of one line, which Python keeps once",
    (
        "spark_throttle/core/limits/size_bounds.py",
        "for at, (dimension, most) in enumerate(zip(AMOUNTS, MOST_OF_AMOUNTS, strict=True)):",
        "for at, (dimension, most) in enumerate(zip(AMOUNTS, MOST_OF_AMOUNTS, strict=False)):",
    ): "both have one for each amount: the argument says so to a reader",
    (
        "spark_throttle/core/fair/work.py",
        "if int(counts.sum()) >= _MANY_ROWS * len(counts):",
        "if int(counts.sum()) >= _MANY_ROWS ** len(counts):",
    ): "to lay rows out anew changes only how fast they are found",
    (
        "spark_throttle/core/batch/queue_bounds.py",
        "return [level + 8 * margin, level - 8 * margin, level + margin, level - margin]",
        "return [level % 8 * margin, level - 8 * margin, level + margin, level - margin]",
    ): "the first looks only shorten the search",
    (
        "spark_throttle/core/fair/contest.py",
        "return np.where((served_lead - lead >= asked) & (after < 0), 0, after)",
        "return np.where((served_lead - lead >= asked) & (after <= 0), 0, after)",
    ): "what is 0 becomes 0",
    (
        "spark_throttle/core/arithmetic/segments.py",
        "for to, column in zip(*((each.T if each.ndim > 1 else (each,)) for each in (out, values)), strict=True):",
        "for to, column in zip(*((each.T if each.ndim > 1 else (each,)) for each in (out, values)), strict=False):",
    ): "both have as many columns: the argument says so to a reader",
    (
        "spark_throttle/core/fair/water.py",
        "if (first < end).all():",
        "if (first != end).all():",
    ): "no first is behind its end",
    (
        "spark_throttle/core/fair/turns.py",
        "if not ((found == guess) & (found >= 0)).all():",
        "if not ((found == guess) >> (found >= 0)).all():",
    ): "it looks once more at what it has found, and finds the same",
    (
        "spark_throttle/core/fair/filling.py",
        "if k < len(went) - 1:",
        "if k != len(went) - 1:",
    ): "no level is above the last",
    (
        "spark_throttle/core/shares/division.py",
        "spare = np.maximum(left - sums(scope, part, len(available)), 0)",
        "spare = np.maximum(left - sums(scope, part, len(available)), -1)",
    ): "no more is given out than there is",
    (
        "spark_throttle/control/shared_budgets.py",
        "for at, c, p in zip(scope.tolist(), column.tolist(), period.tolist(), strict=True)",
        "for at, c, p in zip(scope.tolist(), column.tolist(), period.tolist(), strict=False)",
    ): "the three are of one length: the argument says so to a reader",
    (
        "spark_throttle/core/batch/queue_bounds.py",
        "margin = (level >> _MARGIN_BITS) + 1",
        "margin = (level >> _MARGIN_BITS) ^ 1",
    ): "the first looks only shorten the search",
    (
        "spark_throttle/core/fair/contest.py",
        "is_less = (chosen < wanted) | (is_spent & (until > 0))",
        "is_less = (chosen < wanted) | (is_spent * (until > 0))",
    ): "of two truth values the product is the conjunction",
    (
        "spark_throttle/core/limits/token_bucket.py",
        "_MOST_EARNED_MICRO = 1 << 62",
        "_MOST_EARNED_MICRO = 1 ^ 62",
    ): "the general way, for products that leave int64, gives the same for smaller ones, only slower",
    (
        "spark_throttle/core/policy_change.py",
        "is_same = np.where(new >= 0, np.append(self.former, -1)[new] == old, old < 0)",
        "is_same = np.where(new >= 0, np.append(self.former, -1)[new] == old, old <= 0)",
    ): "the scope of number 0 is the job's, which is on every way before and after",
    (
        "spark_throttle/control/shared_guarantees.py",
        "(parts == UNLIMITED) | (total == 0),",
        "(parts == UNLIMITED) | (total == -1),",
    ): "of nothing that is wanted any part is nothing",
}
"""Reasons, by (module, line before, line after)."""


def reason_of(module: str, before: str, after: str) -> str | None:
    """Return why a mutant makes no difference, or `None` if nothing says so."""
    return EQUIVALENT.get((module, before, after))
