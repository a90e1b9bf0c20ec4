"""What `policies` is, is told by what was given alone, and an error says what it was taken for."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.errors import ConfigurationError, PolicyError, StoreUnavailableError
from spark_throttle.files.storage import file_system
from spark_throttle.policy.codec import dump_policies
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.store import policy_location
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.policy_location import PolicyLocation, load_policies
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author

DOCUMENT = "job: {publish: {messages_per_second: 5}}"


@pytest.mark.parametrize(
    ("given_as", "kind"),
    [
        ("", "document"),
        ("# nothing\n{}", "document"),
        ("{}", "document"),
        (" {job: {}} ", "document"),
        ('{"job":{}}', "document"),
        ("job: {}", "document"),
        ("job:", "document"),
        ("job: {publish: {", "document"),
        ({"job": {}}, "document"),
        (PolicyDocument(), "document"),
        ("p.yaml", "file"),
        ("/lake/{env}/p.yaml", "file"),
        ("{env}/p.yaml", "file"),
        ("a:b.yaml", "file"),
        ("C:/p.yaml", "file"),
        (Path("job: {}"), "file"),
        (Path("delta:/lake"), "file"),
        ("dbfs:/lake/p.yaml", "file"),
        ("/Volumes/main/a/b/p.yaml", "file"),
        ("s3://bucket/p.yaml", "object"),
        ("s3a://bucket/{env}/p.yaml", "object"),
        ("GS://bucket/p.yaml", "object"),
        ("abfss://c@account.dfs.core.windows.net/p.yaml", "object"),
        ("hdfs://host:9000/p.yaml", "object"),
        ("delta:/lake/policies", "store"),
        ("delta:/lake/a: b", "store"),
        ("delta:s3://bucket/policies", "store"),
        ("file:/lake/p.yaml", "store"),
        ("file:///lake/p.yaml", "store"),
    ],
)
def test_what_policies_are_is_told_by_what_was_given(given_as: Any, kind: str) -> None:
    location = PolicyLocation.parse(given_as)
    assert location.kind == kind
    options = {name.lower(): value for name, value in location.to_options().items()}  # as Spark gives them back
    assert PolicyLocation.from_options(options) == location


@pytest.mark.parametrize(
    ("given_as", "said"),
    [
        (5, "policies is 5; give the path of a YAML file"),
        (None, "policies is None; give the path"),
        ("https://host/p.yaml", "the scheme https: cannot be followed"),
        ("gcss://host/p.yaml", "did you mean gcs"),
        ("s3:/bucket/p.yaml", "such as s3://bucket/p.yaml"),
        (PurePosixPath("s3://bucket/p.yaml"), "such as s3://bucket/p.yaml"),
        ("delta:", "names no place; give the path"),
        ("file:", "names no place; give the path"),
        ("table:", "names no place; give the path"),
        ("memory:", "names no place; give the path"),
        ("memory:x", "ends with its process"),
    ],
)
def test_what_cannot_be_followed_is_refused(given_as: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PolicyLocation.parse(given_as)


@pytest.mark.slow
@given(st.text(max_size=20))
def test_every_text_is_something_or_refused(text: str) -> None:
    try:
        location = PolicyLocation.parse(text)
    except ConfigurationError:
        return
    assert location.kind in ("document", "file", "object", "store", "table")
    assert location.kind == "document" or location.place.strip()


@given(st.builds(PolicyDocument))
def test_document_that_was_dumped_is_a_document(document: PolicyDocument) -> None:
    assert PolicyLocation.parse(dump_policies(document)).load() == document


def test_paths_do_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = [PolicyLocation.parse(each).place for each in ("p.yaml", "delta:policies", "file:p.yaml", Path("p.yaml"))]
    assert found == [
        f"{tmp_path}/p.yaml",
        f"delta:{tmp_path}/policies",
        f"file:{tmp_path}/p.yaml",
        f"{tmp_path}/p.yaml",
    ]


def test_each_kind_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = load_policies(DOCUMENT)
    path = tmp_path / "{env}" / "p.yaml"
    path.parent.mkdir()
    path.write_text(DOCUMENT)
    store = DeltaStore.create(str(tmp_path / "policies"))
    PolicyService(store, clock_ms=lambda: 0).apply(document, Author("ann", "a test"))
    monkeypatch.setattr(
        policy_location, "file_system", lambda uri: file_system(uri.replace("s3://b", str(path.parent)))
    )
    for policies in (
        document,
        DOCUMENT,
        path,
        str(path),
        "s3://b/p.yaml",
        f"delta:{tmp_path}/policies",
        f"file:{path}",
    ):
        assert load_policies(policies) == document
        assert PolicyLocation.parse(policies).queue() == document.queue


def test_missing_file_is_told_with_what_the_text_was_understood_as(tmp_path: Path) -> None:
    missing = str(tmp_path / "{env}.yaml")
    with pytest.raises(ConfigurationError, match="was understood as the path of a file, which does not exist; give"):
        load_policies(missing)


def test_missing_object_is_told_with_what_the_text_was_understood_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_location, "file_system", lambda uri: file_system(uri.replace("s3://b", str(tmp_path))))
    with pytest.raises(ConfigurationError, match="was understood as the URI of a file, which does not exist; give"):
        load_policies("s3://b/p.yaml")


def test_directory_is_told_to_be_no_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"was understood as the path of a file, which cannot be read: .*irectory"
    ):
        load_policies(tmp_path)


def test_missing_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no policy store"):
        load_policies(f"delta:{tmp_path}/nowhere")


def test_file_that_cannot_be_applied_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("jobs: {}")
    with pytest.raises(PolicyError, match=r"jobs: unknown key.*\(in .*p\.yaml"):
        load_policies(tmp_path / "p.yaml")


@pytest.mark.parametrize("options", [{}, {"policytext": "{}", "policyfile": "p.yaml"}])
def test_options_of_no_or_two_kinds_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="give one of the options policyText, policyFile"):
        PolicyLocation.from_options(options)
