"""Records as Kafka keeps them: batches of the second format, which a broker takes and gives as they are.

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = 2
_BEFORE_LENGTH: Final = struct.Struct(">qi")
"""The offset of the first record, and how many bytes follow."""

_BEFORE_CHECKED: Final = struct.Struct(">ibI")
"""The leader's epoch, the format, and the checksum of all that follows."""

_CHECKED: Final = struct.Struct(">hiqqqhii")
"""Attributes, the last record's number, two times, three numbers of a transaction's producer, the records' count."""


@dataclass(frozen=True, slots=True)
class Record:
    """A key and a value; a record without the one or the other is another than one in which it is empty."""

    key: bytes | None
    value: bytes | None


def pack(records: Sequence[Record]) -> bytes:
    """Return a batch, not compressed and of no transaction; the broker says which offsets it gets."""
    checked = _CHECKED.pack(0, len(records) - 1, 0, 0, -1, -1, -1, len(records)) + b"".join(
        _with_length(b"\0" + _varint(0) + _varint(number) + _bytes(record.key) + _bytes(record.value) + _varint(0))
        for number, record in enumerate(records)
    )
    body = _BEFORE_CHECKED.pack(-1, _MAGIC, crc32c(checked)) + checked
    return _BEFORE_LENGTH.pack(0, len(body)) + body


def unpack(content: bytes) -> Iterator[tuple[int, Record]]:
    """Yield each record with its offset; a batch of which the end is missing is left out, as the protocol has it."""
    at = 0
    while at + _BEFORE_LENGTH.size <= len(content):
        first, length = _BEFORE_LENGTH.unpack_from(content, at)
        at += _BEFORE_LENGTH.size
        if at + length > len(content):
            return
        _epoch, magic, checksum = _BEFORE_CHECKED.unpack_from(content, at)
        checked = content[at + _BEFORE_CHECKED.size : at + length]
        at += length
        if magic != _MAGIC or checksum != crc32c(checked):
            msg = f"the batch at offset {first} is of format {magic}, not {_MAGIC}, or damaged: begin with a new broker"
            raise ValueError(msg)
        attributes, *_, count = _CHECKED.unpack_from(checked)
        if attributes != 0:
            msg = f"the batch at offset {first} has the attributes {attributes}, not 0: send none that is compressed"
            raise ValueError(msg)
        place = _CHECKED.size
        for number in range(count):
            length, place = _read_varint(checked, place)
            end = place + length
            _time, place = _read_varint(checked, place + 1)
            _number, place = _read_varint(checked, place)
            key, place = _read_bytes(checked, place)
            value, place = _read_bytes(checked, place)
            place = end
            yield first + number, Record(key, value)


def crc32c(content: bytes) -> int:
    """Return the checksum by Castagnoli's polynomial.

    Examples
    --------
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    found = 0xFFFFFFFF
    for byte in content:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 0xFF]
    return found ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE: Final = [_table_entry(byte) for byte in range(256)]


def _varint(number: int) -> bytes:
    """Return a number in as few bytes as it needs; a small negative one needs few too."""
    left = number << 1 if number >= 0 else (-number << 1) - 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    found = shift = 0
    while True:
        byte = content[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at


def _with_length(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _bytes(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _with_length(content)


def _read_bytes(content: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(content, at)
    return (None, at) if length < 0 else (content[at : at + length], at + length)
