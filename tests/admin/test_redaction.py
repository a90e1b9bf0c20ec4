"""Secrets in texts for logs: how much work hiding them may be, and that hiding them hides nobody's change."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from typer.testing import CliRunner

from spark_throttle.admin import redaction
from spark_throttle.admin.redaction import AccessLogFilter, without_secrets, without_tokens
from spark_throttle.command_line.app import app
from spark_throttle.store.file.file_store import FileStore
from tests.admin.conftest import ServedApp

GOLD = "/admin/v2/resourcegroup/gold"
TOKEN = "throttle_0123456789ab_" + "S" * 43
SIGNED = "eyJhbGciOiJSUzI1NiJ9." + "P" * 400 + "." + "c2ln" * 80
OF_ANY_HEADER = "IHsiYWxnIjoiUlMyNTYifQ." + "P" * 400 + "." + "c2ln" * 80
STRANGE_NAMES = [
    "acme/" + "a" * 12 + "." + "b" * 12 + "." + "c" * 40,
    "acme/%" + "25" * 9 + "41",
    "acme/billing-service.eu-central-1a.sha-0123456789abcdef0123456789abcdef01234567",
    "acme/eyJhbGciOi.v2",
    "acme/" + "n" * 1019,
    "acme/" + "ü" * 509 + "n",
]
"""Names that look like a secret, or are as long as a name may be."""

SHAPES = {
    "one word": "a", "header": "eyJ", "header of two": "eyJaaaa.", "words": "a" * 12 + ".", "percent": "%",
    "encoded percent": "%25", "token": TOKEN, "prefix": "throttle_", "dots": ".",
    "three": "a" * 12 + "." + "b" * 39 + ".",
}  # fmt: skip


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every text that is searched and decoded."""
    found: list[int] = []

    def noted(text: str, **options: Any) -> str:
        found.append(len(text))
        return unquote(text, **options)

    monkeypatch.setattr(redaction, "unquote", noted)
    return found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_long_text_is_cut_before_it_is_searched(shape: str, searched: list[int]) -> None:
    text = "/" + (shape * 60_000)[:60_000]
    without_secrets(text, most=1000)
    without_tokens(text)
    path = logging.LogRecord("", 20, "", 0, '%s - "%s %s HTTP/%s" %d', ("", text, text, "1.1", 401), None)
    AccessLogFilter().filter(path)
    assert searched
    assert max(searched) < 10_000
    assert len(path.getMessage()) < 6000


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_search_of_a_text_costs_what_its_length_does(shape: str) -> None:
    # A search that begins anew at every character takes some hundred times as long as this allows.
    text = "/" + (shape * 400_000)[:400_000]
    begun = time.process_time()
    without_secrets(text, most=len(text))
    assert time.process_time() - begun < 20


@pytest.mark.slow
@pytest.mark.parametrize("secret", [TOKEN, SIGNED, OF_ANY_HEADER])
@pytest.mark.parametrize("encodings", [0, 1, 2])
def test_secret_that_the_cut_divides_is_hidden_wherever_the_cut_is(secret: str, encodings: int) -> None:
    text = secret
    for _ in range(encodings):
        text = "".join(f"%{byte:02x}" for byte in text.encode()) if text == secret else text.replace("%", "%25")
    for most in range(20, len(text) + 50, 7):  # later cuts are all in what follows the secret
        shown = without_secrets(f"/a/{text}/{'b' * 9000}", most=most)
        digested = shown.partition("... [sha256 ")[0]
        for _ in range(encodings):
            digested = unquote(digested)
        assert "SS" not in digested
        assert "PPPP" not in digested
        assert "c2lnc2ln" not in digested


def test_texts_that_differ_after_the_cut_are_told_apart() -> None:
    one, other = (without_secrets("a b " * 400 + end, most=1000) for end in "xy")
    assert one != other
    assert len(one) < 1100


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_audit_log_says_which_entry_was_changed_whatever_its_name_looks_like(in_memory: ServedApp, name: str) -> None:
    path = f"/admin/v2/policies/namespaces/{quote(name, safe='')}"
    for values in ({"publish": {"messages_per_second": 5}}, {"publish": {"messages_per_second": 5}}):
        assert in_memory.client().put(path, json=values).status_code == 200
    assert in_memory.client().delete(f"{path}?yes=true").status_code == 200
    made, same, removed = in_memory.audited
    assert [line["action"] for line in (made, same, removed)] == [f"PUT {path}", f"PUT {path}", f"DELETE {path}"]
    assert [line["changes"][0]["path"] for line in (made, removed)] == [f"namespaces.{name}"] * 2


@pytest.mark.parametrize("group", [name.removeprefix("acme/") for name in STRANGE_NAMES])
def test_audit_log_says_which_group_was_attached_whatever_its_name_looks_like(in_memory: ServedApp, group: str) -> None:
    client = in_memory.client()
    assert client.put(f"/admin/v2/policies/resource_groups/{quote(group, safe='')}", json={}).status_code == 200
    put = client.put("/admin/v2/policies/tenants/acme?yes=true", json={"resource_group": group})
    assert put.status_code == 200, put.text
    assert in_memory.audited[-1]["changes"][0]["after"] == {"resource_group": group}


def shows_secret(text: str) -> bool:
    """Return whether a secret is in a text, in whatever layer of percent-encoding."""
    while "SSSS" not in text:
        inner = unquote(text)
        if inner == text:
            return False
        text = inner
    return True


def one_character_encoded(rounds: int, percent: str) -> str:
    """Return a token of which one character is encoded, and its percent sign again and again."""
    encoded = "%6F"
    for _ in range(rounds):
        encoded = encoded.replace("%", percent)
    return TOKEN.replace("o", encoded, 1)


@pytest.mark.parametrize("rounds", range(24))
def test_token_is_hidden_in_a_name_however_often_it_is_encoded(rounds: int) -> None:
    whole = "".join(f"%{ord(character):02x}" for character in TOKEN)
    for _ in range(rounds):
        whole = whole.replace("%", "%25")
    names = [f"acme/{text}" for text in (one_character_encoded(rounds, "%25"), whole)]
    for name in names:
        assert shows_secret(name)
        shown = without_tokens(name)
        assert not shows_secret(shown), shown
        assert not shows_secret(without_secrets(name))
        assert "throttle_0123456789ab_[hidden]" in shown
        assert without_tokens(f"{name}x") != shown


@pytest.mark.parametrize("rounds", range(12))
def test_text_that_does_not_come_to_an_end_is_hidden_as_a_whole_and_still_told_apart(rounds: int) -> None:
    # Each round decodes one digit, which the next one needs.
    encoded = "%" * (rounds + 1) + "3" * rounds + "6F"
    name = f"acme/{TOKEN.replace('o', encoded, 1)}"
    assert shows_secret(name)
    for shown in (without_tokens(name), without_secrets(name)):
        assert not shows_secret(shown), shown
    assert without_tokens(name) != without_tokens(f"{name}x")
    assert without_tokens(name).startswith("acme/throttle_" if rounds < 7 else "[hidden] [sha256 ")


def test_names_with_tokens_are_hidden_and_still_told_apart(in_memory: ServedApp) -> None:
    client, encoded = in_memory.client(), TOKEN.replace("_", "%5F")
    for name in (f"acme/{TOKEN}", f"acme/{TOKEN}2", f"acme/{encoded}", f"acme/%61{encoded}", f"acme/a{encoded}"):
        path = f"/admin/v2/policies/namespaces/{quote(name, safe='')}"
        assert client.put(path, json={}).status_code == 200
    assert in_memory.audit is not None
    assert "SSSS" not in in_memory.audit.path.read_text()
    lines = in_memory.audited
    for said in ([line["action"] for line in lines], [line["changes"][0]["path"] for line in lines]):
        assert all("throttle_0123456789ab_[hidden]" in text for text in said)
        assert len(set(said)) == len(lines)


def test_longest_body_of_a_change_is_told_apart_from_another(in_memory: ServedApp) -> None:
    client = in_memory.client()
    for end in "xy":
        group = "ü" * 500 + end
        assert client.put(f"/admin/v2/policies/resource_groups/{quote(group)}", json={}).status_code == 200
        values = {"resource_group": group, "publish": {"messages_per_second": 5, "bytes_per_second": 1024}}
        assert client.put("/admin/v2/policies/tenants/acme?yes=true", json=values).status_code == 200
    after = [line["changes"][0]["after"] for line in in_memory.audited if line["changes"][0]["path"] == "tenants.acme"]
    assert [each["resource_group"][-1] for each in after] == ["x", "y"]


@pytest.mark.parametrize("encoded", [TOKEN, TOKEN.replace("_", "%5F")])
def test_token_in_a_reason_is_not_in_the_stores_history(in_memory: ServedApp, encoded: str) -> None:
    client = in_memory.client()
    assert client.put(GOLD, json={}, params={"why": f"as {encoded} said"}).status_code == 200
    assert client.delete(GOLD, params={"why": encoded, "yes": "true"}).status_code == 200
    assert in_memory.store.revision() == 2
    for revision in in_memory.store.history():
        assert "SSSS" not in revision.why
    assert in_memory.store.history()[-1].why == "as throttle_0123456789ab_[hidden] said"
    assert "SSSS" not in in_memory.client("viewer").get("/admin/v2/history").text


def test_token_in_a_reason_or_a_name_on_the_command_line_is_not_in_the_stores_history(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    FileStore.create(path)
    words = ["tenant", "create", "acme", "--store", f"file:{path}", "--who", f"ann {TOKEN}", "-m", f"with {TOKEN}"]
    assert CliRunner().invoke(app, words).exit_code == 0
    (made,) = FileStore(path).history()
    assert (made.who, made.why) == ("ann throttle_0123456789ab_[hidden]", "with throttle_0123456789ab_[hidden]")
    assert "SSSS" not in path.with_name("p.yaml.history").read_bytes().decode("latin-1")
