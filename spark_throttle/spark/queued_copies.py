"""The copies of waiting rows, as Spark reads them for an audit or a drain: with the place of each row beside it.

A query that decides on references has copies of two kinds (`references.waiting_rows`). A copy of rows has their places
as columns. A copy of a whole file has the file's number in its name, and Spark tells the position of each row in it.
Both have rows that do not wait any more, or never did: the state says which wait.
"""

from __future__ import annotations

import json
import operator
from functools import partial, reduce
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.record import of_json
from spark_throttle.spark.references.waiting_copies import FILE, ROW, with_places
from spark_throttle.spark.references.waiting_rows import ACCOUNT, CopyKind, WaitingAccount, account_name

_NUMBER: Final = r"/(\d+)[^/]*$"
"""The number of a file in the path of its copy."""

_NO_PATH: Final = "PATH_NOT_FOUND"

_joined = partial(DataFrame.unionByName, allowMissingColumns=True)


def account_after(spark: SparkSession, control_path: str, batch: int) -> WaitingAccount:
    """Return the account that a batch has left, of which rows wait.

    Spark reads it: a client of Spark Connect need not see the control directory.

    Raises
    ------
    DamagedError
        If it is gone.
    """
    path = f"{control_path}/{account_name(batch)}"
    try:
        found = spark.read.text(path, wholetext=True).collect()
    except AnalysisException as error:
        if error.getCondition() != _NO_PATH:
            raise
        raise DamagedError(f"{ACCOUNT} {path}", "it is gone", RESTORE_CHECKPOINT) from error
    account = of_json(WaitingAccount, found[0]["value"], f"{ACCOUNT} {path}")
    if not account.held:
        raise DamagedError(f"{ACCOUNT} {path}", "it names no copies, and rows wait", RESTORE_CHECKPOINT)
    return account


def copies_of(spark: SparkSession, control_path: str, account: WaitingAccount, schema: StructType | None) -> DataFrame:
    """Return the rows of the copies in folders of which rows wait, of those files alone for which a folder stands.

    A batch that was undone may have left a folder with other rows of the same places.

    Parameters
    ----------
    schema
        The columns of the rows; by default those of the source in the batch.
    """
    if schema is None and account.schema:
        schema = StructType.fromJson(json.loads(account.schema))
    reader = _reader(spark).option("mergeSchema", "true")
    found = []
    for folder in account.held:
        path, is_whole = f"{control_path}/{folder.name}", folder.kind == CopyKind.FILES
        rows = _of_files(reader, path, schema) if is_whole else _of_rows(reader, path, schema)
        found.append(rows.where(reduce(operator.or_, (F.col(FILE).between(*each) for each in folder.ranges))))
    return reduce(_joined, found)


def _reader(spark: SparkSession) -> DataFrameReader:
    return spark.read.option("recursiveFileLookup", "true")  # or the folders' names would be a column


def _of_rows(reader: DataFrameReader, path: str, schema: StructType | None) -> DataFrame:
    return (reader if schema is None else reader.schema(with_places(schema))).parquet(path)


def _of_files(reader: DataFrameReader, path: str, schema: StructType | None) -> DataFrame:
    rows = (reader if schema is None else reader.schema(schema)).parquet(path)
    number = F.regexp_extract(F.col("_metadata.file_path"), _NUMBER, 1).cast("long")
    return rows.select("*", number.alias(FILE), F.col("_metadata.row_index").alias(ROW))
