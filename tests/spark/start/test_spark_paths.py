"""Paths as Spark resolves them, against a session that is made up: another default file system, another directory."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.sinks.targets import Target
from spark_throttle.spark.start.spark_paths import SparkPaths


class _NotFoundError(AnalysisException):
    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"path": self.path}


class Session:
    """Refuses to read what is not there, as Spark does: by the whole name of the path."""

    def __init__(self, root: str, folder: str = "home/me", *, says: str = "parameters") -> None:
        self.root, self.folder, self.says = root, folder, says
        self.asked = 0

    @property
    def read(self) -> Session:
        return self

    def text(self, paths: list[str]) -> Any:
        assert len(paths) > 1, "of a single path that is missing, Spark logs a stack of sixty lines"
        path = paths[0]
        self.asked += 1
        whole = self.root + path if path.startswith("/") else f"{self.root}/{self.folder}/{path}"
        if self.says == "parameters":
            raise _NotFoundError("no", whole)
        raise AnalysisException(
            f"[PATH_NOT_FOUND] Path does not exist: {whole}. SQLSTATE: 42K03" if self.says else "no"
        )


@pytest.mark.parametrize("says", ["parameters", "message"])
def test_path_without_a_scheme_is_of_sparks_default_file_system(says: str) -> None:
    session = Session("s3a://lake", says=says)
    paths: Any = SparkPaths(session)  # type: ignore[arg-type]
    assert paths.resolve("/ckpt/a b") == "s3a://lake/ckpt/a b"
    assert paths.resolve("/out") == "s3a://lake/out"
    assert session.asked == 1
    assert paths.resolve("ckpt") == "s3a://lake/home/me/ckpt"


def test_path_of_the_local_disk_is_plain_and_absolute() -> None:
    paths: Any = SparkPaths(Session("file:"))  # type: ignore[arg-type]
    assert [paths.resolve(path) for path in ("/ckpt", "ckpt/x", "file:/ckpt", "dbfs:/ckpt")] == [
        "/ckpt", "/home/me/ckpt/x", "file:/ckpt", "dbfs:/ckpt"
    ]  # fmt: skip


def test_path_that_spark_does_not_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Spark does not say where 'ckpt' is \(no\); give the path with its"):
        SparkPaths(Session("file:", says="")).resolve("ckpt")  # type: ignore[arg-type]


def test_targets_of_files_are_resolved_and_others_keep_their_path() -> None:
    paths = SparkPaths(Session("s3a://lake"))  # type: ignore[arg-type]
    found = [Target(kind, path="/out").resolved(paths).path for kind in ("delta", "parquet", "iceberg", None)]
    assert found == ["s3a://lake/out", "s3a://lake/out", "/out", "/out"]
    assert Target("delta", table="t").resolved(paths) == Target("delta", table="t")


def test_control_directory_is_in_the_checkpoint_unless_it_is_given() -> None:
    paths = SparkPaths(Session("s3a://lake"))  # type: ignore[arg-type]
    assert paths.query("/ckpt/") == ("s3a://lake/ckpt", "s3a://lake/ckpt/throttle")
    assert paths.query("/ckpt", "file:///control") == ("s3a://lake/ckpt", "file:///control")
    assert paths.query("file:/ckpt", "/control") == ("file:/ckpt", "s3a://lake/control")
