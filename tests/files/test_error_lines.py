"""What `deltalake` says in several lines is told in one, and what is wrong stands at its end."""

from __future__ import annotations

import pytest

from spark_throttle.errors import StoreUnavailableError
from spark_throttle.files.storage import one_line
from spark_throttle.store.delta.delta_store import DeltaStore
from tests.loopback import closed_port


def test_wrapped_causes_of_an_error_are_joined_as_they_were() -> None:
    error = OSError(
        "Kernel error -> Generic S3 error\n    \x1b[31m↳\x1b[0m Error performing GET http://lake in 6s, max_retries\n"
        "     \x1b[31m↳\x1b[0m 10 - HTTP error\n      \x1b[31m↳\x1b[0m Connection refused (os error 111)\n"
    )
    assert one_line(error) == (
        "Kernel error -> Generic S3 error: Error performing GET http://lake in 6s, max_retries: 10 - HTTP error: "
        "Connection refused (os error 111)"
    )


def test_other_lines_are_left_out_and_a_long_line_keeps_both_ends() -> None:
    assert one_line(ValueError("no such key\nat line 3")) == "no such key"
    line = one_line(ValueError("a" + "-" * 5_000 + "z"))
    assert len(line) < 1_010
    assert line[0] + line[-1] == "az"


def test_store_that_refuses_the_connection_and_one_without_credentials_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    options = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port()}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "here",
        "max_retries": "0",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    with pytest.raises(StoreUnavailableError, match=r"Generic S3 error: .*: Connection refused \(os error 111\)$"):
        DeltaStore("s3://lake/policies", storage_options=options)
    no_credentials = OSError("Generic S3 error\n ↳ Error performing PUT http://169.254.169.254/latest/api/token\n")
    assert one_line(no_credentials).endswith("where this process runs)")
