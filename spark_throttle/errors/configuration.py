"""What a caller gave, a policy or a setting, cannot work: fix it, then try again."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial
from typing import Any

from spark_throttle.errors.throttle_error import ThrottleError
from spark_throttle.remedies import Remedy


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or an empty string if none is near.

    Examples
    --------
    >>> did_you_mean("mesages_per_second", ["bytes_per_second", "messages_per_second"])
    '; did you mean messages_per_second?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class PolicyError(ThrottleError):
    """A policy document cannot be applied; `path` names the field at fault.

    Examples
    --------
    >>> str(PolicyError("resource_groups.gold.publish.weight", "0 is less than 1; give a whole number"))
    'resource_groups.gold.publish.weight: 0 is less than 1; give a whole number'
    """

    def __init__(self, path: str, problem: str, door_remedy: Remedy | None = None) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem, door_remedy)

    def __reduce__(self) -> tuple[type[PolicyError], tuple[str, str, Remedy | None]]:
        return (type(self), (self.path, self.problem, self.door_remedy))


class StoredPolicyError(PolicyError):
    """The document that a store holds cannot be applied: somebody edited it, and the caller is not at fault."""


class ConfigurationError(ThrottleError):
    """A call or a job setting cannot work as given."""


class NotInstalledError(ConfigurationError):
    """Something that a query needs is not installed where it runs: install it there, then start again.

    Examples
    --------
    >>> str(NotInstalledError("pandas", "the Python of the executors", "install it there"))
    'pandas is missing in the Python of the executors: install it there (docs/install.md)'
    """

    def __init__(self, what: str, where: str, remedy: str) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(f"{what} is missing in {where}: {remedy} (docs/install.md)")

    def __reduce__(self) -> tuple[type[NotInstalledError], tuple[str, str, str]]:
        return (type(self), (self.what, self.where, self.remedy))


class CheckpointMismatchError(ConfigurationError):
    """The checkpoint and something that its query has written do not share one history.

    Restoring an older checkpoint undoes batches, and their numbers are then given to other rows: to go on would lose
    rows or double them. Nothing has been written.
    """

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what} {problem}: {remedy} (docs/changing-a-job.md)")

    def __reduce__(self) -> tuple[type[CheckpointMismatchError], tuple[str, str, str]]:
        return (type(self), (self.what, self.problem, self.remedy))


class DrainedError(ConfigurationError):
    """The waiting rows of the checkpoint were written elsewhere: a query that admits them too would double them.

    Examples
    --------
    >>> print(DrainedError(12, "/lake/waiting", "/ckpt/throttle/drained.json").args[0].partition(":")[0])
    this checkpoint was drained at batch 12
    """

    def __init__(self, batch: int, into: str, note: str, *, is_finished: bool = True) -> None:
        self.batch = batch
        self.into = into
        self.note = note
        self.is_finished = is_finished
        remedy = (
            f"start with a new checkpoint from the positions that the drain names; only to go on with this one, remove "
            f"the rows there, then {note}"
            if is_finished
            else f"drain it again into the same place; only to go on with it, remove what is there of it, then {note}"
        )
        what = "was drained" if is_finished else "was being drained"
        where = f"its waiting rows {'are' if is_finished else 'may be'} in {into}"
        super().__init__(f"this checkpoint {what} at batch {batch}: {where}; {remedy} (docs/streams.md)")

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(type(self), is_finished=self.is_finished), (self.batch, self.into, self.note))


class DefinitionChangedError(ConfigurationError):
    """An uncommitted batch that is already in a sink would now be decided differently."""

    def __init__(self, batch: int, differences: str, note: str) -> None:
        self.batch = batch
        self.differences = differences
        self.note = note
        super().__init__(
            f"batch {batch} is not committed, and an earlier attempt has written rows of it that would now be decided "
            f"differently: {differences}; start once with the old definition, then with the new one (or remove {note}, "
            f"if rows of this batch may be lost and doubled)"
        )

    def __reduce__(self) -> tuple[type[DefinitionChangedError], tuple[int, str, str]]:
        return (type(self), (self.batch, self.differences, self.note))


class ForeignFilesError(ConfigurationError):
    """A Delta table takes no files that Spark did not write; through Spark's writer it takes rows.

    Examples
    --------
    >>> str(ForeignFilesError("s3://lake/orders", "it has the table feature rowTracking")).partition(";")[0]
    's3://lake/orders takes no files that Spark did not write: it has the table feature rowTracking'
    """

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(self._message())

    def _message(self) -> str:
        return (
            f"{self.what} takes no files that Spark did not write: {self.why}; restart the query to use Spark's writer"
        )

    def __reduce__(self) -> tuple[type[ForeignFilesError], tuple[str, str]]:
        return (type(self), (self.what, self.why))


class TableOutOfReachError(ForeignFilesError):
    """The store of a Delta table does not answer this process, though it was asked again and again.

    Examples
    --------
    >>> print(TableOutOfReachError("s3://lake/orders", "Connection refused"))
    the store of the Delta table s3://lake/orders does not answer: Connection refused; start again when it does
    """

    def _message(self) -> str:
        return f"the store of the Delta table {self.what} does not answer: {self.why}; start again when it does"
