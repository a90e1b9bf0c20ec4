"""The pacer's rule, written down plainly: fractions, lists, and a walk through all who wait after every event.

Nothing here is taken from the implementation: no heap, no due times, no carried token-nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor

from spark_throttle.pace import Limit

SECOND_NS = 1_000_000_000


@dataclass(eq=False)
class Charge:
    at_ns: int
    tokens: int


@dataclass(eq=False)
class SlowLevel:
    limit: Limit
    balance: int
    now_ns: int
    part: Fraction = Fraction(0)
    """Of a token that is not whole yet."""
    is_throttling: bool = False
    kept_by: SlowProducer | None = None
    """Who has its turn already, while other levels hold it."""
    charges: list[Charge] = field(default_factory=list)
    earned: list[tuple[int, Fraction]] = field(default_factory=list)
    """By step of time: when it ended, and what the rate made of it."""

    def advance(self, now_ns: int) -> None:
        if now_ns > self.now_ns:
            made = Fraction(self.limit.tokens * (now_ns - self.now_ns), self.limit.period_ns)
            self.earned.append((now_ns, made))
            self.part += made
            self.now_ns = now_ns
        whole = floor(self.part)
        self.part -= whole
        if whole:
            self.balance = min(self.balance + whole, self.limit.burst_tokens)
        self.judge()

    def judge(self) -> None:
        if self.balance <= 0:
            self.is_throttling = True
        elif self.balance >= self.limit.target_tokens:
            self.is_throttling = False

    def charge(self, tokens: int) -> Charge:
        self.charges.append(Charge(self.now_ns, tokens))
        self.balance -= tokens
        self.judge()
        return self.charges[-1]

    def refund(self, charge: Charge) -> None:
        self.charges.remove(charge)
        self.balance = min(self.balance + charge.tokens, max(self.balance, self.limit.burst_tokens))
        self.judge()

    def set_limit(self, limit: Limit) -> None:
        self.limit = limit
        self.balance = min(self.balance, limit.burst_tokens)
        self.judge()

    def frees_within_a_second(self) -> bool:
        later = replace(self, earned=[])
        later.advance(self.now_ns + SECOND_NS)
        return not later.is_throttling


@dataclass(eq=False)
class SlowProducer:
    levels: list[SlowLevel]
    waiting: list[tuple[int, list[int]]] = field(default_factory=list)
    """Its calls that wait: their numbers, and the tokens of their items."""
    stands_with: SlowLevel | None = None
    kept: list[tuple[SlowLevel, Charge]] = field(default_factory=list)
    """What its oldest call was charged in advance."""

    def holding(self) -> list[SlowLevel]:
        return [level for level in self.levels if level.is_throttling and level.kept_by is not self]


@dataclass(eq=False)
class SlowPacer:
    levels: list[SlowLevel]
    producers: list[SlowProducer]
    queue: list[SlowProducer] = field(default_factory=list)
    """Who waits, the longest first."""
    turns: list[tuple[int, int]] = field(default_factory=list)
    """Every turn of a call that waited: its number, and how many items passed."""
    gone: dict[int, list[tuple[SlowLevel, Charge]]] = field(default_factory=dict)
    """What each call that went was charged."""

    def advance(self, now_ns: int) -> None:
        for level in self.levels:
            level.advance(now_ns)
        self.walk()

    def call(self, producer: SlowProducer, number: int, items: list[int], *, waits: bool) -> int:
        if producer not in self.queue and not producer.holding():
            return self.let_through(producer, number, items)
        if waits:
            producer.waiting.append((number, items))
            if producer not in self.queue:
                self.queue.append(producer)
                producer.stands_with = producer.holding()[0]
        return 0

    def withdraw(self, number: int) -> None:
        for producer in self.queue:
            numbers = [each for each, _ in producer.waiting]
            if number in numbers:
                if number == numbers[0]:
                    self.give_back(producer.kept)
                    self.forget_kept(producer)
                del producer.waiting[numbers.index(number)]
                if not producer.waiting:
                    self.queue.remove(producer)
                break
        else:
            self.give_back(self.gone.pop(number, []))
        self.walk()

    def walk(self) -> None:
        """Look at the oldest place whose level throttles no longer, until there is none."""
        while (found := self.to_look_at()) is not None:
            producer, level = found
            holding = producer.holding()
            if holding:
                if level.kept_by is None and all(each.frees_within_a_second() for each in holding):
                    level.kept_by = producer
                    producer.kept.append((level, level.charge(producer.waiting[0][1][0])))
                producer.stands_with = holding[0]
                continue
            self.queue.remove(producer)
            number, items = producer.waiting.pop(0)
            self.turns.append((number, self.let_through(producer, number, items)))
            if producer.waiting:
                self.queue.append(producer)
                producer.stands_with = next(iter(producer.holding()), level)

    def to_look_at(self) -> tuple[SlowProducer, SlowLevel] | None:
        for producer in self.queue:
            if (level := producer.stands_with) is not None and not level.is_throttling:
                return producer, level
        return None

    def let_through(self, producer: SlowProducer, number: int, items: list[int]) -> int:
        charged = [level for level in producer.levels if level.kept_by is not producer]
        room = min((level.balance for level in charged), default=0)
        passed, tokens = 1, items[0]
        while passed < len(items) and tokens < room and not producer.kept:
            tokens += items[passed]
            passed += 1
        self.gone[number] = [*producer.kept, *((level, level.charge(tokens)) for level in charged)]
        self.forget_kept(producer)
        return passed

    def forget_kept(self, producer: SlowProducer) -> None:
        for level, _ in producer.kept:
            level.kept_by = None
        producer.kept = []

    def give_back(self, charges: list[tuple[SlowLevel, Charge]]) -> None:
        for level, charge in charges:
            level.refund(charge)
