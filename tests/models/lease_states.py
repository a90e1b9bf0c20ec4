"""What a state of the model of leases is: runs, what each knows, and the registers through which they meet."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias, TypeVar


class Mark(NamedTuple):
    """The name of a report; later ones are greater."""

    incarnation: int
    run: int
    number: int


NO_MARK: Final = Mark(-1, 0, -1)
FALLS: Final = (1 << 20) - 1
"""The bits of an incarnation that count falls to the floor; those above count starts."""
MOST_RETURNS: Final = 8


class Report(NamedTuple):
    """What a run leaves in its register."""

    member: str
    mark: Mark
    claim: int
    floor: int
    seen: tuple[tuple[str, Mark], ...]


GONE: Final = "there is no object"
DAMAGED: Final = "it cannot be read"
Content: TypeAlias = Report | str
"""What an object of the exchange holds: a report, or one of these words."""


class Register(NamedTuple):
    """An object of the exchange, as visits may find it."""

    newest: Content = GONE
    before: tuple[tuple[Content, int], ...] = ()
    """What it held before, each until when, as long as a visit may still find it."""

    @property
    def may_hold(self) -> set[Content]:
        """What a visit may find."""
        return {self.newest, *(each for each, _ in self.before)}


class Claim(NamedTuple):
    """A claim that others may go by."""

    number: int
    claim: int
    floor: int


class Peer(NamedTuple):
    """What a run knows of another member."""

    report: Report
    seen_at: int
    """When it first found this report, by its own clock."""

    since: int
    """The number of its first report that this peer can go by."""

    is_dead: bool = False
    before: tuple[tuple[int, int], ...] = ()
    """What replaced runs of the peer may use, and until when."""

    @property
    def left(self) -> int:
        """What the peer may use."""
        return self.report.floor if self.is_dead else self.report.claim


class Unreadable(NamedTuple):
    """A register that a run found and could not read."""

    member: str
    since: int
    seen_at: int
    is_dead: bool = False


class Run(NamedTuple):
    """A process of a member; all times are by its own steady clock."""

    id: int
    member: str
    place: str
    """The place of its checkpoint."""

    clock: int
    incarnation: int
    quota: int
    number: int = 0
    uses: bool = True
    """Whether the job uses the scope now."""

    is_born: bool = False
    shown_at: int | None = None
    held_until: int | None = None
    """When the lease ends; `None` while the run is fallen."""

    floor_until: int = 0
    published: tuple[tuple[int, int], ...] = ()
    """When which of its reports was made."""

    window: tuple[Claim, ...] = (Claim(0, 0, 0),)
    right: int = 0
    """What it may use while its lease lasts."""

    floor: int = 0
    """What it may use afterwards."""

    pinned: int = 0
    """What its epochs may use."""

    peers: tuple[tuple[str, Peer], ...] = ()
    unreadable: tuple[tuple[int, Unreadable], ...] = ()
    others: tuple[tuple[int, Mark], ...] = ()
    """The last report of each other run of its member."""

    passed: frozenset[int] = frozenset()
    """The runs that it went beyond."""

    yielded: tuple[tuple[int, int], ...] = ()
    """How often it yielded, by run."""

    last_yield: int = 0
    is_superseded: bool = False
    is_established: bool = False
    falls: tuple[int, ...] = ()
    """When its lease ended."""

    has_lapsed: bool = False
    """Ghost: whether its lease ended since its epoch; then it is paid for no more than it may use now."""

    overpaid: bool = False
    """Ghost: whether time was paid for which there was no lease."""

    told: Mark = NO_MARK
    """Ghost: the greatest mark of its member that a visit found named by others."""

    looked: int | None = None
    """Ghost: when its last visit began that could raise its share."""

    @property
    def mark(self) -> Mark:
        """The mark of its last report."""
        return Mark(self.incarnation, self.id, self.number)


class State(NamedTuple):
    """Runs, and the registers of these and of earlier runs."""

    now: int = 0
    runs: tuple[Run, ...] = ()
    registers: tuple[tuple[int, Register], ...] = ()
    silent_since: tuple[tuple[str, int], ...] = ()
    """Ghost: when the last run of a member died that has none now."""

    most_quota: int = 0
    """Ghost: the largest quota that a run goes by."""


def run_of(s: State, run: int) -> Run:
    """Return a run that lives."""
    return next(r for r in s.runs if r.id == run)


def put_run(s: State, run: Run) -> State:
    """Return a state with a run as it is now."""
    return s._replace(runs=tuple(run if r.id == run.id else r for r in s.runs))


KeyT = TypeVar("KeyT", int, str)
ValueT = TypeVar("ValueT")


def put(pairs: tuple[tuple[KeyT, ValueT], ...], key: KeyT, value: ValueT) -> tuple[tuple[KeyT, ValueT], ...]:
    """Return pairs in the order of their keys, with one replaced or added."""
    return tuple(sorted({**dict(pairs), key: value}.items(), key=lambda each: each[0]))
