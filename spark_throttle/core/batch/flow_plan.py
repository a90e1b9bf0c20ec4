"""Each flow gets a prefix of its rows in a batch; its plan says how long, what stops it, and what its buckets pay.

So all of this is arithmetic over flows. Whether everything in a batch fits is known from the sums of its flows, before
any row is put in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.batch.marks import DebtFloors, Marks, MarkStarts
from spark_throttle.core.batch.scope_room import Room, is_short_of, limited_scopes, taken_by
from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.fair.contenders import Contenders, Leads
from spark_throttle.core.fair.contest import Outcome as Turns
from spark_throttle.core.fair.guarantees import Above, Claims, decide_with_guarantees
from spark_throttle.core.fair.layout import Candidates, Layout, by_dimension, cost
from spark_throttle.core.limits.budgets import Budgets, Spent
from spark_throttle.core.limits.token_bucket import debit, in_micro
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches, enforcing_scopes, scopes_where
from spark_throttle.core.quota import Bools, CompiledPolicy, Dimension, Int64s, Level, Limits, OnExcess
from spark_throttle.core.shared_buckets import SharedBuckets, guaranteed_rates, under_share
from spark_throttle.core.state import Flows, NodeLeads

MOST_GIVEN_OUT = 1 << 60
"""The most micro-tokens for which anybody waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """What stopped each flow; -1 where nothing did."""

    level: Int64s
    """The `Level` that stopped the flow; also -1 where a row that may not leave yet stopped it."""

    dimension: Int64s
    scope: Int64s
    """The shared scope, -1 for the namespace itself."""

    @classmethod
    def none(cls, flows: int) -> Stops:
        """Return the stops of `flows` flows, none of which was stopped."""
        return cls(*(np.full(flows, -1, dtype=np.int64) for _ in range(3)))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The admission of a batch; arrays run over the flows unless they say otherwise."""

    behind: Int64s
    """The positions, ascending, of the candidates that are not admitted."""

    marks: Marks
    """The marks of observing scopes on the admitted candidates."""

    stops: Stops
    wanted: Int64s
    """Shape (flows, 4): what all candidates take, by `Dimension`."""

    served: Int64s
    """Shape (flows, 4): what the admitted candidates take."""

    queues: Layout | None = None
    """The layout of the candidates that are not admitted; `None` if no candidate was put in order."""

    mark_starts: Sequence[MarkStarts] = ()
    """Where the marks of each level begin."""

    @classmethod
    def of_all(cls, wanted: Int64s) -> Outcome:
        """Return the outcome of a batch that admits everything."""
        return cls(np.zeros(0, dtype=np.int64), Marks.none(), Stops.none(len(wanted)), wanted, wanted)


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan:
    """The outcome of a batch for its flows, and the balances that it leaves."""

    outcome: Outcome
    balance_micro: Int64s
    """Shape (flows, 4): the balances after the debits."""

    shared: SharedBuckets
    """The shared buckets after the debits."""

    contest: Contest | None
    """The contest for the shared scopes that run short; `None` if none does."""

    spent: Spent | None
    """What the flows have used of their own budgets after the batch; `None` if no namespace has any."""

    rooms: tuple[Room, Room]
    """The room that the batch found, of the flows themselves and of the shared scopes."""

    def ends_by(self, flow: Int64s, scope: Int64s, dimension: Int64s) -> Int64s:
        """Return what ended the room of these shared scopes in a dimension, and of these flows where the scope is -1.

        It is the dimension of a rate, or a budget (`Causes.dimension`); -1 where the dimension is.
        """
        own, shared = self.rooms
        found = dimension
        for room, at, is_here in ((own, flow, scope < 0), (shared, scope, scope >= 0)):
            if room.ends_by is not None and is_here.any():
                found = np.where(is_here & (dimension >= 0), room.ends_by[np.maximum(at, 0), dimension], found)
        return found

    def beside_units(self, flow: Int64s, size_bytes: Int64s) -> Int64s | None:
        """Return as how many units rows counted without theirs in the fair order; `None` if no order mattered."""
        return None if self.contest is None else self.contest.contenders.beside_units(flow, size_bytes)

    def leads(self, waiting: Int64s, policy: CompiledPolicy) -> Leads:
        """Return what the fair tree remembers; the candidates at `waiting`, which ascends, wait afterwards."""
        contest = self.contest
        if contest is None or contest.turns is None:
            return Leads.none(len(self.balance_micro))
        return contest.contenders.leads(contest.turns, contest.layout, waiting, policy)


def plan_flows(  # noqa: PLR0913 - all that a batch takes
    candidates: Candidates,
    flows: Flows,
    limits: Limits,
    matches: Matches,
    shared: SharedBuckets,
    nodes: NodeLeads,
    policy: CompiledPolicy,
    *,
    price_ns: Int64s | None,
    lapsed: Int64s | None,
    corrected: CorrectedRows | None,
    new_weights: int,
    now_ms: int,
) -> FlowPlan:
    """Return the plan of a batch: how far every flow gets, and the balances after its debits.

    Parameters
    ----------
    nodes
        The leads of the fair tree's inner nodes.
    price_ns
        Shape (flows,): the time as which a message of each flow counts; `None` if no scope limits time.
    lapsed
        Shape (flows,): the number of first rows of each flow that became too old; `None` if none did.
    corrected
        What turned out to cost other than it was charged, by these flows; `None` for nothing.
    new_weights
        As in `DeciderState`.
    """
    resources = 1 + len(candidates.amounts) if price_ns is None else len(Dimension)
    room = Room.of(shared.balance_micro, policy.shared, resources, shared.spent, shared.claims)
    own = Room.of(flows.balance_micro, limits, resources, flows.spent)
    scopes, counts = limited_scopes(matches, policy), np.bincount(candidates.flow, minlength=len(flows))
    outcome = _outcome_if_all_fits(candidates, counts, own, room, scopes, price_ns, now_ms=now_ms)
    if outcome is not None:
        taken = taken_by(scopes, outcome.served.T[:resources], len(policy.shared))
        return _settled(
            outcome, flows, limits, taken, shared.lent(), policy, floors=DebtFloors.none(), contest=None,
            rooms=(own, room),
        )  # fmt: skip
    layout = Layout.of(candidates, counts)
    prefixes = own.prefixes(layout, price_ns)
    passing = prefixes[-1]
    is_observing = limits.on_excess == OnExcess.OBSERVE
    released = counts
    if candidates.holds(now_ms):
        released = layout.segments.first(candidates.is_held(now_ms)[layout.segments.order])
    eligible = np.minimum(released, np.where(is_observing, counts, passing))
    is_short = is_short_of(scopes, layout.cost_of_first(eligible, price_ns), room)
    count, stops, levels, contest = eligible, Stops.none(len(flows)), [], None
    if is_short.any():  # otherwise no order matters
        short = scopes_where(is_short, scopes)
        competes = (eligible > 0) | flows.has_lead
        if corrected is not None:
            competes[corrected.flow] = True
        at = np.flatnonzero(by_row(np.logical_or, short >= 0) & competes)
        # A scope that only observes changes nothing: it counts alone, for its own marks.
        holding = enforcing_scopes(short, policy)
        short = np.where(by_row(np.logical_or, holding >= 0)[:, None], holding, short)
        contenders = Contenders.of(
            at, layout, flows, limits, matches, nodes, policy,
            short=short, room=room.before, price_ns=price_ns, lapsed=lapsed, corrected=corrected,
            tie=layout.ties(at, candidates, flows.names, now_ms=now_ms),
        )  # fmt: skip
        if new_weights:
            contenders = contenders.under_new_weights(eligible[contenders.flow], new_weights)
        contest = Contest(contenders, layout, room, is_short, policy).decided(eligible, matches, shared)
        count = contest.count(eligible)
    kept = shared.lent() if contest is None or contest.guaranteed_micro is None else replace(
        shared, guaranteed_micro=contest.guaranteed_micro
    )  # fmt: skip
    served = layout.cost_of_first(count, price_ns)
    taken = taken_by(scopes, served, len(policy.shared))
    if contest is not None:
        enforcing = enforcing_scopes(matches.shared_scope, policy)
        stops = contest.stops(np.flatnonzero(count < eligible), enforcing, room.less(taken))
        levels = contest.marked_from(count, scopes_where(room.lacks(taken), scopes))
    if is_observing.any():
        own_rank = np.where(is_observing, np.minimum(passing, count), count)
        levels.insert(0, MarkStarts(Level.NAMESPACE, np.full(len(flows), -1), own_rank, prefixes))
    is_own = ~is_observing & (count == passing) & (count < released)
    scarce = sum(prefix > passing for prefix in prefixes[:-1])  # prefixes descend
    stops = Stops(
        np.where(is_own, Level.NAMESPACE, stops.level), np.where(is_own, scarce, stops.dimension), stops.scope
    )
    outcome = Outcome(
        layout.beyond(count),
        Marks.narrowest(layout, count, levels),
        stops,
        by_dimension(layout.cost_of_first(counts, price_ns)),
        by_dimension(served),
        layout.behind(count),
        levels,
    )
    floors = DebtFloors.none() if not levels else DebtFloors.of(
        layout, count, levels, flows.balance_micro, limits, shared.balance_micro,
        under_share(policy, shared.share_micro_per_ms).shared, price_ns,
    )  # fmt: skip
    return _settled(
        outcome, flows, limits, taken, kept, policy, floors=floors, contest=contest, rooms=(own, room)
    )  # fmt: skip


def _outcome_if_all_fits(
    candidates: Candidates,
    counts: Int64s,
    own: Room,
    room: Room,
    scope: Int64s,
    price_ns: Int64s | None,
    *,
    now_ms: int,
) -> Outcome | None:
    """Return the outcome of a batch in which no balance runs short, `None` if one does.

    So all rows leave, but those from each flow's first row on that a release time holds.

    Parameters
    ----------
    counts
        The number of rows of each flow.
    scope
        Shape (flows, 3): the limited shared scopes of each flow, -1 where there is none.
    """
    behind, messages, flow = None, counts, candidates.flow
    if candidates.holds(now_ms):
        first_held = candidates.first_of(len(counts), np.flatnonzero(candidates.is_held(now_ms)))
        is_free = np.arange(len(candidates)) < first_held[flow]
        behind = np.flatnonzero(~is_free)
        messages = counts - np.bincount(flow[behind], minlength=len(counts))

    def is_short(costs: Int64s) -> bool:
        return bool(own.lacks(costs).any() or is_short_of(scope, costs, room).any())

    nothing = [np.zeros_like(messages)] * len(candidates.amounts)
    if is_short(cost(messages, nothing, price_ns)):
        return None
    wants = cost(counts, [sums(flow, each, len(counts)) for each in candidates.amounts], price_ns)
    served = wants if behind is None else wants - candidates.tally(behind, len(counts), price_ns)
    if is_short(served):
        return None
    wanted = by_dimension(wants)
    if behind is None:
        return Outcome.of_all(wanted)
    return replace(Outcome.of_all(wanted), behind=behind, served=by_dimension(served))


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """The contest of a batch's flows for the shared scopes that run short."""

    contenders: Contenders
    layout: Layout
    room: Room
    is_short: Bools
    """Whether each shared scope has less room than its flows want, those included that only observe."""

    policy: CompiledPolicy
    turns: Turns | None = None
    """Who goes; `None` if only scopes that observe run short."""

    guaranteed_micro: Int64s | None = None
    """The balances of the guarantees afterwards; `None` if none had a claim."""

    def decided(self, eligible: Int64s, matches: Matches, shared: SharedBuckets) -> Contest:
        """Return the contest with who goes of the first `eligible` rows of each flow."""
        is_enforcing = self.is_short & (self.policy.shared.on_excess != OnExcess.OBSERVE)
        if not is_enforcing.any():
            return self
        room, of_leaf = self.room.before_rows(is_enforcing), eligible[self.contenders.flow]
        guarantees, balance_micro = self.policy.guarantees, shared.guaranteed_micro
        if guarantees is not None and balance_micro is not None:
            share = shared.share_micro_per_ms
            earned = under_share(self.policy, share).shared.rate_micro_per_ms
            guaranteed = guaranteed_rates(self.policy, share, shared.parts_micro_per_ms)
            above = Above(is_enforcing, room, earned, guaranteed)
            claims = Claims.of(guarantees, self.contenders.flow, matches, balance_micro, above)
            if claims.are_any:
                turns, taken = decide_with_guarantees(self.contenders, of_leaf, room, claims)
                left = claims.left(balance_micro, taken, turns.count < of_leaf)
                return replace(self, turns=turns, guaranteed_micro=left)
        return replace(self, turns=self.contenders.decide(of_leaf, room))

    def count(self, eligible: Int64s) -> Int64s:
        """Return how many of the first `eligible` rows of each flow go."""
        if self.turns is None:
            return eligible
        count = eligible.copy()
        count[self.contenders.flow] = self.turns.count
        return count

    def stops(self, stopped: Int64s, scope: Int64s, left: Room) -> Stops:
        """Return what stopped the flows that were: the narrowest of its scopes without room, messages first, time last.

        Parameters
        ----------
        scope
            Shape (flows, 3): the scopes that can hold each flow back.
        left
            The room of the shared scopes after the batch.
        """
        stops = Stops.none(len(scope))
        if not len(stopped):
            return stops
        scope = scope.take(stopped, axis=0)
        level = np.append(left.is_spent, False)[scope].argmax(axis=1)
        stopping = scope[np.arange(len(stopped)), level]
        stops.level[stopped] = np.array(SHARED_LEVELS)[level]
        stops.dimension[stopped] = (left.before[:, stopping] < 0).argmax(axis=0)
        stops.scope[stopped] = stopping
        return stops

    def given_out(self, flow: Int64s, tokens: Int64s, stops: Stops) -> Iterator[Int64s]:
        """Yield what the tenant, the group and the job of some flows give out while each of these gets its `tokens`.

        A scope that is wider than the one that stopped a flow gives out that one's tokens at least.

        Parameters
        ----------
        tokens
            Shape (resources, n).
        stops
            What stopped all flows; those that a shared scope stopped divide its tokens by weight.
        """
        at, tree = self.contenders.flow, self.contenders.tree
        node, takes_part = np.zeros(len(stops.scope), dtype=np.int64), stops.scope[at] >= 0
        node[at] = np.arange(len(at))
        for narrower, level in zip((Level.NAMESPACE, *SHARED_LEVELS), tree.levels, strict=False):
            together, weight = level.totals(np.where(takes_part, level.weight, 0)), level.weight[node]
            node, takes_part = level.parent[node], together > 0
            to_give = [(np.where(stops.level > narrower, together[node], weight), weight)]
            if narrower == Level.NAMESPACE:  # a tenant divides its tokens between its nodes, too
                tenant = self.contenders.scopes[0] + 1
                nodes = np.bincount(tenant[takes_part], minlength=int(tenant.max(initial=0)) + 1)[tenant[node]]
                to_give.append((np.where(stops.level == Level.TENANT, nodes, 1), np.ones_like(nodes)))
            for to, of in to_give:
                if (to != of).any():
                    tokens = _times(tokens, to[flow], of[flow])
            yield tokens

    def marked_from(self, count: Int64s, scope: Int64s) -> list[MarkStarts]:
        """Return, for every level that marks rows, the first of each flow's first `count` rows that it marks.

        Parameters
        ----------
        scope
            Shape (flows, 3): the shared scopes of each flow that have no room for all of these rows, -1 for the others.
        """
        is_observing = self.is_short & (self.policy.shared.on_excess == OnExcess.OBSERVE)
        scope, levels = scopes_where(is_observing, scope), list[MarkStarts]()
        if scope.max(initial=-1) < 0:
            return []
        # A row behind the end by messages alone is short of messages, whatever else it is short of.
        rooms = [self.room.before_rows(is_observing, d + 1) for d in range(len(self.room.before))]
        at = self.contenders.flow
        for column, level in enumerate(SHARED_LEVELS):
            ranks = [count.copy() for _ in rooms]
            if scope[:, column].max(initial=-1) >= 0:
                for rank, room in zip(ranks, rooms, strict=True):
                    rank[at] = self.contenders.let_pass(count[at], room, column)
            levels.append(MarkStarts(level, scope[:, column], ranks[-1], ranks))
        return levels


def _times(tokens: Int64s, to: Int64s, of: Int64s) -> Int64s:
    """Return ``tokens * to / of``, rounded down; at most `MOST_GIVEN_OUT`.

    Examples
    --------
    >>> tokens, to, of = np.array([7, 1 << 60]), np.array([10, 1001]), np.array([4, 1])
    >>> _times(tokens, to, of).tolist() == [17, MOST_GIVEN_OUT]
    True
    """
    whole, rest = np.divmod(tokens, of)
    given = np.minimum(whole, MOST_GIVEN_OUT // to) * to + rest * to // of
    return np.where(whole > MOST_GIVEN_OUT // to, MOST_GIVEN_OUT, np.minimum(given, MOST_GIVEN_OUT))


def _settled(  # noqa: PLR0913 - all that a batch debits
    outcome: Outcome,
    flows: Flows,
    limits: Limits,
    taken: Int64s,
    shared: SharedBuckets,
    policy: CompiledPolicy,
    *,
    floors: DebtFloors,
    contest: Contest | None,
    rooms: tuple[Room, Room],
) -> FlowPlan:
    """Return the plan of a batch, with the admitted rows debited: those of all scopes together are `taken`."""
    is_limited, balance_micro = limits.is_limited, flows.balance_micro
    if is_limited.any():
        left = debit(balance_micro, in_micro(outcome.served), floors.own)
        balance_micro = np.where(is_limited, left, balance_micro)
    budgets, spent = Budgets.of(limits), None
    if budgets is not None and flows.spent is not None:
        spent = flows.spent.charged(outcome.served, budgets)
    debited = shared.debited(by_dimension(taken), policy, floors.shared)
    return FlowPlan(outcome, balance_micro, debited, contest, spent, rooms)
