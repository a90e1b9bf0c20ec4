"""Delta tables whose catalog commits, with Delta's own commit coordinator in the memory of the JVM as the catalog.

A commit is a file below `_delta_log/_staged_commits` until the coordinator copies it into the log: every fifth version
does that for those before. So whoever reads the log alone sees an older table. The coordinator of Unity Catalog, which
asks its server, is not to be had without that server's connector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

STAGED: Final = "_delta_log/_staged_commits"
_VERSIONS_BETWEEN: Final = 5
_PACKAGE: Final = "org.apache.spark.sql.delta.coordinatedcommits"
_TESTING: Final = "spark.testing"
"""Without it Delta makes such tables in Unity Catalog alone."""


def create_table(spark: SparkSession, name: str, columns: str, location: Path) -> None:
    """Create such a table in `spark_catalog`, unless it is there."""
    jvm: Any = spark._jvm
    coordinators = jvm.Class.forName(f"{_PACKAGE}.CatalogOwnedCommitCoordinatorProvider$").getField("MODULE$").get(None)
    if coordinators.getBuilder("spark_catalog").isEmpty():
        coordinated = jvm.org.apache.spark.sql.delta.coordinatedcommits
        builder = coordinated.InMemoryCommitCoordinatorBuilder(_VERSIONS_BETWEEN)
        coordinators.registerBuilder("spark_catalog", builder)
    jvm.System.setProperty(_TESTING, "true")
    try:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING delta LOCATION '{location}' "
            f"TBLPROPERTIES (delta.feature.catalogManaged = 'supported')"
        )
    finally:
        jvm.System.clearProperty(_TESTING)


def bring_up_the_log(spark: SparkSession, name: str, location: Path) -> None:
    """Commit until the log has all versions."""
    for number in range(_VERSIONS_BETWEEN):
        newest = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]
        if (location / "_delta_log" / f"{newest['version']:020}.json").exists():
            return
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (tests.brought = '{number}')")
    raise AssertionError(f"the log of {name} stays behind the table")
