"""The pacer's rule, written down plainly: fractions, lists, and a walk through all who wait after every event.

Nothing here is taken from the implementation: no heap, no due times, no carried token-nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from spark_throttle.pace import Limit


@dataclass
class SlowLevel:
    limit: Limit
    balance: int
    now_ns: int
    part: Fraction = Fraction(0)
    """Of a token that is not whole yet."""
    is_throttling: bool = False
    charged: list[tuple[int, int]] = field(default_factory=list)
    """Every charge: when, and how much."""

    def advance(self, now_ns: int) -> None:
        if now_ns > self.now_ns:
            self.part += Fraction(self.limit.tokens * (now_ns - self.now_ns), self.limit.period_ns)
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

    def charge(self, tokens: int) -> None:
        self.charged.append((self.now_ns, tokens))
        self.balance -= tokens
        self.judge()

    def refund(self, at_ns: int, tokens: int) -> None:
        self.charged.remove((at_ns, tokens))
        self.balance = min(self.balance + tokens, max(self.balance, self.limit.burst_tokens))
        self.judge()

    def set_limit(self, limit: Limit) -> None:
        self.limit = limit
        self.balance = min(self.balance, limit.burst_tokens)
        self.judge()


@dataclass
class SlowProducer:
    levels: list[SlowLevel]
    waiting: list[tuple[int, list[int]]] = field(default_factory=list)
    """Its calls that wait: their numbers, and the tokens of their items."""

    @property
    def is_held(self) -> bool:
        return any(level.is_throttling for level in self.levels)


@dataclass
class SlowPacer:
    levels: list[SlowLevel]
    producers: list[SlowProducer]
    queue: list[SlowProducer] = field(default_factory=list)
    """Who waits, the longest first."""
    turns: list[tuple[int, int]] = field(default_factory=list)
    """Every turn of a call that waited: its number, and how many items passed."""
    taken: dict[int, tuple[SlowProducer, int, int]] = field(default_factory=dict)
    """By call: its producer, and when it was charged how much."""

    def advance(self, now_ns: int) -> None:
        for level in self.levels:
            level.advance(now_ns)
        self.walk()

    def call(self, producer: SlowProducer, number: int, items: list[int], *, waits: bool) -> int:
        if producer not in self.queue and not producer.is_held:
            return self.let_through(producer, number, items)
        if waits:
            producer.waiting.append((number, items))
            if producer not in self.queue:
                self.queue.append(producer)
        return 0

    def withdraw(self, number: int) -> None:
        for producer in self.queue:
            kept = [call for call in producer.waiting if call[0] != number]
            if kept != producer.waiting:
                producer.waiting = kept
                if not kept:
                    self.queue.remove(producer)
                return
        if number in self.taken:
            producer, at_ns, tokens = self.taken.pop(number)
            for level in producer.levels:
                level.refund(at_ns, tokens)
            self.walk()

    def walk(self) -> None:
        while (free := next((each for each in self.queue if not each.is_held), None)) is not None:
            self.queue.remove(free)
            number, items = free.waiting.pop(0)
            self.turns.append((number, self.let_through(free, number, items)))
            if free.waiting:
                self.queue.append(free)

    def let_through(self, producer: SlowProducer, number: int, items: list[int]) -> int:
        room = min(level.balance for level in producer.levels)
        passed, tokens = 1, items[0]
        while passed < len(items) and tokens < room:
            tokens += items[passed]
            passed += 1
        for level in producer.levels:
            level.charge(tokens)
        self.taken[number] = (producer, producer.levels[0].now_ns, tokens)
        return passed
