"""What a store does to files that it was given to keep: the kinds of faults, each drawn into a file at a moment.

`LyingFiles` is a dictionary of files that remembers every write. So a fault can put back what a file held before, hold
a write up, or take the last writes out, as a disk does whose `fsync` did nothing and whose machine fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

Content = bytes | None
"""What a file holds; `None` if it is not there."""


class LyingFiles(dict[str, bytes]):
    """Files in memory, with all writes to them, that may be listed otherwise than they are.

    Examples
    --------
    >>> files = LyingFiles()
    >>> files["a"] = b"1"
    >>> files["a"] = b"2"
    >>> files.before("a"), files.at(1)
    (b'1', {'a': b'1'})
    """

    def __init__(self, writes: list[tuple[str, Content]] | None = None) -> None:
        self.writes = list(writes or [])
        """The writes in their order; one without content deleted its file."""

        self.reads: set[str] = set()
        """The files that were asked for."""

        self.hidden = ""
        """The file that the next listings leave out."""

        self.hidden_listings = 0
        self.shuffled: random.Random | None = None
        """Draws the order of every listing; `None` for the order of the writes."""

        super().__init__(self.at(len(self.writes)))

    def at(self, position: int) -> dict[str, bytes]:
        """Return the files as they were after so many writes."""
        files: dict[str, bytes] = {}
        for name, content in self.writes[:position]:
            if content is None:
                files.pop(name, None)
            else:
                files[name] = content
        return files

    def before(self, name: str) -> Content:
        """Return what a file held before its last write."""
        held = [content for each, content in self.writes if each == name]
        return held[-2] if len(held) > 1 else None

    def put(self, name: str, content: Content) -> None:
        """Let a file hold something that nobody wrote."""
        if content is None:
            super().pop(name, None)
        else:
            super().__setitem__(name, content)

    def get(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        self.reads.add(name)
        return super().get(name, default)

    def __setitem__(self, name: str, content: bytes) -> None:
        self.writes.append((name, content))
        super().__setitem__(name, content)

    def pop(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        self.writes.append((name, None))
        return super().pop(name, default)

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        if self.shuffled is not None:
            self.shuffled.shuffle(names)
        if self.hidden_listings and self.hidden:
            self.hidden_listings -= 1
            names = [name for name in names if name != self.hidden]
        return iter(names)


@dataclass(slots=True)
class Injected:
    """A fault that was injected."""

    kind: str
    file: str
    """The file that it is drawn into; one of several if it changes more."""

    held: dict[str, Content]
    """What the files that it changed held before."""

    holds: dict[str, Content] = field(default_factory=dict)
    """What they hold since then."""

    late: dict[str, bytes] = field(default_factory=dict)
    """The writes that will appear later."""

    def arrive(self, files: LyingFiles) -> None:
        """Let the late writes appear, but for files that were written since."""
        for name, content in self.late.items():
            if name not in files or files[name] == self.holds.get(name):
                files.put(name, content)

    def repair(self, files: LyingFiles) -> None:
        """Put back what the files held, but for those that were written since."""
        files.hidden_listings, files.shuffled = 0, None
        for name, content in self.held.items():
            now = dict.get(files, name)
            if now == self.holds.get(name):
                files.put(name, content)


def _bit(draw: random.Random, content: bytes) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def _byte(draw: random.Random, content: bytes) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + bytes([(content[at] + draw.randrange(1, 256)) % 256]) + content[at + 1 :]


def _sector(draw: random.Random, content: bytes) -> bytes:
    size = min(len(content), draw.choice([8, 64, 512]))
    at = draw.randrange(len(content) - size + 1)
    return content[:at] + bytes(size) + content[at + size :]


DAMAGES: Final[Mapping[str, Callable[[random.Random, bytes], bytes]]] = {
    "bit flipped": _bit,
    "byte changed": _byte,
    "part zeroed": _sector,
    "cut off": lambda draw, content: content[: draw.randrange(len(content))],
    "emptied": lambda _, __: b"",
    "end doubled": lambda draw, content: content + content[-draw.randrange(1, len(content) + 1) :],
}
"""What makes of a file's content something that nobody ever wrote."""


def damaged(draw: random.Random, kind: str, content: bytes) -> bytes | None:
    """Return a content after a damage; `None` if it has nothing to be damaged."""
    if not content:
        return None
    found = DAMAGES[kind](draw, content)
    return None if found == content else found


ONE_FILE: Final = (*DAMAGES, "another's content", "older version", "late write", "deleted")
LISTINGS: Final = ("listed without", "listed in another order")
MANY_FILES: Final = ("last writes lost", "some of the last writes lost", "half a backup", "an older directory")
KINDS: Final = (*ONE_FILE, *LISTINGS, *MANY_FILES)


def inject(draw: random.Random, files: LyingFiles, kind: str, file: str) -> Injected | None:
    """Inject a fault, and return it; `None` if these files cannot have it."""
    fault = Injected(kind, file, {})
    if kind in LISTINGS:
        if kind == "listed without":
            files.hidden, files.hidden_listings = file, draw.randint(1, 6)
        else:
            files.shuffled = draw
        return fault
    change = _of_many(draw, files, kind) if kind in MANY_FILES else _of_one(draw, files, kind, file)
    if kind == "late write":
        fault.late = {name: held for name in change if (held := dict.get(files, name)) is not None}
    fault.held = {name: dict.get(files, name) for name in change}
    fault.held = {name: held for name, held in fault.held.items() if held != change[name]}
    if not fault.held:
        return None
    fault.holds = {name: change[name] for name in fault.held}
    for name, content in fault.holds.items():
        files.put(name, content)
    return fault


def _of_one(draw: random.Random, files: LyingFiles, kind: str, file: str) -> dict[str, Content]:
    """Return what a file holds after a fault; nothing if it cannot have it."""
    now = dict.get(files, file)
    if now is None or kind == "deleted":
        return {file: None}
    if kind in DAMAGES:
        content = damaged(draw, kind, now)
        return {} if content is None else {file: content}
    if kind in ("older version", "late write"):
        return {file: files.before(file)}
    folder = file.rpartition("/")[0]
    others = [each for each in dict.keys(files) if each != file and each.rpartition("/")[0] == folder]
    return {file: dict.get(files, draw.choice(sorted(others)))} if others else {}


def _of_many(draw: random.Random, files: LyingFiles, kind: str) -> dict[str, Content]:
    """Return what files hold after a fault that changes several of them."""
    last = len(files.writes)
    if kind == "last writes lost":
        before = files.at(max(0, last - draw.randint(1, 8)))
        return {name: before.get(name) for name in sorted({*before, *dict.keys(files)})}
    if kind == "some of the last writes lost":
        recent = sorted({name for name, _ in files.writes[-draw.randint(1, 8) :]})
        before = files.at(max(0, last - 8))
        return {name: before.get(name) for name in recent if draw.random() < 0.5}
    before = files.at(draw.randrange(last))
    names = sorted({*before, *dict.keys(files)})
    is_whole = kind == "an older directory"
    return {name: before.get(name) for name in names if is_whole or draw.random() < 0.5}
