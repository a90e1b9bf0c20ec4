"""The control row that a key gets in the first batch after the number of shards changed."""

from __future__ import annotations

import pandas as pd
import pytest

from spark_throttle.checkpoint.handover import state_digest
from spark_throttle.errors import CheckpointMismatchError
from spark_throttle.spark.rows.frames import FrameKind
from spark_throttle.spark.shard.handed_over import HandedOver
from spark_throttle.spark.shard.operator import ShardOperator
from tests.spark.shard.shards import group_state

FORMER = b"the state of a former shard"


def piece(row: HandedOver) -> pd.DataFrame:
    return pd.DataFrame({"shard": [7], "kind": [int(FrameKind.HANDOVER)], "frame": [row.pack()]})


@pytest.mark.parametrize("state", [None, b"the state of a new shard"])
def test_row_comes_back_as_it_was(state: bytes | None) -> None:
    row = HandedOver(state_digest(FORMER), state)
    assert HandedOver.of(row.pack(), "a row") == row


def test_key_of_a_former_shard_alone_forgets_its_state() -> None:
    state = group_state((1, FORMER), 1_000)
    operator = ShardOperator((3, 4), is_explained=False)
    assert list(operator((7,), [piece(HandedOver(state_digest(FORMER), None))], state)) == []
    assert not state.exists


@pytest.mark.parametrize("stored", [None, (1, b"another state")])
def test_key_with_another_state_is_refused(stored: tuple[int, bytes] | None) -> None:
    state = group_state(stored, 1_000)
    operator = ShardOperator((3, 4), is_explained=False)
    with pytest.raises(CheckpointMismatchError, match="the state of the key 7 is not the one that was handed over"):
        list(operator((7,), [piece(HandedOver(state_digest(FORMER), None))], state))
    assert state.exists == (stored is not None)


def test_key_of_a_new_shard_has_no_state_before() -> None:
    row = HandedOver(state_digest(None), b"a state")
    row.check(None, 7)
    with pytest.raises(CheckpointMismatchError):
        row.check(FORMER, 7)
