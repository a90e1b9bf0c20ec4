"""Policies in a table of a catalog are rows: the catalog's grants say who may change what, and its tools change it.

A row is an entry::

    section   a key of a policy document: resource_groups, tenants, namespaces, exempt, defaults, job, queue
    name      of the entry; null or empty for defaults, job and queue
    body      the entry as JSON; null or empty for one that says nothing, as an exemption

The process that plans the batches of a job has no session, and with it no catalog. So the job's driver reads the table
when the query starts and beside each batch, and leaves its rows in the control directory, where the plan of the next
batch finds them. Rows that cannot be applied, or a table that cannot be read, leave the last good policies in
force, as in `followed_store`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_throttle.errors import PolicyError, StoredFormatError, did_you_mean
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.source import DocumentInForce, PolicySnapshot
from spark_throttle.record import Name, of_json, to_json
from spark_throttle.store.entries import SECTIONS, document_of, path_of
from spark_throttle.store.store import SINGLE_KINDS, Entry, Key

COLUMNS: Final = ("section", "name", "body")
NAME: Final = "table.json"
_KINDS: Final = {section: kind for kind, section in SECTIONS.items()}


@dataclass(frozen=True, slots=True)
class TableRows:
    """What a job's driver found in a policy table."""

    table: Name
    run: Name
    """The start of the query that read it: what an earlier one left is not read again."""

    rows: tuple[tuple[str, str, str], ...] = ()
    problem: str | None = None
    """Why the table could not be read; then there are no rows."""

    @classmethod
    def of(cls, table: str, run: str, rows: Iterable[Iterable[str | None]]) -> TableRows:
        """Return the rows of a table, which have no order there."""
        found = [tuple(value or "" for value in row) for row in rows]
        return cls(table, run, tuple(sorted((section, name, body) for section, name, body in found)))

    def document(self) -> PolicyDocument:
        """Return the document that the rows add up to.

        Raises
        ------
        PolicyError
            If it cannot be applied.
        DamagedError
            If a body is no JSON.

        Examples
        --------
        >>> rows = TableRows.of("main.ops.policies", "5eed", [("tenants", "acme", '{"publish": {"weight": 2}}')])
        >>> rows.document().tenants["acme"].publish.weight
        2
        >>> TableRows.of("main.ops.policies", "5eed", [("tenant", "acme", "{}")]).document()
        Traceback (most recent call last):
        ...
        spark_throttle.errors.PolicyError: tenant: is no section of a policy; did you mean tenants?
        """
        entries = dict[Key, Entry]()
        for section, name, body in self.rows:
            kind = _KINDS.get(section)
            if kind is None:
                raise PolicyError(section or "''", f"is no section of a policy{did_you_mean(section, _KINDS)}")
            if kind in SINGLE_KINDS and name:
                raise PolicyError(
                    section, f"the row has the name {name!r}, and this section has one entry: leave it out"
                )
            if kind not in SINGLE_KINDS and not name:
                raise PolicyError(section, "the row has no name; give that of the entry")
            if (kind, name) in entries:
                raise PolicyError(path_of(kind, name), "the table has two rows or more of this entry; leave one")
            entries[kind, name] = Entry(kind, name, body, 0)
        return document_of(entries.values(), what=f"the policy table {self.table}")


def leave_rows(directory: Directory, found: TableRows) -> None:
    """Leave what the driver found for the plan of the next batch."""
    content = to_json(found)
    if directory.read(NAME) != content:
        directory.write(NAME, content)


class FollowedTable:
    """The policies of a table, as the driver last found them.

    While nothing changes, `current` reads one file and returns the same object. Not safe for use by several threads at
    once.

    Parameters
    ----------
    directory
        The job's control directory.
    first
        What the driver found before the query started.
    """

    def __init__(self, directory: Directory, first: TableRows) -> None:
        self._directory = directory
        self._first = first
        self._examined: bytes | None = None
        self._what = f"the policy table {first.table}"
        self._kept = DocumentInForce(self._what)

    def current(self) -> PolicySnapshot:
        """Return the last good document, and what is wrong with the table, if anything.

        Raises
        ------
        PolicyError, DamagedError
            If the table could not be applied when the query started.
        """
        if self._kept.snapshot is None:
            self._accept(self._first)
        assert self._kept.snapshot is not None  # noqa: S101 - else `_accept` has raised
        last, content = self._kept.snapshot, self._directory.read(NAME)
        if content is None or content == self._examined:
            return last
        self._examined = content
        try:
            found = of_json(TableRows, content, f"the file {self._directory.shown(NAME)}")
            if found.run != self._first.run:
                return last
            if found.problem is not None:
                return self._kept.keep(last, f"cannot read {self._what}: {found.problem}")
            return self._accept(found)
        except (PolicyError, StoredFormatError) as error:
            return self._kept.keep(last, f"{self._what} cannot be applied: {error}")

    def _accept(self, found: TableRows) -> PolicySnapshot:
        document = found.document()
        return self._kept.accept(PolicySnapshot(document, revision_of(document), None))
