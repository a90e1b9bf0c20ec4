"""A model is explored breadth first: all states within its bounds, and the shortest way to one that breaks a promise.

A model is a state that does not change, *actions* that make another one of it, and *invariants* that every state must
keep. An action is a method: it takes a state and arguments, and returns the next state, or `None` where it is not
allowed. `moves` lists the arguments to try, within bounds; a recorded history brings its own (`follow`). So one text
is explored, and says what the code may do.

A *guard* of the product is asked by name (`Model.needs`). A model that is made `without` it goes on as if the guard
were not there. So a fault is a name, and a test shows which invariant sees it.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

StateT = TypeVar("StateT", bound=Hashable)


class Fault(NamedTuple):
    """What is wrong without a guard."""

    invariant: str
    """The name of the invariant that sees it."""

    says: str
    found: str = ""
    """The commit, or the mend of `tests.life.mends`, by which the project got rid of it; empty for a mutant."""

    case: str = ""
    """The exploration that sees it."""


class Step(NamedTuple):
    """An action and its arguments."""

    action: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.action}({', '.join(map(str, self.arguments))})"


class NotAllowedError(AssertionError):
    """A step that the model does not allow."""


class Model(Generic[StateT]):
    """The actions, the invariants and the bounds of a model.

    Parameters
    ----------
    without
        The guards that this model lacks.
    """

    actions: tuple[str, ...] = ()
    """Names of the methods that are actions."""

    invariants: Mapping[str, Callable[[Any, Any], bool]] = {}
    """By name: whether a state keeps a promise."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.without = frozenset(without)

    def needs(self, guard: str, holds: bool) -> bool:
        """Return whether a guard lets an action through."""
        return holds or guard in self.without

    def moves(self, state: StateT) -> Iterator[Step]:
        """Return the steps to try from a state, within the bounds of the model."""
        raise NotImplementedError

    def key(self, state: StateT) -> Hashable:
        """Return what a state is known by: equal for states that differ in names alone."""
        return state

    def after(self, state: StateT, step: Step) -> StateT | None:
        """Return the state after a step; `None` where the step is not allowed."""
        found: StateT | None = getattr(self, step.action)(state, *step.arguments)
        return found

    def broken(self, state: StateT) -> str | None:
        """Return the name of an invariant that a state breaks; `None` if it keeps all."""
        return next((name for name, holds in self.invariants.items() if not holds(self, state)), None)


@dataclass(slots=True)
class Explored:
    """What an exploration found."""

    states: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    """How often each action was allowed."""

    broken: str | None = None
    """The invariant that was broken first."""

    way: list[Step] = field(default_factory=list)
    """The shortest way to the state that breaks it."""

    is_whole: bool = True
    """Whether no state was left out."""

    def __str__(self) -> str:
        if self.broken is None:
            return f"{self.states} states, {self.steps.total()} steps, {'all' if self.is_whole else 'not all'} of them"
        steps = "".join(f"\n  {number}. {step}" for number, step in enumerate(self.way, 1))
        return f"{self.broken} is broken after {len(self.way)} steps:{steps}"


def explore(model: Model[StateT], start: StateT, most_states: int = 10_000_000) -> Explored:
    """Explore all states that a model can come to; stop at the first that breaks an invariant."""
    explored = Explored()
    came_by: dict[Hashable, tuple[Hashable, Step] | None] = {model.key(start): None}
    front: list[tuple[Hashable, StateT]] = [(model.key(start), start)]
    gc.disable()  # states hold no cycles, and the collector would look at all of them again and again
    try:
        return _explore(model, front, came_by, explored, most_states)
    finally:
        gc.enable()


def _explore(
    model: Model[StateT],
    front: list[tuple[Hashable, StateT]],
    came_by: dict[Hashable, tuple[Hashable, Step] | None],
    explored: Explored,
    most_states: int,
) -> Explored:
    while front:
        ahead: list[tuple[Hashable, StateT]] = []
        for key, state in front:
            explored.states += 1
            explored.broken = model.broken(state)
            if explored.broken is not None:
                explored.way = _way(came_by, key)
                return explored
            for step in model.moves(state):
                after = model.after(state, step)
                if after is None:
                    continue
                explored.steps[step.action] += 1
                new = model.key(after)
                if new not in came_by:
                    if len(came_by) >= most_states:
                        explored.is_whole = False
                        continue
                    came_by[new] = key, step
                    ahead.append((new, after))
        front = ahead
    return explored


def _way(came_by: Mapping[Hashable, tuple[Hashable, Step] | None], key: Hashable) -> list[Step]:
    way: list[Step] = []
    while (before := came_by[key]) is not None:
        key, step = before
        way.append(step)
    return way[::-1]


def follow(model: Model[StateT], state: StateT, steps: Iterable[Step]) -> StateT:
    """Return the state after some steps.

    Raises
    ------
    NotAllowedError
        If a step is not allowed, or comes to a state that breaks an invariant.
    """
    for number, step in enumerate(steps, 1):
        after = model.after(state, step)
        if after is None:
            raise NotAllowedError(f"step {number} is not allowed: {step}, in {state}")
        broken = model.broken(after)
        if broken is not None:
            raise NotAllowedError(f"step {number} breaks {broken}: {step}, in {state}")
        state = after
    return state
