"""The mark of a query in a folder of dead letters outside its checkpoint: the folder is that query's alone.

Dead letters in files have one folder for each batch, by its number, and a batch that is run again replaces what is in
its folder. Two queries that were given one place would replace each other's rows. So the first that starts there leaves
its mark, and another one is refused. A copy of a checkpoint has the name of its original, and is not told from it here.
"""

from __future__ import annotations

from typing import Final

from spark_throttle.errors import CheckpointMismatchError
from spark_throttle.files.storage import Directory

MARK: Final = "_throttle_query"
"""The file of the mark; readers of tables leave out names with an underscore."""


def refuse_others_letters(folder: Directory, query: str) -> None:
    """Refuse a folder of dead letters that has the mark of another query.

    Raises
    ------
    CheckpointMismatchError
        If it has.
    """
    _refuse(folder, folder.read(MARK), query)


def _refuse(folder: Directory, found: bytes | None, query: str) -> None:
    if found is not None and found != _name(query):
        raise CheckpointMismatchError(
            f"the folder of dead letters {folder.location}",
            f"belongs to another query, by the mark {folder.shown(MARK)}: each of the two would replace what the other "
            f"rejects in a batch of the same number",
            "give this query a folder of its own; or, if the other one is gone, move all of the folder away",
        )


def mark_letters(folder: Directory, query: str) -> None:
    """Leave the mark of a query in its folder of dead letters.

    Raises
    ------
    CheckpointMismatchError
        If another query left its own.
    """
    found = folder.read(MARK)
    if found is None:
        folder.write(MARK, _name(query))
        found = folder.read(MARK)  # another query may have written at the same time
    _refuse(folder, found, query)


def _name(query: str) -> bytes:
    """Return the name of a query in all its lines (`manifest.next_line`)."""
    return query.partition("-")[0].encode()
