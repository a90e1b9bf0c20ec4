"""The stored bytes of compiled policies: the record that `CompiledPolicy` is."""

from __future__ import annotations

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.record import pack, unpack


def pack_policy(policy: CompiledPolicy) -> bytes:
    """Return a compiled policy as a block."""
    return pack(policy)


def unpack_policy(block: bytes, what: str) -> CompiledPolicy:
    """Return the policy that `pack_policy` stored."""
    return unpack(CompiledPolicy, block, what)
