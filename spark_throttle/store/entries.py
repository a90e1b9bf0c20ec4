"""Policy documents as the entries of a store, and back.

An entry's body is JSON without default values, so equal policies have equal bodies. A million namespaces have few
distinct bodies: each body is parsed once, and namespaces with the same body share the parsed policy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, get_args

from pydantic import BaseModel

from spark_throttle.errors import DamagedError, PolicyError, StoredPolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.model import (
    GroupPolicy,
    JobPolicy,
    NamespacePolicy,
    PolicyDocument,
    QueuePolicy,
    ScopePolicy,
    TenantPolicy,
)
from spark_throttle.policy.quotas import ExceptionPolicy
from spark_throttle.store.store import (
    KINDS,
    MEMBER_KINDS,
    SINGLE_KINDS,
    Change,
    Entry,
    Key,
    Kind,
    PolicyStore,
    check_wanted,
)

SECTIONS: Final[dict[Kind, str]] = {
    "resource_group": "resource_groups", "tenant": "tenants", "namespace": "namespaces", "exempt": "exempt",
    "defaults": "defaults", "job": "job", "queue": "queue",
}  # fmt: skip
"""The key of a document that holds the entries of each kind."""

_EXEMPT_BODY: Final = "{}"
_ABSENT: Final = "{}"
_DIGEST_BYTES: Final = 8
_PAGE_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class EntryVersion:
    """The revision that wrote an entry, and what it wrote.

    The revision alone does not say what was read: a store that is restored from a backup gives the numbers that follow
    the backup a second time, to other contents. A version of both still fits, after a restore, exactly the entries that
    are as the caller has read them, whichever process is asked, and nothing has to be stored for it.

    Examples
    --------
    >>> EntryVersion.of(3, '{"locked":true}', given=None)
    EntryVersion(revision=3, contents='a8756ee0267e15a8')
    """

    revision: int
    """0 for an entry that nobody has written."""

    contents: str
    """A digest of the entry's body, and of whether a tenant's administrator wrote it; 16 hexadecimal digits."""

    @classmethod
    def of(cls, revision: int, body: str | None, *, given: str | None) -> EntryVersion:
        """Return the version of an entry by the fields of `store.Entry`."""
        text = f"{'administrator' if given is None else 'tenant'} {body or _ABSENT}"
        return cls(revision, hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())

    @property
    def etag(self) -> str:
        """The version as an ETag of the API."""
        return f'"{self.revision}-{self.contents}"'


ABSENT_VERSION: Final = EntryVersion.of(0, None, given=None)
"""The version of an entry that is not there, such as defaults that nobody has written."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry with its policy parsed, as callers see it."""

    kind: Kind
    name: str
    policy: ScopePolicy | QueuePolicy
    revision: int
    """Revision of the commit that wrote the entry. 0 for defaults, job or queue that nobody has written."""

    given: str | None = None
    """`store.Entry.given`."""

    body: str | None = field(default=None, repr=False, compare=False)
    """`store.Entry.body`, as the store has it."""

    @property
    def version(self) -> EntryVersion:
        """What a change may be conditional on: its ETag."""
        return EntryVersion.of(self.revision, self.body, given=self.given)

    @property
    def values(self) -> dict[str, Any]:
        """The policy as plain values, without default values."""
        return values_of(self.policy)

    @property
    def resource_group(self) -> str | None:
        """The resource group that the entry itself names, if any."""
        return getattr(self.policy, "resource_group", None)

    @classmethod
    def of(cls, entry: Entry) -> StoredEntry:
        """Parse an entry of a store."""
        return cls(entry.kind, entry.name, policy_of(entry), entry.revision, entry.given, entry.body)


def path_of(kind: Kind, name: str) -> str:
    """Return the path of an entry in a document.

    Examples
    --------
    >>> path_of("namespace", "acme/x"), path_of("job", "")
    ('namespaces.acme/x', 'job')
    """
    return SECTIONS[kind] + (f".{name}" if name else "")


def key_of(path: str) -> Key:
    """Return what names an entry in its store, by its path in a document.

    Examples
    --------
    >>> key_of("namespaces.acme/x.y"), key_of("job")
    (('namespace', 'acme/x.y'), ('job', ''))
    """
    section, _, name = path.partition(".")
    return next(kind for kind, known in SECTIONS.items() if known == section), name


def paths_of(kind: Kind) -> list[str]:
    """Return the paths of all settings of an entry of a kind.

    Examples
    --------
    >>> paths_of("queue"), paths_of("resource_group")[-1]
    (['messages', 'bytes', 'age_seconds', 'on_overflow'], 'destination.on_unavailable')
    """
    return list(_paths_in(type(EMPTY[kind]), ""))


def _paths_in(part: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in part.model_fields.items():
        kinds = (info.annotation, *get_args(info.annotation))
        inner = next((each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)), None)
        yield from [f"{prefix}{name}"] if inner is None else _paths_in(inner, f"{prefix}{name}.")


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry at two revisions, as plain values; `None` where it does not exist."""

    kind: Kind
    name: str
    path: str
    """Path of the entry in a document."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @classmethod
    def of(cls, kind: Kind, name: str, before: str | None, after: str | None) -> Difference:
        """Compare two bodies."""
        check_wanted()
        values = [
            None if body is None else StoredEntry.of(Entry(kind, name, body, 0)).values for body in (before, after)
        ]
        return cls(kind, name, path_of(kind, name), *values)


def body_of(policy: BaseModel) -> str:
    """Return a part of a document as JSON, without default values.

    Examples
    --------
    >>> body_of(ScopePolicy.model_validate({"publish": {"messages_per_second": 0.2, "bytes_per_second": "1KiB"}}))
    '{"publish":{"messages_per_second":0.2,"bytes_per_second":1024}}'
    """
    return json.dumps(values_of(policy), ensure_ascii=False, separators=(",", ":"))


def values_of(policy: BaseModel) -> dict[str, Any]:
    """Return a part of a document as plain values, without default values."""
    return _plain(policy.model_dump(exclude_defaults=True))


def _plain(value: Any) -> Any:  # noqa: ANN401 - what pydantic dumps
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Decimal):
        # Rates are multiples of 0.001 of at most 2**40: a double distinguishes any two of them.
        return float(value) if value % 1 else int(value)
    return value


def resource_group_of(body: str | None) -> str | None:
    """Return the resource group that a body names."""
    if body is None or '"resource_group"' not in body:
        return None
    group: str | None = json.loads(body).get("resource_group")
    return group


def exception_of(body: str | None) -> ExceptionPolicy | None:
    """Return the exception that a body has."""
    if body is None or '"exception"' not in body:
        return None
    exception = json.loads(body, parse_float=Decimal).get("exception")
    return None if exception is None else ExceptionPolicy.model_validate(exception)


def parse_policy(kind: Kind, name: str, value: object) -> ScopePolicy | QueuePolicy:
    """Return the checked policy of one entry; whether its resource group exists is not checked here.

    Raises
    ------
    PolicyError
        If it cannot be applied; the path of the error is that in a document.

    Examples
    --------
    >>> parse_policy("tenant", "acme", {"publish": {"weight": 0}})
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: tenants.acme.publish.weight: 0 is less than 1, the least allowed; give a \
whole number
    """
    section = SECTIONS[kind]
    if kind == "exempt":
        if value not in ({}, None):
            raise PolicyError(section, "an exemption is a name and says nothing else")
        parse_document({section: [name]})
        return ScopePolicy()
    group = value.get("resource_group") if isinstance(value, Mapping) else None
    document: dict[str, object] = {section: value if kind in SINGLE_KINDS else {name: value}}
    if isinstance(group, str) and kind in MEMBER_KINDS:
        document["resource_groups"] = {group: {}}
    parsed = getattr(parse_document(document), section)
    found: ScopePolicy | QueuePolicy = parsed if kind in SINGLE_KINDS else parsed[name]
    return found


def entries_of(document: PolicyDocument) -> dict[tuple[Kind, str], str]:
    """Return the body of every entry of a document; defaults, job and queue without settings have no entry.

    Examples
    --------
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": {}}, "exempt": ["acme/audit"]})
    >>> entries_of(document)
    {('tenant', 'acme'): '{}', ('exempt', 'acme/audit'): '{}'}
    """
    found: dict[tuple[Kind, str], str] = {}
    for kind in KINDS:
        part = getattr(document, SECTIONS[kind])
        if kind in SINGLE_KINDS:
            if (body := body_of(part)) != _ABSENT:
                found[kind, ""] = body
        elif kind == "exempt":
            found.update({(kind, name): _EXEMPT_BODY for name in part})
        else:
            found.update({(kind, name): body_of(policy) for name, policy in part.items()})
    return found


def entries_of_kind(store: PolicyStore, kind: Kind, *, at: int) -> Iterator[Entry]:
    """Yield all entries of one kind at a revision, in the order of their names; they are read a page at a time."""
    after = ""
    while page := store.page(kind, after=after, limit=_PAGE_ENTRIES, at=at):
        yield from page
        after = page[-1].name


def bodies_of(entries: Iterable[Entry]) -> dict[tuple[Kind, str], str]:
    """Return what entries say, by kind and name."""
    return {(entry.kind, entry.name): entry.body or "{}" for entry in entries}


def changes_between(before: Mapping[tuple[Kind, str], str], after: Mapping[tuple[Kind, str], str]) -> list[Change]:
    """Return the changes that turn `before` into `after`."""
    removed = [Change(kind, name, None) for kind, name in before if (kind, name) not in after]
    return removed + [Change(*key, body) for key, body in after.items() if before.get(key) != body]


def document_of(entries: Iterable[Entry], *, what: str = "the policy store") -> PolicyDocument:
    """Return the document that entries add up to.

    Raises
    ------
    StoredPolicyError
        If that document cannot be applied.
    DamagedError
        If a body is not JSON.
    """
    values: dict[str, Any] = {}
    for entry in entries:
        check_wanted()
        section = SECTIONS[entry.kind]
        if entry.kind == "exempt":
            values.setdefault(section, []).append(entry.name)
        elif entry.kind in SINGLE_KINDS:
            values[section] = policy_of(entry, what=what)
        else:
            values.setdefault(section, {})[entry.name] = policy_of(entry, what=what)
    try:
        return parse_document(values)
    except PolicyError as error:
        raise StoredPolicyError(error.path, error.problem) from error


def policy_of(entry: Entry, *, what: str = "the policy store") -> ScopePolicy | QueuePolicy:
    """Return the parsed policy of an entry.

    Raises
    ------
    StoredPolicyError
        If it cannot be applied.
    DamagedError
        If its body is not JSON.
    """
    try:
        return _parsed(entry.kind, entry.body or _ABSENT)
    except PolicyError:
        # Parsed again under its own name, so that the message has this name.
        try:
            return parse_policy(entry.kind, entry.name, json.loads(entry.body or _ABSENT, parse_float=Decimal))
        except PolicyError as error:
            raise StoredPolicyError(error.path, error.problem) from error
    except json.JSONDecodeError as error:
        raise DamagedError(
            f"the {entry.kind} {entry.name!r} of {what}",
            f"its body is not JSON: {error}",
            "write the entry anew, or restore the store from a backup",
        ) from error


def namespace_policy(entry: Entry) -> NamespacePolicy:
    """Return the policy of an entry for namespaces, or of the defaults."""
    policy = policy_of(entry)
    assert isinstance(policy, NamespacePolicy)  # noqa: S101 - the policy of the kinds namespace and defaults
    return policy


@lru_cache(maxsize=65_536)
def _parsed(kind: Kind, body: str) -> ScopePolicy | QueuePolicy:
    return parse_policy(kind, "any", json.loads(body, parse_float=Decimal))


EMPTY: Final[dict[Kind, ScopePolicy | QueuePolicy]] = {
    "resource_group": GroupPolicy(), "tenant": TenantPolicy(), "namespace": NamespacePolicy(),
    "exempt": ScopePolicy(), "defaults": NamespacePolicy(), "job": JobPolicy(), "queue": QueuePolicy(),
}  # fmt: skip
"""The policy of an entry that does not exist, by kind."""
