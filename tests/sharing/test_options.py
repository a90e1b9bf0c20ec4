"""The settings with which a job takes part in sharing: a wrong one is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.sharing.settings import ExchangeOptions, ShareSettings


@pytest.mark.parametrize("job", ["", "two\nlines", 7, ["a name"], False])
def test_job_that_is_no_name_of_one_line_is_refused(job: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"exchange\.job is .*; give a name of one line"):
        ExchangeOptions.parse({"path": "/exchange", "job": job})


@pytest.mark.parametrize("job", [None, "a", "the job of the north"])
def test_job_has_a_name_of_one_line_or_none(job: str | None) -> None:
    options = ExchangeOptions.parse({"path": "/exchange", "job": job})
    assert options.job == job
    assert ExchangeOptions.from_json(options.to_json()) == options


def test_lease_lasts_as_long_as_the_book_says() -> None:
    settings = ShareSettings(interval_ms=1_000, lease_ms=10_000)
    times = (settings.hold_ms, settings.margin_ms, settings.dead_after_ms, settings.forget_ms)
    assert times == (5_000, 1_000, 6_000, 1_000_000)
