"""Policies are a document, a file, an object, a store or a table, and the value of `policies` alone says which.

A mapping or a `PolicyDocument` is a document, and a path object names a file. For a string the first rule that fits
decides:

1. A *document*, if it is empty or has a line break.
2. A *store*, if it begins with ``delta:`` or ``file:``, and no space follows: ``delta:s3://lake/policies``. A *table*
   of the session's catalog, if it begins with ``table:``: ``table:main.ops.policies``.
3. An *object*, which is a file on an object store, if it begins with a scheme that pyarrow knows: ``s3://lake/p.yaml``.
4. A *document*, if it has a colon before a space or at its end, or is enclosed in braces: ``{job: {}}``.
5. Otherwise the path of a *file*: ``policies.yaml``, ``/lake/{env}/p.yaml``, ``dbfs:/lake/p.yaml``.

No rule looks at what exists, so a string means the same on every machine. A file whose path looks like something else
can be given as a `pathlib.Path`. A document does not change while a query runs; the others are followed. A store alone
can be changed; `open_store` opens it, at its own location.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from spark_throttle.errors import ConfigurationError, PolicyError, did_you_mean
from spark_throttle.files.storage import file_system, read_object
from spark_throttle.policy.codec import dump_policies, parse_document, parse_policies
from spark_throttle.policy.model import PolicyDocument, QueuePolicy
from spark_throttle.record import of_json, to_json
from spark_throttle.store.entries import EMPTY, document_of, policy_of
from spark_throttle.store.policy_table import TableRows
from spark_throttle.store.store import PolicyStore

_FORMS: Final = "delta:/path/of/table, delta:s3://bucket/table or file:/path/policies.yaml"


def open_store(location: str, *, is_created: bool = False) -> PolicyStore:
    """Return the policy store at a location.

    Parameters
    ----------
    location
        ``delta:`` and the path or URI of a Delta table, ``file:`` and the path of a YAML file, or ``memory:``.
    is_created
        Whether to create the store if it does not exist.

    Raises
    ------
    ConfigurationError
        If the location names no store.
    StoreUnavailableError
        If the store does not exist and must not be created.

    Examples
    --------
    >>> open_store("memory:").revision()
    0
    """
    scheme, colon, rest = location.partition(":")
    if scheme == "memory" and colon:
        from spark_throttle.store.memory_store import MemoryStore

        return MemoryStore(location)
    if scheme == "file" and rest:
        from spark_throttle.store.file.file_store import FileStore

        path = rest.removeprefix("//")
        return FileStore.create(path) if is_created else FileStore(path)
    if scheme == "delta" and rest:
        try:
            from spark_throttle.store.delta.delta_store import DeltaStore
        except ImportError as error:
            msg = f"{location!r} needs the package deltalake: install spark-throttle[admin] or spark-throttle[delta]"
            raise ConfigurationError(msg) from error
        return DeltaStore.create(rest) if is_created else DeltaStore(rest)
    if scheme == "table" and rest:
        raise ConfigurationError(
            f"{location!r} is read and written through a catalog, whose grants say who may: change its rows by SQL"
        )
    raise ConfigurationError(f"{location!r} names no policy store; write {_FORMS}")


PolicyKind = Literal["document", "file", "object", "store", "table"]
Policies: TypeAlias = "str | os.PathLike[str] | Mapping[str, object] | PolicyDocument"

OBJECT_SCHEMES: Final = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_STORE_SCHEMES: Final = ("delta", "file")
_TABLE_SCHEME: Final = "table"
_OPTIONS: Final[dict[PolicyKind, str]] = {
    "document": "policyText", "file": "policyFile", "object": "policyObject", "store": "policyStore",
    "table": "policyTable",
}  # fmt: skip

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(?!\s)")
_IS_TEXT = re.compile(r":\s|:\Z|\A\s*\{.*\}\s*\Z")

_REMEDY: Final = (
    "give the path of a YAML file, a URI such as s3://bucket/policies.yaml, a policy store such as delta:/path, "
    "or the document itself as a mapping or as YAML"
)


@dataclass(frozen=True, slots=True)
class PolicyLocation:
    """The place of policies, or the policies themselves."""

    kind: PolicyKind
    place: str
    """A document's YAML, a file's absolute path, an object's URI, what `open_store` takes, or the name of a table."""

    rows: TableRows | None = None
    """What is in the table, once a driver has read it."""

    @classmethod
    def parse(cls, policies: Policies) -> PolicyLocation:
        """Return the location that `policies` means by the rules of this module; no file is read, no text is checked.

        Raises
        ------
        PolicyError
            If `policies` is a mapping that cannot be applied.
        ConfigurationError
            If no rule fits it.

        Examples
        --------
        >>> [PolicyLocation.parse(each).kind for each in ("{}", "/lake/{env}/p.yaml", "s3://b/p.yaml", "delta:/lake")]
        ['document', 'file', 'object', 'store']
        """
        if isinstance(policies, PolicyDocument):
            return cls("document", dump_policies(policies))
        if isinstance(policies, Mapping):
            return cls("document", dump_policies(parse_document(policies)))
        if isinstance(policies, str):
            return cls._of_text(policies)
        if isinstance(policies, os.PathLike):
            return cls._of_path(os.fsdecode(policies))
        raise ConfigurationError(f"policies is {policies!r}; {_REMEDY}")

    @classmethod
    def _of_text(cls, text: str) -> PolicyLocation:
        if not text.strip() or "\n" in text:
            return cls("document", text)
        scheme = _SCHEME.match(text)
        name = "" if scheme is None else scheme[1].lower()
        if text[len(name) :] == ":" and name in (*_STORE_SCHEMES, _TABLE_SCHEME, "memory"):
            raise ConfigurationError(f"policies {text!r} names no place; {_REMEDY}")
        if name in _STORE_SCHEMES:
            return cls("store", f"{name}:{_absolute(text[len(name) + 1 :])}")
        if name == _TABLE_SCHEME:
            return cls("table", text[len(name) + 1 :])
        if name in OBJECT_SCHEMES:
            return cls._of_uri(text)
        if _IS_TEXT.search(text):
            return cls("document", text)
        return cls._of_path(text)

    @classmethod
    def _of_uri(cls, uri: str) -> PolicyLocation:
        scheme, _, rest = uri.partition(":")
        if not rest.startswith("//"):
            raise ConfigurationError(
                f"policies {uri!r} was understood as the URI of a file, but lacks the two slashes after its scheme "
                f"(a pathlib.Path drops one of them); give it as text, such as {scheme}://{rest.lstrip('/')}"
            )
        return cls("object", uri)

    @classmethod
    def _of_path(cls, path: str) -> PolicyLocation:
        scheme = _SCHEME.match(path)
        name = "" if scheme is None else scheme[1].lower()
        if name in OBJECT_SCHEMES:
            return cls._of_uri(path)
        if name == "memory":
            raise ConfigurationError(f"policies {path!r} is a store that ends with its process; {_REMEDY}")
        if scheme is not None and path.startswith("//", scheme.end()):
            known = (*OBJECT_SCHEMES, *_STORE_SCHEMES)
            raise ConfigurationError(
                f"policies {path!r} was understood as a URI, but the scheme {name}: cannot be followed; use one of "
                f"{', '.join(known)}{did_you_mean(name, known)}"
            )
        if name == "dbfs":
            return cls("file", file_system(path)[1])
        return cls("file", str(Path(path).absolute()))

    @property
    def is_on_disk(self) -> bool:
        """Whether a look at the policies costs next to nothing: no request to a store.

        Examples
        --------
        >>> places = ("{}", "/lake/p.yaml", "s3://b/p.yaml", "delta:/lake", "delta:s3a://b/lake", "file:/lake")
        >>> [PolicyLocation.parse(each).is_on_disk for each in places]
        [True, True, False, True, False, True]
        """
        if self.kind in ("document", "file", "table"):
            return True
        scheme = _SCHEME.match(self.place.partition(":")[2] if self.kind == "store" else self.place)
        return scheme is None or scheme[1].lower() not in OBJECT_SCHEMES

    # --------------------------------------------------------------------------------------- from process to process

    def to_options(self) -> dict[str, str]:
        """Return the location as an option of a data source."""
        return {_OPTIONS[self.kind]: self.place if self.rows is None else to_json(self.rows).decode()}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> PolicyLocation:
        """Return the location that `to_options` wrote; the names of the options may have been turned to lower case."""
        found = {kind: options[name.lower()] for kind, name in _OPTIONS.items() if name.lower() in options}
        if len(found) != 1:
            raise ConfigurationError(f"give one of the options {', '.join(_OPTIONS.values())}; got {list(found)}")
        ((kind, place),) = found.items()
        if kind == "table":
            rows = of_json(TableRows, place, "the policy table in the options")
            return cls(kind, rows.table, rows)
        return cls(kind, place)

    # ------------------------------------------------------------------------------------------------- reading policies

    def load(self) -> PolicyDocument:
        """Return the policies as they are now.

        Raises
        ------
        PolicyError
            If they cannot be applied.
        ConfigurationError
            If the file does not exist or cannot be read.
        StoreUnavailableError
            If the store does not exist or cannot be read.
        """
        if self.kind == "store":
            return document_of(open_store(self.place).scan(), what=self.place)
        if self.kind == "document":
            return parse_policies(self.place)
        if self.kind == "table":
            if self.rows is None:
                raise ConfigurationError(
                    f"the policy table {self.place} is read through the catalog of a Spark session, by a query that "
                    f"`write_stream` starts"
                )
            return self.rows.document()
        try:
            return parse_policies(self._read())
        except PolicyError as error:
            raise PolicyError(error.path, f"{error.problem} (in {self.place!r})") from None

    def queue(self) -> QueuePolicy:
        """Return the part of the policies that bounds the queue; from a store, only this part is read."""
        if self.kind != "store":
            return self.load().queue
        entry = open_store(self.place).get("queue", "")
        stored = EMPTY["queue"] if entry is None else policy_of(entry, what=self.place)
        assert isinstance(stored, QueuePolicy)  # noqa: S101 - the policy of this kind
        return stored

    def _read(self) -> bytes:
        try:
            if self.kind == "file":
                return Path(self.place).read_bytes()
            files, path = file_system(self.place)
            content = read_object(files, path)
        except FileNotFoundError:
            problem = "does not exist"
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {error}"
        else:
            return content
        what = "the path of a file" if self.kind == "file" else "the URI of a file"
        raise ConfigurationError(f"policies {self.place!r} was understood as {what}, which {problem}; {_REMEDY}")


def load_policies(source: Policies) -> PolicyDocument:
    """Return the checked policy document of `source`.

    Parameters
    ----------
    source : str, os.PathLike, Mapping or PolicyDocument
        A document or the place of one, by the rules of this module.

    Raises
    ------
    PolicyError
        If the document cannot be applied.
    ConfigurationError
        If the file cannot be read.
    StoreUnavailableError
        If the store cannot be read.

    Examples
    --------
    >>> load_policies("tenants: {acme: {publish: {mesages_per_second: 5}}}")
    Traceback (most recent call last):
    ...
    spark_throttle.errors.PolicyError: tenants.acme.publish.mesages_per_second: unknown key; did you mean \
messages_per_second?
    """
    if isinstance(source, PolicyDocument):
        return source
    if isinstance(source, Mapping):
        return parse_document(source)
    return PolicyLocation.parse(source).load()


def _absolute(place: str) -> str:
    """Return a path that does not depend on the working directory; a URI never does."""
    return place if _SCHEME.match(place) or place.startswith("/") else str(Path(place).absolute())
