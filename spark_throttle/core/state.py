"""The state of the decider: what it remembers between two batches, and the record of it in Spark's state store.

All arrays of `Flows` run over the same namespaces, and all arrays of a `Queue` over the same rows. A
namespace with nothing to remember (full buckets, no lead in its fair queue, nothing waiting) is not in the
table at all, and returns exactly as it left. So an idle namespace costs nothing.

The record (`StoredState`) is stored compressed. It lists the files that hold the places of waiting rows, so the list
goes back with the state when a checkpoint is put back. A file of which no row waits stays until no checkpoint can be
put back to a batch in which one waited. Its age is counted in epochs: each epoch is at least one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.limits.budgets import BudgetClaims, CalendarWindows, Spent
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.measured_time import MeanPrices, MeasuredTime
from spark_throttle.core.quota import AMOUNTS, Bools, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.reservations import LateCosts, Reservations, no_identities
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.undelivered import Undelivered

_NO_COLUMNS: Final = ("names", "spent")
"""The fields of `Flows` that are no arrays of numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """The namespaces that the decider remembers."""

    names: pa.StringArray

    balance_micro: Int64s
    """Shape (n, 4), by `Dimension`: the tokens held, negative in debt; 0 where unlimited."""

    cut_micro: Int64s
    """Shape (n, 4): what changes to a smaller burst took from the bucket, and what it has not yet earned again beyond
    that burst (`policy_change`). A namespace is remembered until it has."""

    lead_work: Int64s
    """Shape (n, 2): the lead in the fair tree (`fair.tree`), and that among the nodes of the same tenant, which only a
    namespace that is a child of its group can have."""

    held: Int64s
    """Shape (n, 2): how many rows of this namespace the tenant's node holds, and the child of the job, 0 or 1; the lead
    is as if they did not."""

    window_second: Int64s
    """Shape (n,): the wall-clock second that `window_units` counts (`pegasus`)."""

    window_units: Int64s
    """Shape (n, 2): the messages and bytes that passed in `window_second`."""

    price_ns: Int64s
    """Shape (n,): the processing time as which a message counts until it is measured; 0 while nothing is known."""

    priced_ms: Int64s
    """Shape (n,): the paying time of the last batch that told the price; 0 if none did."""

    spent: Spent | None = None
    """What was used of the namespaces' own budgets; `None` if no namespace has any, or before the first batch."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_lead(self) -> Bools:
        """Whether the fair tree remembers anything of each namespace, shape (n,)."""
        return by_row(np.logical_or, self.lead_work != 0) | by_row(np.logical_or, self.held != 0)

    def take(self, at: Int64s) -> Flows:
        """Return the namespaces at `at`, in that order."""
        return Flows(
            self.names.take(pa.array(at)),
            self.balance_micro.take(at, axis=0),
            self.cut_micro.take(at, axis=0),
            self.lead_work.take(at, axis=0),
            self.held.take(at, axis=0),
            self.window_second[at],
            self.window_units.take(at, axis=0),
            self.price_ns[at],
            self.priced_ms[at],
            None if self.spent is None else self.spent.take(at),
        )

    def with_new(self, names: pa.StringArray) -> Flows:
        """Return the namespaces, and behind them others of which nothing is known: 0 in each column."""
        if not len(names):
            return self

        def longer(column: Int64s) -> Int64s:
            found = np.zeros((len(self) + len(names), *column.shape[1:]), dtype=np.int64)
            found[: len(self)] = column
            return found

        columns = {each.name: longer(getattr(self, each.name)) for each in fields(self) if each.name not in _NO_COLUMNS}
        spent = None if self.spent is None else self.spent.with_new(len(names))
        return replace(self, names=pa.concat_arrays([self.names, names]), **columns, spent=spent)

    @classmethod
    def empty(cls) -> Flows:
        """Return an empty table of namespaces."""
        none, pairs, tokens = (np.zeros(shape, dtype=np.int64) for shape in (0, (0, 2), (0, len(Dimension))))
        return cls(pa.array([], pa.string()), tokens, tokens, pairs, pairs, none, pairs, none, none)


@dataclass(frozen=True, slots=True, eq=False)
class NodeLeads:
    """The leads of the inner nodes of the fair tree that have any."""

    group: pa.StringArray
    """The resource group; null for a tenant that is a child of the job."""

    tenant: pa.StringArray
    """The tenant; null for the group itself."""

    lead_work: Int64s
    """Shape (n, 2): the lead among the node's siblings, and that of a tenant's node among the nodes of its tenant."""

    def __len__(self) -> int:
        return len(self.group)

    def take(self, at: Int64s) -> NodeLeads:
        """Return the nodes at `at`, in that order."""
        position = pa.array(at)
        return NodeLeads(self.group.take(position), self.tenant.take(position), self.lead_work.take(at, axis=0))

    @classmethod
    def none(cls) -> NodeLeads:
        """Return no leads."""
        names = pa.array([], pa.string())
        return cls(names, names, np.zeros((0, 2), dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """The rows that wait, oldest first within every namespace."""

    flow: Int64s
    """The position of the row's namespace in `Flows`."""

    size_bytes: Int64s
    arrival_ms: Int64s
    """The paying time of the batch in which the row arrived."""

    release_ms: Int64s
    """The paying time before which the row may not leave; 0 where only quotas hold it back."""

    units: Int64s | None = None
    """The row's units; `None` if no row has any."""

    identity: Int64s | None = None
    """Shape (n, 2): by what the row is reserved once it leaves, zeros where it is not; `None` if no row is."""

    def __len__(self) -> int:
        return len(self.flow)

    @classmethod
    def of(
        cls,
        flow: Int64s,
        amounts: Sequence[Int64s],
        arrival_ms: Int64s,
        release_ms: Int64s,
        identity: Int64s | None = None,
    ) -> Queue:
        """Return rows with some of `AMOUNTS`."""
        size_bytes, *units = amounts
        has_units = bool(units) and units[0].any()
        return cls(flow, size_bytes, arrival_ms, release_ms, units[0] if has_units else None, identity)

    def amounts(self, count: int) -> tuple[Int64s, ...]:
        """Return the first `count` of the rows' `AMOUNTS`."""
        units = np.zeros_like(self.size_bytes) if self.units is None else self.units
        return (self.size_bytes, units)[:count]

    @property
    def identities(self) -> Int64s:
        """The rows' identities."""
        return no_identities(len(self)) if self.identity is None else self.identity

    def each(self, change: Callable[[Int64s], Int64s]) -> Queue:
        """Return the queue with each of its columns changed."""
        others = (None if column is None else change(column) for column in (self.units, self.identity))
        return Queue(
            change(self.flow), change(self.size_bytes), change(self.arrival_ms), change(self.release_ms), *others
        )

    def take(self, at: Int64s) -> Queue:
        """Return the rows at `at`, in that order."""
        return self.each(lambda column: column[at])

    def with_more(self, more: Queue) -> Queue:
        """Return the queue with other rows behind it."""
        return self._merged(more, lambda own, others: np.concatenate([own, others]))

    def with_rows(self, at: Int64s, rows: Queue) -> Queue:
        """Return the queue with other rows between its own.

        Parameters
        ----------
        at
            Where each of the other rows stands afterwards.
        """
        is_own = np.ones(len(self) + len(rows), dtype=np.bool_)
        is_own[at] = False

        def merged(own: Int64s, others: Int64s) -> Int64s:
            found = np.empty((len(is_own), *own.shape[1:]), dtype=np.int64)
            found[at], found[is_own] = others, own
            return found

        return self._merged(rows, merged)

    def with_end_in(self, order: Int64s) -> Queue:
        """Return the queue with its last rows in another order, which keeps the order within every namespace.

        No decision depends on how rows of different namespaces stand in a queue.

        Parameters
        ----------
        order
            The positions of the last ``len(order)`` rows among these, each once.

        Examples
        --------
        >>> flow, nothing = np.array([5, 0, 0, 1]), np.zeros(4, dtype=np.int64)
        >>> Queue(flow, flow * 100, nothing, nothing).with_end_in(np.array([0, 2, 1])).size_bytes.tolist()
        [500, 0, 100, 0]
        """
        first = len(self) - len(order)
        return self.each(lambda column: np.concatenate([column[:first], column[first:][order]]))

    def _merged(self, rows: Queue, merge: Callable[[Int64s, Int64s], Int64s]) -> Queue:
        """Return the queue with each of its columns merged with that of other rows."""
        (_, own_units), (_, units) = self.amounts(len(AMOUNTS)), rows.amounts(len(AMOUNTS))
        return Queue(
            merge(self.flow, rows.flow), merge(self.size_bytes, rows.size_bytes),
            merge(self.arrival_ms, rows.arrival_ms), merge(self.release_ms, rows.release_ms),
            None if self.units is None and rows.units is None else merge(own_units, units),
            None if self.identity is None and rows.identity is None else merge(self.identities, rows.identities),
        )  # fmt: skip

    @classmethod
    def empty(cls) -> Queue:
        """Return an empty queue."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, nothing)


@dataclass(frozen=True, slots=True, eq=False)
class ControlRow:
    """What an epoch pins of all that decisions depend on; the decider gets it as a row of the control source."""

    epoch: int
    """The number of the epoch."""

    policy: bytes | None
    """The policy, packed; `None` if it is the one that the decider has."""

    paying: PayingTime
    """The clock reading at which the epoch was made."""

    share_micro_per_ms: Int64s | None = None
    """As in `SharedBuckets`."""

    earns_until_ms: Int64s | None = None
    """Shape (shared scopes of the policy before,): the paying time up to which each scope earns at the share that was
    in force; `NEVER_MS` where no lease bounds it. `None` if none does."""

    measured: MeasuredTime | None = None
    """What was measured of batches that were charged by an estimate; `None` without a quota on processing time."""

    undelivered: Undelivered | None = None
    """What was not delivered of the rows that left in the batch before (`left_rows`); `None` if it is not said."""

    unavailable: Int64s | None = None
    """The shared scopes whose rows are given up, because their destination is unavailable; `None` for none."""

    windows: CalendarWindows | None = None
    """The windows of budgets; `None` if the policy has none."""

    claims: BudgetClaims | None = None
    """As in `SharedBuckets`."""

    parts_micro_per_ms: Int64s | None = None
    """As in `SharedBuckets`."""

    costs: LateCosts | None = None
    """What rows that were reserved really cost, as functions told it; `None` if they told nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class DeciderState:
    """Everything that decisions depend on, other than the batch itself and the policy."""

    advanced_to_ms: int
    """The paying time (`token_bucket`) to which the namespaces' balances are refilled; 0 before the first batch."""

    flows: Flows
    queue: Queue
    shared: SharedBuckets
    epoch: int = 0
    """The number of the epoch in force; 0 before the first."""

    nodes: NodeLeads = field(default_factory=NodeLeads.none)
    left: Queue = field(default_factory=Queue.empty)
    """The rows that left in the last batch and may come back (`left_rows`), those of a namespace as they left."""

    unavailable: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """As in `ControlRow`."""

    prices: MeanPrices = field(default_factory=MeanPrices)

    new_weights: int = 0
    """The levels of the fair tree, a bit for each, whose nodes got other weights or siblings by a policy under which no
    batch was decided yet."""

    paid_ms: int = 0
    """How much of the time since the last batch was paid when the policy changed."""

    windows: CalendarWindows | None = None
    """As in `ControlRow`."""

    reservations: Reservations = field(default_factory=Reservations.none)
    """The rows that left for an estimate, and whose costs are not known yet."""

    corrected: CorrectedRows | None = None
    """What the next batch corrects in the fair order; `None` for nothing, and after each batch."""

    @classmethod
    def initial(
        cls, policy: CompiledPolicy, share_micro_per_ms: Int64s | None = None, *, now_ms: int = 0
    ) -> DeciderState:
        """Return the state before the first batch: every shared bucket is full."""
        return cls(0, Flows.empty(), Queue.empty(), SharedBuckets.full(policy, share_micro_per_ms, now_ms=now_ms))


DELETED_FILES: Final = 20
"""Most files that a batch deletes: on an object store each is a request, for which the batch waits. As a batch writes
at most one file, no more are left in the long run."""


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The files outside the state that hold payload of waiting rows, or held some not long ago."""

    written: int = 0
    """Number of files that were written; the next file has this number."""

    waiting: tuple[str, ...] = ()
    """The names of the files of which rows wait."""

    left: tuple[tuple[str, int], ...] = ()
    """The names of the files of which no row waits any more, and the epoch in which the last one left."""

    deletable: tuple[str, ...] = ()
    """The names of files that no checkpoint can need, and that the batch deletes."""

    def after(self, waiting: tuple[str, ...], written: int, epoch: int, kept_epochs: int) -> QueueFiles:
        """Return the files after a batch.

        Parameters
        ----------
        waiting
            The files of which rows wait after the batch.
        epoch
            The epoch of the batch.
        kept_epochs
            Epochs for which a file is kept after its last row has left.

        Examples
        --------
        >>> files = QueueFiles(2, ("a", "b")).after(("b",), 2, epoch=7, kept_epochs=3)
        >>> files.left, files.deletable
        ((('a', 7),), ())
        >>> files.after(("b",), 2, epoch=10, kept_epochs=3).deletable
        ('a',)
        """
        needed = set(waiting)
        gone = [(name, epoch) for name in self.waiting if name not in needed]
        left = (*self.left, *gone)
        deletable = [name for name, since in left if since <= epoch - kept_epochs][:DELETED_FILES]
        kept = tuple(each for each in left if each[0] not in deletable)
        return QueueFiles(written, waiting, kept, tuple(deletable))


NO_FILES: Final = QueueFiles()


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """All that Spark's state store keeps: the input of decisions, and the payload of waiting rows."""

    state: DeciderState
    policy: bytes
    """The policy in force, packed; stored so that a batch without an epoch can be decided."""

    frames: list[bytes]
    """The payloads of the rows that wait or may come back (`spark.rows.frames`), or their places in files; of a
    namespace, what left stands before what waits."""

    frame_of_row: Int64s
    """For every row, the position in `frames` of the frame that holds it."""

    row_in_frame: Int64s
    """For every row, its position in that frame."""

    paying: PayingTime
    """The clock reading pinned by the last epoch."""

    files: QueueFiles = NO_FILES
    """The files that hold the payloads which are not in `frames` themselves."""

    left_at: Int64s | None = None
    """The position, among all rows in `frames`, of each row of `state.left`; `None` for none."""

    @property
    def left_positions(self) -> Int64s:
        """`left_at` as an array."""
        return np.zeros(0, dtype=np.int64) if self.left_at is None else self.left_at
