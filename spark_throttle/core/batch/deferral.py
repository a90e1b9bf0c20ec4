"""Which rows wait for their verdict, although the scope that stopped them rejects what exceeds its quota.

A shard has a part of a scope's tokens, so a row that finds none need not exceed the quota:

- Other shards may have tokens left. They were lent before anybody knew where the rows of this batch would arrive. The
  next grant lends them to the shard in which the row waits.
- The job may have no share yet of a quota that jobs share. Once it has one, the rows that waited for it take its first
  tokens, and the rows that arrive behind them miss these tokens.

Such a row is neither admitted nor rejected: it waits, and the next batch decides it anew. The rows that may wait take
at most the tokens that the shard has left, and those that the epoch pins for this purpose (`Grants.deferral_micro`). As
in a bucket, the last of them may be larger than what is left. Flows take this room in turns, a row each, so that no
flow takes all of it; of one flow, the first rows wait and the others are rejected, which keeps their order.

A row that a delaying scope has once held back has its verdict: it waits until it can leave, whatever stops it later.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import Segments, by_row, running_total
from spark_throttle.core.fair.layout import Candidates, Layout
from spark_throttle.core.limits.token_bucket import available_tokens
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Int64s
from spark_throttle.core.state import Grants

_PLENTY: Final = 1 << 62
"""More messages, or bytes, than wait in any shard."""


def room_tokens(grants: Grants, policy: CompiledPolicy) -> Int64s:
    """Return the messages and bytes of rows that may wait for their verdict, shape (scopes, 2).

    Parameters
    ----------
    grants
        The grants that the batch leaves.
    """
    room = available_tokens(grants.balance_micro)
    if grants.deferral_micro is not None:
        room = room - -grants.deferral_micro // MICRO
    return np.where(grants.is_unleased(policy)[:, None] | ~policy.shared.is_limited, _PLENTY, room)


def deferred(
    rows: Candidates, scope: Int64s, room: Int64s, candidates: Candidates, names: pa.StringArray, *, now_ms: int
) -> Bools:
    """Return which rows wait for their verdict.

    Parameters
    ----------
    rows
        Rows, in the order in which they are decided.
    scope
        The shared scope that would reject each row; -1 for a row that does not wait.
    room
        Shape (scopes, 2): the messages and bytes that may wait (`room_tokens`).
    candidates
        All rows that compete. Where two flows are at the same turn, the one that waits longest goes first
        (`Layout.ties`).
    names
        The names of the flows.
    """
    waits = np.zeros(len(rows), dtype=np.bool_)
    at = np.flatnonzero((scope >= 0) & by_row(np.logical_and, room > 0)[scope])
    if not len(at):
        return waits
    of_flow = Segments.by_key(rows.flow[at], len(names))
    turn = of_flow.rank[of_flow.position]
    flows = np.flatnonzero(of_flow.counts)
    tie = np.zeros(len(names), dtype=np.int64)
    layout = Layout.of(candidates, np.bincount(candidates.flow, minlength=len(names)))
    tie[flows] = layout.ties(flows, candidates, names, now_ms=now_ms)
    at = at[np.lexsort((tie[rows.flow[at]], turn, scope[at]))]
    scope = scope[at]
    before = np.stack([np.arange(len(at)), running_total(rows.size_bytes[at])[:-1]], axis=1)
    before -= before[np.searchsorted(scope, scope)]
    waits[at[by_row(np.logical_and, before < room[scope])]] = True
    return waits
