"""Laws of stored records, over drawn dataclasses and drawn values."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spark_throttle.errors import ConfigurationError, DamagedError, UnknownVersionError
from spark_throttle.record import FORMAT, Within, of_json, pack, to_json, unpack

WHAT: Final = "the record of the test"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    LOW = 0
    HIGH = 7


@dataclass(frozen=True, slots=True)
class Inner:
    number: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    below: tuple[Tree, ...] = ()


SHAPES: Final = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=50)
TEXTS: Final = st.text(st.characters(), max_size=8)  # lone surrogates too: a path may have them
ARROW: Final = {
    pa.StringArray: (pa.string(), st.text(max_size=5)), pa.LargeStringArray: (pa.large_string(), st.text(max_size=5)),
    pa.BinaryArray: (pa.binary(), st.binary(max_size=5)),
    pa.LargeBinaryArray: (pa.large_binary(), st.binary(max_size=5)),
}  # fmt: skip


def integers(kind: type[np.integer]) -> st.SearchStrategy[Any]:
    """Arrays whose values need any number of bits, down to arrays of one value."""
    info = np.iinfo(kind)
    bounds = st.integers(0, info.bits).map(lambda bits: (max(info.min, -(1 << bits)), min(info.max, (1 << bits) - 1)))
    return bounds.flatmap(lambda low_high: arrays.arrays(kind, SHAPES, elements=st.integers(*low_high)))


@st.composite
def strings(draw: st.DrawFn, kind: Any) -> Any:
    """Arrow arrays, also parts of longer ones, with and without nulls."""
    dtype, elements = ARROW[kind]
    values = draw(st.lists(st.none() | elements if draw(st.booleans()) else elements, max_size=50))
    return pa.array(values, dtype)[draw(st.integers(0, len(values))) :]


LEAVES: Final[list[tuple[Any, st.SearchStrategy[Any]]]] = [
    (int, st.integers(-(1 << 63), (1 << 63) - 1)), (Annotated[int, Within(1, 4096)], st.integers(1, 4096)),
    (bool, st.booleans()), (str, TEXTS), (Annotated[str, Within(1, 3)], st.text(min_size=1, max_size=3)),
    (bytes, st.binary(max_size=20)), (Colour, st.sampled_from(Colour)), (Rank, st.sampled_from(Rank)),
    (Literal["publish", "dispatch"], st.sampled_from(["publish", "dispatch"])),
    (Inner, st.builds(Inner, st.integers(0, 9))),
    (Tree, st.recursive(st.builds(Tree, TEXTS), lambda below: st.builds(Tree, TEXTS, st.tuples(below, below)))),
    (npt.NDArray[np.int64], integers(np.int64)), (npt.NDArray[np.int32], integers(np.int32)),
    (npt.NDArray[np.uint8], integers(np.uint8)), (npt.NDArray[np.uint64], integers(np.uint64)),
    (npt.NDArray[np.bool_], arrays.arrays(np.bool_, SHAPES)), *((kind, strings(kind)) for kind in ARROW),
]  # fmt: skip


def containers(kind: tuple[Any, st.SearchStrategy[Any]], other: tuple[Any, st.SearchStrategy[Any]]) -> list[Any]:
    hint: Any
    other_hint: Any
    (hint, values), (other_hint, other_values) = kind, other
    by_text = st.dictionaries(TEXTS, values, max_size=3)
    return [
        (hint | None, st.none() | values) if not hasattr(hint, "__metadata__") and "None" not in str(hint) else kind,
        (tuple[hint, ...], st.lists(values, max_size=3).map(tuple)), (list[hint], st.lists(values, max_size=3)),
        (tuple[hint, other_hint], st.tuples(values, other_values)), (dict[str, hint], by_text),
        (Mapping[str, hint], by_text),
    ]  # fmt: skip


KINDS: Final = st.recursive(
    st.sampled_from(LEAVES),
    lambda kinds: st.tuples(kinds, kinds).flatmap(lambda both: st.sampled_from(containers(*both))),
    max_leaves=3,
)


@st.composite
def records(draw: st.DrawFn) -> Any:
    """A record of a drawn dataclass, whose last fields are nested in another."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=5))
    names = [f"f{at}" for at in range(len(kinds))]
    inner = make_dataclass("Nested", list(zip(names, [hint for hint, _ in kinds], strict=True)), frozen=True, eq=False)
    values = inner(*(draw(values) for _, values in kinds))
    outer = make_dataclass(
        "Outer", [*zip(names, [hint for hint, _ in kinds], strict=True), ("nested", inner)], frozen=True
    )
    return outer(*(getattr(values, name) for name in names), values)


def plain(value: Any) -> Any:
    """A value with its types, in a form that compares arrays too."""
    if is_dataclass(value):
        return (type(value), [plain(getattr(value, each.name)) for each in fields(value)])
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tolist())
    if isinstance(value, pa.Array):
        return (value.type, value.to_pylist())
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return (type(value), [plain(each) for each in value])
    return (type(value), value)


@given(records(), st.booleans())
def test_a_block_gives_the_record_back(record: Any, is_compressed: bool) -> None:
    block = pack(record, is_compressed=is_compressed)
    assert plain(unpack(type(record), block, WHAT)) == plain(record)
    assert pack(unpack(type(record), block, WHAT), is_compressed=is_compressed) == block


@given(records())
def test_a_note_gives_the_record_back(record: Any) -> None:
    note = to_json(record)
    assert plain(of_json(type(record), note, WHAT)) == plain(record)
    assert to_json(of_json(type(record), note, WHAT)) == note


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A record of every kind of field."""

    counts: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int64]
    flags: npt.NDArray[np.bool_]
    names: pa.StringArray
    by_name: Mapping[str, Inner]
    policy: bytes
    rank: Rank
    revision: str | None = None
    inner: tuple[Inner, ...] = field(default_factory=tuple)


def sample() -> Sample:
    names = pa.array([None, "tenant/ü", "b"] * 20)
    pairs = np.arange(100, dtype=np.int64).reshape(50, 2) << 40
    by_name = {"b": Inner(2), "a": Inner(1, ("x",))}
    return Sample(
        np.arange(-5, 95), pairs, np.arange(60) % 3 == 0, names, by_name, b"\0policy", Rank.HIGH, "r", (Inner(3),)
    )


def packed_sample() -> list[bytes]:
    return [pack(sample()), pack(sample(), is_compressed=True), to_json(sample())]


@given(records(), st.data())
def test_any_flipped_bit_is_damage(record: Any, data: st.DataObject) -> None:
    block = bytearray(pack(record, is_compressed=data.draw(st.booleans())))
    block[data.draw(st.integers(0, len(block) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedError, match=WHAT):
        unpack(type(record), bytes(block), WHAT)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_every_flipped_bit_of_one_block_is_damage(is_compressed: bool) -> None:
    block = pack(sample(), is_compressed=is_compressed)
    for at in range(8 * len(block)):
        flipped = bytearray(block)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedError):
            unpack(Sample, bytes(flipped), WHAT)


def test_a_block_that_is_cut_off_or_goes_on_is_damage() -> None:
    block = pack(sample())
    for size in range(len(block)):
        with pytest.raises(DamagedError):
            unpack(Sample, block[:size], WHAT)
    with pytest.raises(DamagedError):
        unpack(Sample, block + b"\0", WHAT)


@given(st.binary(max_size=200))
def test_any_other_bytes_are_damage(content: bytes) -> None:
    with pytest.raises(DamagedError):
        unpack(Inner, content, WHAT)
    with pytest.raises(DamagedError):
        of_json(Inner, content, WHAT)


def resealed(block: bytes, **changed: int) -> bytes:
    """The block with another format, and a checksum that agrees."""
    block = block[:4] + changed["format"].to_bytes(2, "little") + block[6:]
    return block[:20] + zlib.crc32(block[24:], zlib.crc32(block[:20])).to_bytes(4, "little") + block[24:]


def forged(text: str, arrays_of: bytes = b"") -> bytes:
    """A whole block with any JSON."""
    body = text.encode() + bytes(-len(text.encode()) % 8) + arrays_of
    header = b"sthr" + FORMAT.to_bytes(2, "little") + bytes(2) + len(body).to_bytes(8, "little")
    return resealed(header + len(text.encode()).to_bytes(4, "little") + bytes(4) + body, format=FORMAT)


def test_another_format_says_which_release_reads_it() -> None:
    for block in (
        resealed(pack(Inner(1)), format=FORMAT + 1),
        resealed(pack(sample(), is_compressed=True), format=900),
    ):
        with pytest.raises(UnknownVersionError, match=f"{WHAT} has format version .* run the release that wrote it"):
            unpack(Inner, block, WHAT)
    with pytest.raises(UnknownVersionError, match="format version 2"):
        of_json(Inner, '{"format": 2, "whatever": []}', WHAT)


def test_a_block_of_another_record_is_damage() -> None:
    with pytest.raises(DamagedError, match=r"it holds Inner, not Sample; ask somebody"):
        unpack(Sample, pack(Inner(1)), WHAT, remedy="ask somebody")


ABSENT: Final = {"number": "it has no field number", "words": None}


@pytest.mark.parametrize("absent", ABSENT)
def test_an_absent_field_has_its_default_or_is_an_error(absent: str) -> None:
    left = {name: value for name, value in {"number": 4, "words": ["x"]}.items() if name != absent}
    readers: list[Callable[[], Inner]] = [
        lambda: unpack(Inner, forged(json.dumps(["Inner", left])), WHAT),
        lambda: of_json(Inner, json.dumps({"format": 1, **left}), WHAT),
    ]
    for read in readers:
        if ABSENT[absent] is None:
            assert read() == Inner(4)
        else:
            with pytest.raises(DamagedError, match=ABSENT[absent]):
                read()


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"number": 1, "more": 2, "most": 3}, "Inner has no field more, most"),
        ({"number": True}, "Inner.number is True, no whole number"),
        ({"number": 1.0}, "Inner.number is 1.0, no whole number"),
        ({"number": "1"}, "Inner.number is '1', no whole number"),
        ({"number": 1 << 63}, "Inner.number is 9223372036854775808, no whole number from -9223372036854775808"),
        ({"number": None}, "Inner.number is None"),
        ({"number": 1, "words": "x"}, "Inner.words is 'x', no list"),
        ({"number": 1, "words": [1]}, "Inner.words is 1, no text"),
        ([], r"(Inner|it) is \[\], no dict"),
    ],
)
def test_what_no_writer_wrote_is_refused_by_name(tree: Any, problem: str) -> None:
    with pytest.raises(DamagedError, match=problem):
        unpack(Inner, forged(json.dumps(["Inner", tree])), WHAT)
    with pytest.raises(DamagedError, match=problem):
        of_json(Inner, json.dumps({"format": 1, **tree} if isinstance(tree, dict) else tree), WHAT)


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", "7", "null", '["Inner"]', '["Inner", 1]', "[" * 100_000,
        '["Arrays", {"a": ["<i8", 0, 3]}]', '["Arrays", {"a": ["<i8", -8, 1]}]', '["Arrays", {"a": ["O", 0, 1]}]',
        '["Arrays", {"a": ["<i8", 0, -1]}]', '["Arrays", {"a": 5}]', '["Arrays", {"a": []}]',
        '["Arrays", {"a": ["=", "x", 2]}]', '["Arrays", {"a": ["=", 0, 0], "s": [["=", 3, 1], 0, 2]}]',
        '["Arrays", {"a": ["=", 0, 0], "s": [["=", 99, 1], 0, 99]}]', '["Arrays", {"a": ["=", 0, 0], "b": [0, 99]}]',
    ],
)  # fmt: skip
def test_a_whole_block_with_other_content_is_damage(text: str) -> None:
    kind = make_dataclass("Arrays", [
        ("a", npt.NDArray[np.int64]), ("s", pa.StringArray, field(default=None)), ("b", bytes, field(default=b"")),
    ])  # fmt: skip
    with pytest.raises(DamagedError):
        unpack(kind, forged(text, bytes(16)), WHAT)


@pytest.mark.parametrize(
    "listed", ["[1.5]", '["1"]', "[true]", "[[1], 2]", "[1e3]", "[9223372036854775808]", "5", "[[1], -5]"]
)
def test_a_note_with_other_lists_is_damage(listed: str) -> None:
    kind = make_dataclass("Arrays", [("a", npt.NDArray[np.int64])])
    with pytest.raises(DamagedError):
        of_json(kind, f'{{"format": 1, "a": {listed}}}', WHAT)


@pytest.mark.parametrize(
    "note", ["", "[]", "{}", '{"format": 0}', '{"format": "1"}', '{"format": true}', "{", "\ufeff{}"]
)
def test_a_note_without_a_format_is_damage(note: str) -> None:
    with pytest.raises(DamagedError):
        of_json(Inner, note, WHAT)


@dataclass(frozen=True, slots=True)
class Range:
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise ConfigurationError(f"last is {self.last}, less than {self.first}")


def test_what_a_record_itself_refuses_is_damage() -> None:
    with pytest.raises(DamagedError, match="last is 1, less than 2"):
        of_json(Range, '{"format": 1, "first": 2, "last": 1}', WHAT)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (Inner(True), r"Inner\.number is True, no whole number"),
        (Inner(1 << 63), r"Inner\.number is 9223372036854775808"),
        (Inner(1, ["x"]), r"Inner\.words is \['x'\], no tuple"),  # type: ignore[arg-type]
        (Inner("x" * 1000), r"Inner\.number is 'x{99}…, no whole number"),  # type: ignore[arg-type]
        (Tree("a", (Inner(1),)), r"a record is Inner\(.*, no Tree"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_is_not_what_its_field_says_is_not_stored(record: object, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        pack(record)
    with pytest.raises(TypeError, match=problem):
        to_json(record)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3),
        np.zeros(3, dtype=np.int32),
        [1],
        pa.array([1]),
        pa.chunked_array([["a"]]),
        pa.array(["a"], pa.large_string()),
    ],
)
def test_an_array_of_another_type_is_not_stored(value: object) -> None:
    for hint in (npt.NDArray[np.int64], pa.StringArray):
        kind = make_dataclass("Arrays", [("a", hint)])
        with pytest.raises(TypeError, match=r"(?s)Arrays\.a is .*, no (Arrow )?array of"):
            pack(kind(value))


@pytest.mark.parametrize("hint", [float, npt.NDArray[np.float64], int | str, dict[int, str], Any, set[str]])
def test_an_annotation_without_a_stored_form_is_refused(hint: Any) -> None:
    kind = make_dataclass("Odd", [("a", hint)])
    with pytest.raises(TypeError, match=r"Odd\.a is .* has no stored form"):
        pack(kind(None))


def test_whole_numbers_of_numpy_come_back_as_numbers_of_python() -> None:
    assert type(unpack(Inner, pack(Inner(np.int64(5))), WHAT).number) is int  # type: ignore[arg-type]


def test_a_block_does_not_depend_on_how_its_values_lie_in_memory() -> None:
    kind = make_dataclass("Arrays", [("a", npt.NDArray[np.int64]), ("s", pa.StringArray)])
    numbers, texts = np.arange(200, dtype=np.int64).reshape(100, 2), pa.array(["a", None, "ccc"] * 20)
    # A null may hide text, a part its neighbours, and a column is every second number of its table.
    hidden = pa.Array.from_buffers(
        pa.string(), 60, [texts.buffers()[0], *pa.array(["a", "hidden", "ccc"] * 20).buffers()[1:]]
    )
    part = pa.concat_arrays([pa.array(["before"]), texts, pa.array(["after"])])[1:-1]
    assert pack(kind(np.asfortranarray(numbers), hidden)) == pack(kind(numbers, texts)) == pack(kind(numbers, part))
    assert pack(kind(numbers[:, 0], texts)) == pack(kind(numbers[:, 0].copy(), texts))


def test_a_block_does_not_depend_on_the_order_of_a_mapping() -> None:
    one, other = ({key: Inner(at) for at, key in order} for order in ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")]))
    kind = make_dataclass("Mapped", [("by_name", Mapping[str, Inner])])
    assert pack(kind(one)) == pack(kind(other))
    assert to_json(kind(one)) == to_json(kind(other))


def test_every_process_packs_the_same_bytes() -> None:
    program = "import zlib; from tests.test_record import packed_sample; print(*map(zlib.crc32, packed_sample()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {" ".join(str(zlib.crc32(each)) for each in packed_sample()) + "\n"}


def test_arrays_come_back_read_only_and_without_a_copy_where_their_type_was_kept() -> None:
    found = unpack(Sample, block := pack(sample()), WHAT)
    for values in (found.counts, found.pairs, found.flags):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    whole = np.frombuffer(block, np.uint8)
    assert np.shares_memory(found.pairs, whole)  # needs all of 64 bits
    assert not np.shares_memory(found.counts, whole)
    text = np.frombuffer(found.names.buffers()[2], np.uint8)
    assert np.shares_memory(text, whole)


def test_a_block_inside_another_one_is_read_where_it_lies() -> None:
    block = pack(sample())
    for shift in range(9):
        around = memoryview(bytes(shift) + block)[shift:]
        assert plain(unpack(Sample, around, WHAT)) == plain(sample())


@pytest.mark.parametrize(
    ("most", "bytes_a_value"), [(0, 0), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4), (2**32, 8)]
)
def test_numbers_take_the_narrowest_type_that_holds_all_of_them(most: int, bytes_a_value: int) -> None:
    kind = make_dataclass("Arrays", [("a", npt.NDArray[np.int64])])
    for values in (np.arange(8000) % 2 * most, (np.arange(8000) % 2 * most + 1) // -2):
        assert len(pack(kind(values))) == pytest.approx(8000 * bytes_a_value, abs=80)


def test_a_compressed_block_is_smaller() -> None:
    kind = make_dataclass("Arrays", [("a", npt.NDArray[np.int64])])
    record = kind(np.arange(100_000) // 10)
    assert len(pack(record, is_compressed=True)) < len(pack(record)) / 2
