"""`make api-load`, small: every valid caller is answered while strangers are there."""

from __future__ import annotations

import json

import pytest

from tests.admin.proxy_process import NGINX
from tests.benchmarks import api_load


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [["--direct"], pytest.param([], marks=pytest.mark.skipif(NGINX is None, reason="no nginx to put in front"))],
    ids=["direct", "behind nginx"],
)
def test_every_valid_caller_is_answered_beside_strangers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: list[str]
) -> None:
    sizes = ("--seconds", "2", "--silent", "60", "--slow", "40", "--per-second", "40", *way)
    monkeypatch.setattr("sys.argv", ["api_load", *sizes])
    api_load.main()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["valid"] == said["answered"] > 60
    assert len(said["server_mib"]) == api_load.LOOKS
