"""Stored records: a frozen dataclass is the whole declaration of what is stored.

A *block* is a header of 24 bytes, the record as JSON, and the bytes of its arrays, each at a multiple of 8. The JSON
holds an array as its integer type, the place of its bytes and its shape. Integers are stored in the narrowest type that
holds all of an array, and one number alone where all are equal; strings as their lengths and their text. The header has
a CRC-32 of all other bytes, in one place in every format. A block in a file of its own may be *bound* to the file's
name, with which the CRC then begins: in the place of another file it is damaged. A *note*, which people read, is the
same JSON with the arrays in it, and with a CRC-32 of its fields; whoever changes one leaves ``checksum`` out.

Laws::

    unpack(type(x), pack(x), what) == x             and the same of to_json and of_json
    pack(x) == pack(y)   if x == y                  in every process: mappings are stored by key, nothing is hashed
    unpack(…, block with any bit flipped, any byte added or cut off) raises DamagedError, and nothing else

A field that is absent from a block has its default; one without a default is an error, and so is a field that the
dataclass lacks. So a field may be added with a default. Any other change of a stored dataclass takes a new `FORMAT`.
A stored dataclass stands at the top of its module, so that its annotations can be looked up.

Arrays that come back are read-only. Those that were not narrowed are parts of the block, and keep all of it alive.
"""

from __future__ import annotations

import json
import struct
import types
import typing
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, ThrottleError, UnknownVersionError
from spark_throttle.record_arrays import ALL_EQUAL, PADDING, ArrayBytes, part_of, read_array, stored_array

FORMAT: Final = 1
"""The format of all blocks and notes."""

Record = TypeVar("Record")
_Value: TypeAlias = Any
"""What a caller stores, and what JSON holds: the coders check it."""

_MAGIC: Final = b"sthr"
_HEADER: Final = struct.Struct("<4sHHQI")  # magic, format, whether compressed, size of the body, size of its JSON
_CHECKSUM: Final = struct.Struct("<I")
_BODY_AT: Final = _HEADER.size + _CHECKSUM.size
_CODEC: Final = "lz4_raw"
_SUM: Final = "checksum"

_STRINGS: Final = {
    pa.StringArray: pa.string(), pa.LargeStringArray: pa.large_string(),
    pa.BinaryArray: pa.binary(), pa.LargeBinaryArray: pa.large_binary(),
}  # fmt: skip

_to_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_UNREADABLE: Final = (
    ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError, OSError, ThrottleError,
    pa.ArrowException,
)  # fmt: skip
"""What content that is not a record's raises on its way through json, numpy, pyarrow and the record's own checks."""


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a whole number, or of the length of a text, both included: ``Annotated[int, Within(1, 4096)]``."""

    least: int
    most: int


Count: TypeAlias = Annotated[int, Within(0, (1 << 63) - 1)]
WallMs: TypeAlias = Annotated[int, Within(0, 253_402_300_799_999)]
"""A time in ms since 1970, at most the last of the year 9999: a calendar goes no further."""

Name: TypeAlias = Annotated[str, Within(1, 1000)]


def pack(record: object, *, is_compressed: bool = False, bound_to: str = "") -> bytes:
    """Return a record as a block.

    Parameters
    ----------
    is_compressed
        Whether the content is compressed: worth it for a block that is copied more often than it is read.
    bound_to
        The name of the file that it is stored in, if it is to be found there alone.

    Raises
    ------
    TypeError
        If a value is not what its field's annotation says.

    Examples
    --------
    >>> block = pack(Within(1, 4096))
    >>> unpack(Within, block, "the example")
    Within(least=1, most=4096)
    """
    out = ArrayBytes()
    tree = [type(record).__name__, _coder_of(type(record)).write(record, out)]
    text = _to_text(tree).encode("utf-8", "surrogatepass")
    parts = [text, PADDING[-len(text) % 8], *out.parts]
    body_size = len(text) + -len(text) % 8 + out.size
    if is_compressed:
        parts = [pa.compress(b"".join(parts), codec=_CODEC)]
    header = _HEADER.pack(_MAGIC, FORMAT, is_compressed, body_size, len(text))
    checksum = zlib.crc32(header, zlib.crc32(bound_to.encode()))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([header, _CHECKSUM.pack(checksum), *parts])


def unpack(
    kind: type[Record], block: bytes | memoryview, what: str, *, remedy: str = RESTORE_CHECKPOINT, bound_to: str = ""
) -> Record:
    """Return the record that a block holds.

    Parameters
    ----------
    kind
        The dataclass.
    what
        The name of the stored object in errors.
    remedy
        What to do if it is damaged.
    bound_to
        As in `pack`.

    Raises
    ------
    UnknownVersionError
        If the block has another format than this release writes.
    DamagedError
        If it is truncated or altered, or holds something else.
    """
    whole = memoryview(block)
    if len(whole) < _BODY_AT:
        raise DamagedError(what, f"it has {len(whole)} bytes, fewer than its header's {_BODY_AT}", remedy)
    magic, found_format, is_compressed, body_size, text_size = _HEADER.unpack_from(whole)
    if magic != _MAGIC:
        raise DamagedError(what, f"it begins with {magic!r}, not with {_MAGIC!r}", remedy)
    body = whole[_BODY_AT:]
    begun = zlib.crc32(whole[: _HEADER.size], zlib.crc32(bound_to.encode()))
    if (zlib.crc32(body, begun),) != _CHECKSUM.unpack_from(whole, _HEADER.size):
        raise DamagedError(what, f"the checksum of its {len(whole)} bytes is not the one in its header", remedy)
    if found_format != FORMAT:
        raise UnknownVersionError(what, found_format, FORMAT)
    try:
        if is_compressed:
            body = memoryview(pa.decompress(body, decompressed_size=body_size, codec=_CODEC))
        elif pa.py_buffer(body).address % 8:
            body = memoryview(bytes(body))
        found_kind, tree = json.loads(str(body[:text_size], "utf-8", "surrogatepass"))
        if found_kind != kind.__name__:
            raise TypeError(f"it holds {found_kind}, not {kind.__name__}")
        return _coder_of(kind).read(tree, body[text_size + -text_size % 8 :])
    except _UNREADABLE as error:
        raise DamagedError(what, _problem(error), remedy) from error


def first_block_bytes(begin: bytes | memoryview) -> int:
    """Return the size of the block, not a compressed one, with which something begins; `unpack` refuses a wrong one.

    So a record may be stored with another one before it, its head, which is read and checked alone.
    """
    return len(begin) if len(begin) < _BODY_AT else _BODY_AT + int(_HEADER.unpack_from(begin)[3])


def to_json(record: object) -> bytes:
    """Return a record as a note: JSON with one field a line.

    Raises
    ------
    TypeError
        If a value is not what its field's annotation says.

    Examples
    --------
    >>> print(to_json(Within(1, 4096)).decode())
    {
     "format": 1,
     "least": 1,
     "most": 4096,
     "checksum": 589149524
    }
    """
    tree = _coder_of(type(record)).write(record, None)
    return json.dumps(
        {"format": FORMAT, **tree, _SUM: checksum_of(tree)}, indent=1, ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def of_json(kind: type[Record], note: bytes | str, what: str, *, remedy: str = RESTORE_CHECKPOINT) -> Record:
    """Return the record that a note holds; the parameters are those of `unpack`.

    Raises
    ------
    UnknownVersionError
        If the note has another format than this release writes.
    DamagedError
        If it is no JSON, or holds something else.
    """
    try:
        tree = json.loads(note if isinstance(note, str) else note.decode("utf-8", "surrogatepass"))
        found_format = _checked("it", tree, dict).pop("format", None)
        if type(found_format) is not int or found_format < 1:
            _refuse("format", found_format, "number of a format")
        if found_format == FORMAT:
            found_sum = tree.pop(_SUM, None)
            if found_sum not in (None, expected := checksum_of(tree)):
                raise ValueError(f"its {_SUM} is {found_sum}, and its fields have {expected}")
            return _coder_of(kind).read(tree, None)
    except _UNREADABLE as error:
        raise DamagedError(what, _problem(error), remedy) from error
    raise UnknownVersionError(what, found_format, FORMAT)


def checksum_of(tree: _Value) -> int:
    """Return the CRC-32 of what JSON can hold, such as the fields of a note, however they are set out."""
    return zlib.crc32(_to_text(tree).encode("utf-8", "surrogatepass"))


def _problem(error: Exception) -> str:
    """Return what is wrong with content that cannot be read, in words."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error.msg}, line {error.lineno}, column {error.colno})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) or repr(error)


class _Coder(NamedTuple):
    """How a value of one annotation becomes JSON, and back; in a note there is nothing outside of the JSON."""

    write: Callable[[_Value, ArrayBytes | None], _Value]
    read: Callable[[_Value, memoryview | None], _Value]


def _refuse(where: str, value: object, wanted: str) -> NoReturn:
    shown = repr(value)
    raise TypeError(f"{where} is {shown if len(shown) <= 100 else shown[:100] + '…'}, no {wanted}")


def _checked(where: str, value: _Value, kind: _Value) -> _Value:
    """Return a value that is of a type, not of one derived from it: `True` is no number."""
    if type(value) is not kind:
        _refuse(where, value, kind.__name__)
    return value


def _record(kind: _Value) -> _Coder:
    """Return the coder of a dataclass: an object with the fields' names."""
    name_of, hints, all_fields = kind.__name__, typing.get_type_hints(kind, include_extras=True), fields(kind)
    coders = {each.name: _coder(hints[each.name], f"{name_of}.{each.name}") for each in all_fields}
    needed = {each.name for each in all_fields if each.default is MISSING and each.default_factory is MISSING}

    def write(value: _Value, out: ArrayBytes | None) -> dict[str, _Value]:
        _checked("a record", value, kind)
        return {name: coder.write(getattr(value, name), out) for name, coder in coders.items()}

    def read(tree: _Value, source: memoryview | None) -> _Value:
        _checked(name_of, tree, dict)
        found = {name: coder.read(tree[name], source) for name, coder in coders.items() if name in tree}
        if len(found) < len(tree):
            raise ValueError(f"{name_of} has no field {', '.join(name for name in tree if name not in found)}")
        if not needed <= found.keys():
            raise ValueError(f"it has no field {', '.join(name for name in coders if name in needed - found.keys())}")
        return kind(**found)

    return _Coder(write, read)


_coder_of: Final[Callable[[_Value], _Coder]] = cache(_record)


def _coder(hint: _Value, where: str) -> _Coder:  # noqa: C901, PLR0911, PLR0912 - a line a kind of annotation
    """Return the coder of an annotation; `where` names its field in errors."""
    origin: _Value = typing.get_origin(hint)
    args: tuple[_Value, ...] = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and type(None) in args:
        return _optional(_coder(args[args[0] is type(None)], where))
    if hint in (int, str):
        return _bounded(where, hint, Within(-(1 << 63), (1 << 63) - 1) if hint is int else Within(0, 1 << 31))
    if origin is Annotated:
        return _bounded(where, *args)
    if hint is bool:
        return _choice(where, {True: True, False: False})
    if origin is Literal:
        return _choice(where, dict(zip(args, args, strict=True)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        members: list[Enum] = list(hint)
        return _choice(where, {member: member.value for member in members})
    if hint is bytes:
        return _bytes(where)
    if origin is np.ndarray:
        return _array(where, np.dtype(typing.get_args(args[1])[0]))
    if hint in _STRINGS:
        return _strings(where, _STRINGS[hint])
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        return _sequence(where, origin, _coder(args[0], where))
    if origin is tuple:
        return _tuple(where, [_coder(each, where) for each in args])
    if origin in (dict, Mapping) and args[0] is str:
        return _mapping(where, _coder(args[1], where))
    if isinstance(hint, type) and is_dataclass(hint):  # looked up when it is used: a record may hold others of its type
        return _Coder(lambda value, o: _coder_of(hint).write(value, o), lambda tree, s: _coder_of(hint).read(tree, s))
    raise TypeError(f"{where} is annotated with {hint}, which has no stored form")


def _optional(coder: _Coder) -> _Coder:
    return _Coder(
        lambda value, out: None if value is None else coder.write(value, out),
        lambda tree, source: None if tree is None else coder.read(tree, source),
    )


def _bounded(where: str, kind: type, bounds: Within) -> _Coder:
    """Return the coder of a whole number, or of a text."""
    name = f"whole number from {bounds.least} to {bounds.most}" if kind is int else f"text of at most {bounds.most}"

    def checked(value: _Value, _: object) -> int | str:
        if type(value) is not kind:  # numpy's numbers are written as Python's, and members of a StrEnum as their text
            value = (
                kind(value) if isinstance(value, np.integer if kind is int else str) else _refuse(where, value, name)
            )
        if not bounds.least <= (value if kind is int else len(value)) <= bounds.most:
            _refuse(where, value, name)
        return value

    return _Coder(checked, checked)


def _choice(where: str, stored: Mapping[_Value, _Value]) -> _Coder:
    """Return the coder of a value that is one of a few; 1 is not `True`."""
    written = {(type(value), value): each for value, each in stored.items()}
    known = {(type(each), each): value for value, each in stored.items()}

    def found(among: dict[_Value, _Value], value: _Value) -> _Value:
        try:
            return among[type(value), value]
        except (KeyError, TypeError):
            _refuse(where, value, " and no ".join(map(repr, stored.values())))

    return _Coder(lambda value, _: found(written, value), lambda tree, _: found(known, tree))


def _bytes(where: str) -> _Coder:
    def write(value: _Value, out: ArrayBytes | None) -> _Value:
        _checked(where, value, bytes)
        return b64encode(value).decode("ascii") if out is None else [out.add(value, len(value)), len(value)]

    def read(tree: _Value, source: memoryview | None) -> bytes:
        return b64decode(tree, validate=True) if source is None else bytes(part_of(source, *tree))

    return _Coder(write, read)


def _sequence(where: str, kind: type, coder: _Coder) -> _Coder:
    return _Coder(
        lambda value, out: [coder.write(each, out) for each in _checked(where, value, kind)],
        lambda tree, source: kind([coder.read(each, source) for each in _checked(where, tree, list)]),
    )


def _tuple(where: str, coders: list[_Coder]) -> _Coder:
    def paired(values: _Value, kind: type) -> Iterable[tuple[_Coder, _Value]]:
        return zip(coders, _checked(where, values, kind), strict=True)

    return _Coder(
        lambda value, out: [coder.write(each, out) for coder, each in paired(value, tuple)],
        lambda tree, source: tuple([coder.read(each, source) for coder, each in paired(tree, list)]),
    )


def _mapping(where: str, coder: _Coder) -> _Coder:
    def write(value: _Value, out: ArrayBytes | None) -> dict[str, _Value]:
        return {_checked(where, key, str): coder.write(value[key], out) for key in sorted(value)}

    def read(tree: _Value, source: memoryview | None) -> dict[str, _Value]:
        return {key: coder.read(each, source) for key, each in _checked(where, tree, dict).items()}

    return _Coder(write, read)


def _array(where: str, dtype: np.dtype[_Value]) -> _Coder:
    """Return the coder of an array of whole numbers or of truths, of any shape."""
    if dtype.kind not in "iub":
        raise TypeError(f"{where} is an array of {dtype}, which has no stored form")
    listed_as = {bool if dtype.kind == "b" else int}

    def write(value: _Value, out: ArrayBytes | None) -> _Value:
        if not isinstance(value, np.ndarray) or value.dtype != dtype:
            _refuse(where, value, f"array of {dtype}")
        if out is not None:
            return stored_array(value, out)
        return value.tolist() if value.ndim == 1 else [value.reshape(-1).tolist(), *value.shape]

    def read(tree: _Value, source: memoryview | None) -> np.ndarray:
        if source is not None:
            values = read_array(tree, source, dtype)
        else:
            listed, *shape = tree if tree and type(tree) is list and type(tree[0]) is list else (tree, len(tree))
            if not listed_as.issuperset(map(type, _checked(where, listed, list))) or min(shape, default=0) < 0:
                _refuse(where, tree, f"list of {dtype}")
            values = np.array(listed, dtype).reshape(shape)
        values.flags.writeable = False
        return values

    return _Coder(write, read)


def _strings(where: str, kind: pa.DataType) -> _Coder:
    """Return the coder of Arrow strings, or bytes: their lengths, all of their text, and which are null, if any is."""
    offset_type = np.dtype(np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32)
    is_text = kind in (pa.string(), pa.large_string())
    nothing, each = ("" if is_text else b""), _coder(str | None if is_text else bytes | None, where)

    def write(value: _Value, out: ArrayBytes | None) -> _Value:
        if not isinstance(value, pa.Array) or value.type != kind:
            _refuse(where, getattr(value, "type", value), f"Arrow array of {kind}")
        if out is None:
            return [each.write(one, None) for one in value.to_pylist()]
        nulls = []
        if value.null_count:  # where a null is, Arrow's buffers may hold anything
            nulls = [stored_array(value.is_null().to_numpy(zero_copy_only=False), out)]
            value = value.fill_null(nothing)
        if not len(value):  # Arrow leaves the buffers out
            return [[ALL_EQUAL, 0, 0], 0, 0]
        _, offsets, data = value.buffers()
        ends = np.frombuffer(offsets, offset_type, len(value) + 1, value.offset * offset_type.itemsize)
        begin, size = int(ends[0]), int(ends[-1] - ends[0])
        text = b"" if data is None else data.slice(begin, size)
        return [stored_array(ends[1:] - ends[:-1], out), out.add(text, size), size, *nulls]

    def read(tree: _Value, source: memoryview | None) -> pa.Array:
        if source is None:
            return pa.array([each.read(one, None) for one in tree], kind)
        lengths, at, size, *nulls = tree
        counted = read_array(lengths, source, offset_type)
        offsets = np.zeros(len(counted) + 1, offset_type)
        np.add.accumulate(counted, out=offsets[1:])
        if offsets[-1] != size:
            raise ValueError(f"{where} has {size} bytes of text, and its lengths add up to {offsets[-1]}")
        validity = None
        if nulls:
            is_valid = ~read_array(nulls[0], source, np.dtype(np.bool_))
            validity = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
        return pa.Array.from_buffers(
            kind, len(counted), [validity, pa.py_buffer(offsets), pa.py_buffer(part_of(source, at, size))]
        )

    return _Coder(write, read)
