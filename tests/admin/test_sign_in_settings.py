"""The settings of a sign-in by OpenID Connect, and a server that is started with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.admin.sign_in import FRESH_SECONDS, PAUSE_SECONDS, STALE_SECONDS
from spark_throttle.admin.sign_in_settings import read_settings
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.command_line.serve import serve as serve_for_ever
from spark_throttle.errors import ConfigurationError
from tests.admin.openid_provider import provider_on_loopback
from tests.admin.raw_http import asked, request
from tests.admin.server_process import server_process
from tests.sessions import ROOT

RULES: list[dict[str, Any]] = [{"claim": "groups", "value": "platform", "role": "admin"}]

GOOD: dict[str, Any] = {"issuer": "https://login.example.org", "audience": "x", "roles": RULES}


@pytest.mark.parametrize(("change", "said"), [
    ({"issuer": "http://login.example.org"}, "no https URL"), ({"issuer": "ftp://x"}, "no https URL"),
    ({"issuer": "https://x?y=1"}, "no https URL"), ({"issuer": ""}, "issuer"), ({"issuer": None}, "issuer"),
    ({"audience": ""}, "audience"), ({"audience": []}, "audience"), ({"audience": None}, "audience"),
    ({"roles": []}, "roles"), ({"roles": None}, "roles"), ({"algorithms": ["HS256"]}, "algorithms"),
    ({"algorithms": ["none"]}, "algorithms"), ({"algorithms": []}, "algorithms"), ({"leeway_seconds": 301}, "leeway"),
    ({"leeway_seconds": -1}, "leeway"), ({"secret": "x"}, "secret"),
    ({"roles": [{"claim": "a", "value": "b", "role": "boss"}]}, "roles.0.role"),
    ({"roles": [{"claim": "a", "value": "b", "role": "tenant_admin"}]}, "needs either tenant or tenant_claim"),
    ({"roles": [{"claim": "a", "value": "b", "role": "tenant_admin", "tenant": "x", "tenant_claim": "y"}]}, "either"),
    ({"roles": [{"claim": "a", "value": "b", "role": "admin", "tenant": "x"}]}, "has no tenant"),
    ({"roles": [{"claim": "a", "value": "b", "role": "tenant_admin", "tenant": "a/*"}]}, "single tenant"),
    ({"roles": [{"claim": "a", "value": "", "role": "admin"}]}, "roles.0.value"),
    ({"roles": [{"claim": "a", "value": 7, "role": "admin"}]}, "roles.0.value"),
    ({"roles": [{"claim": "a", "role": "admin"}]}, "roles.0.value"),
    ({"roles": [{"claim": [], "value": "b", "role": "admin"}]}, "roles.0.claim"),
    ({"roles": [{"value": "b", "role": "admin"}]}, "roles.0.claim"),
])  # fmt: skip
def test_settings_that_cannot_work_are_refused_before_the_server_begins(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    file = tmp_path / "openid.yaml"
    file.write_text(json.dumps(GOOD))
    assert read_settings(str(file)).audiences == ["x"]
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigurationError, match=said):
        serve_for_ever(store="memory:", tokens=str(tmp_path / "tokens.json"), openid=str(file))


@pytest.mark.parametrize("text", ["{", "[]", "", "issuer: a\nissuer: b"])
def test_settings_that_are_no_settings_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "openid.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="the sign-in settings"):
        read_settings(str(file))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_settings(str(tmp_path / "none.yaml"))


@pytest.mark.slow
def test_server_process_lets_a_signed_in_caller_in_and_needs_no_token_then(tmp_path: Path) -> None:
    file, tokens = tmp_path / "openid.yaml", TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    with provider_on_loopback() as provider:
        file.write_text(json.dumps({**GOOD, "issuer": provider.issuer, "audience": "spark-throttle"}))
        far_s = 4_000_000_000
        good = provider.signed(provider.claims(0, exp=far_s))
        old = provider.signed(provider.claims(0, exp=1))
        with server_process(tmp_path, tokens, "--openid", str(file)) as server:
            assert json.loads(asked(server.port, request(good)).body)["role"] == "admin"
            assert asked(server.port, request(old)).problem["status"] == 401
            said = server.log.read_text()
    assert good.rpartition(".")[2] not in said


def test_settings_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    _, _, page = (ROOT / "docs" / "admin.md").read_text().partition("## Sign-in by OpenID Connect")
    file = tmp_path / "openid.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    settings = read_settings(str(file))
    assert settings.role_of({"groups": ["auditors"]}) == ("viewer", None)
    assert settings.role_of({"realm_access": {"roles": ["customer"]}, "org": "blue"}) == ("tenant_admin", "blue")
    said = page.partition("## The audit log")[0]
    assert all(f"`{algorithm}`" in said for algorithm in settings.algorithms)
    assert f"`leeway_seconds` ({settings.leeway_seconds})" in said
    assert f"asked for again after {FRESH_SECONDS // 60} minutes" in said
    assert f"within {PAUSE_SECONDS} s of the last time" in said
    assert STALE_SECONDS == 3600
    assert "trusted for an hour" in said
