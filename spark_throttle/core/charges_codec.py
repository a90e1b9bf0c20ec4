"""The stored bytes of charges of processing time, which have a format version of their own."""

from __future__ import annotations

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.errors import DamagedError

CHARGES_VERSION = 2
"""The newest version. Version 2 added the time that all rows of a batch used together; a block without it is of 1."""


def pack_charges(charges: TimeCharges) -> bytes:
    """Return charges as a block."""
    version, more = (1, {}) if charges.common_ns is None else (CHARGES_VERSION, {"common_ns": charges.common_ns})
    return pack("chrg", version, {
        "names": charges.names, "time_ns": charges.time_ns, "unattributed_ns": charges.unattributed_ns, **more,
    })  # fmt: skip


def unpack_charges(block: bytes, what: str) -> TimeCharges:
    """Return the charges in a block.

    Parameters
    ----------
    what
        The name of the stored object in errors.

    Raises
    ------
    UnknownVersionError
        If the block has a newer version.
    DamagedError
        If the block is truncated or altered, or is none of charges.
    """
    try:
        fields = unpack(block, "chrg", CHARGES_VERSION, what)
    except DamagedError as error:  # no decision rests on it yet, so the checkpoint is whole without it
        raise DamagedError(what, error.problem, "delete it: what it charged is then charged to nobody") from error
    common_ns = fields.integers("common_ns") if fields.has("common_ns") else None
    return TimeCharges(fields.names("names"), fields.integers("time_ns"), fields.integer("unattributed_ns"), common_ns)
