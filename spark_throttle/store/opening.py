"""Which store a location names: `delta:<path or URI>`, `file:<path>` or `memory:`."""

from __future__ import annotations

from typing import Final

from spark_throttle.errors import ConfigurationError
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
    raise ConfigurationError(f"{location!r} names no policy store; write {_FORMS}")
