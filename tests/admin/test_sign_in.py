"""Sign-in by OpenID Connect against a provider on loopback: who is let in, as whom, and what is refused."""

from __future__ import annotations

import base64
import hmac
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey
from joserfc.jws import JWSRegistry
from starlette.testclient import TestClient

from spark_throttle.admin.sign_in import FRESH_SECONDS, LONGEST_TOKEN, PAUSE_SECONDS, STALE_SECONDS, SignIn
from spark_throttle.admin.sign_in_settings import SignInSettings
from spark_throttle.store.memory_store import MemoryStore
from tests.admin.conftest import START_MS, ServedApp
from tests.admin.openid_provider import DISCOVERY, KEYS, Provider, made_key, provider_on_loopback

CALLER = "/admin/v2/caller"
GOLD = "/admin/v2/resourcegroup/gold"
LEEWAY = 30
RULES: list[dict[str, Any]] = [
    {"claim": "groups", "value": "platform", "role": "admin"},
    {"claim": "groups", "value": "acme-operators", "role": "tenant_admin", "tenant": "acme"},
    {"claim": ["realm_access", "roles"], "value": "customer", "role": "tenant_admin", "tenant_claim": "org"},
    {"claim": "department", "value": "audit", "role": "viewer"},
]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provider_on_loopback() as served:
        yield served


class World:
    """A server that believes a provider."""

    def __init__(self, served: ServedApp, provider: Provider) -> None:
        self.served = served
        self.provider = provider

    def get(self, text: str, path: str = CALLER) -> Any:
        return TestClient(self.served.app).get(path, headers={"Authorization": f"Bearer {text}"})

    def token(self, **claims: Any) -> str:
        return self.provider.signed(self.provider.claims(self.served.clock[0], **claims))

    def passes(self, *, seconds: float) -> None:
        self.served.monotonic[0] += round(seconds * 1000)


@pytest.fixture
def believing(provider: Provider, tmp_path: Path, serve: Callable[..., ServedApp]) -> Callable[..., World]:
    def make(**settings: Any) -> World:
        given = {"issuer": provider.issuer, "audience": "spark-throttle", "roles": RULES, **settings}
        clocks: list[list[int]] = []
        sign_in = SignIn(
            SignInSettings.model_validate(given),
            clock_ms=lambda: clocks[0][0],
            monotonic_ms=lambda: clocks[1][0],
        )
        served = serve(MemoryStore(), sign_in=sign_in)
        clocks += [served.clock, served.monotonic]
        return World(served, provider)

    return make


@pytest.fixture
def world(believing: Callable[..., World]) -> World:
    return believing()


# ------------------------------------------------------------------------------------------------- who is let in


def test_caller_of_the_provider_is_let_in_beside_those_with_a_token(world: World) -> None:
    assert world.get(world.token()).json() == {
        "name": "ann", "token": f"ann-7 at {world.provider.issuer}", "role": "admin", "tenant": None,
    }  # fmt: skip
    assert world.get(world.served.tokens["viewer"]).json()["role"] == "viewer"
    assert world.get(world.served.tokens["viewer"] + "x").status_code == 401


def test_change_of_a_signed_in_caller_has_its_subject_and_issuer_in_history_and_audit(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.token()}"}
    assert TestClient(world.served.app).put(GOLD, json={}, headers=headers).status_code == 200
    (entry,) = world.served.service.history()
    identity = f"signed in as ann-7 at {world.provider.issuer}"
    assert (entry.who, entry.door, entry.caller) == (f"ann ({identity})", "api", identity)
    (line,) = world.served.audited
    assert (line["caller"], line["who"], line["role"]) == (identity, "ann", "admin")


@pytest.mark.parametrize(("kind", "algorithm"), [
    ("RSA", "RS256"), ("RSA", "PS256"), ("P-256", "ES256"), ("P-384", "ES384"), ("Ed25519", "Ed25519"),
])  # fmt: skip
def test_signature_with_each_kind_of_key_is_checked(believing: Callable[..., World], kind: str, algorithm: str) -> None:
    world = believing(algorithms=[algorithm])
    key, other = made_key(f"of-{kind}", kind), made_key(f"other-{kind}", kind)
    world.provider.keys = [made_key("first"), key]
    claims = world.provider.claims(START_MS)
    assert world.get(world.provider.signed(claims, key=key, algorithm=algorithm)).status_code == 200
    wrong = world.provider.signed(claims, key=other, algorithm=algorithm, kid=key.kid)
    assert world.get(wrong).status_code == 401


@pytest.mark.parametrize("audience", ["spark-throttle", ["account", "spark-throttle"]])
def test_audience_may_be_one_of_several(world: World, audience: object) -> None:
    assert world.get(world.token(aud=audience)).status_code == 200


@pytest.mark.parametrize("typ", ["JWT", "at+jwt", "application/at+jwt", None])
def test_types_of_tokens_that_identify_a_caller_are_taken(world: World, typ: str | None) -> None:
    claims = world.provider.claims(START_MS)
    assert world.get(world.provider.signed(claims, typ=typ)).status_code == 200


# ------------------------------------------------------------------------------------------------ what is refused


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


NOW = START_MS // 1000
BAD_CLAIMS: list[dict[str, Any]] = [
    {"exp": NOW - LEEWAY}, {"exp": NOW - LEEWAY - 1}, {"exp": 0}, {"exp": None}, {"exp": "never"}, {"exp": True},
    {"exp": [NOW + 60]}, {"exp": float("nan")}, {"exp": float("inf")}, {"exp": str(NOW + 60)},
    {"nbf": NOW + LEEWAY + 1}, {"nbf": "soon"}, {"iat": NOW + LEEWAY + 1},
    {"aud": "somebody-else"}, {"aud": None}, {"aud": ["a", "b"]}, {"aud": []}, {"aud": ""}, {"aud": "spark-throttle2"},
    {"aud": {"spark-throttle": 1}}, {"aud": ["spark-throttle", 7]}, {"aud": "SPARK-THROTTLE"},
    {"iss": "https://login.example.org"}, {"iss": None}, {"iss": ""}, {"iss": ["x"]},
    {"sub": None}, {"sub": 7}, {"sub": "a\nb"}, {"sub": "x" * 256}, {"sub": ""},
    {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
]  # fmt: skip


@pytest.mark.parametrize("claims", BAD_CLAIMS, ids=lambda claims: repr(claims)[:60])
def test_token_with_a_wrong_claim_is_refused(world: World, claims: dict[str, Any]) -> None:
    assert world.get(world.token()).status_code == 200
    answer = world.get(world.token(**claims))
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("tail", ["/", "?x", "#x", "@evil.example"])
def test_issuer_is_compared_letter_by_letter(world: World, tail: str) -> None:
    assert world.get(world.token(iss=world.provider.issuer + tail)).status_code == 401


def test_token_expires_while_it_is_used_and_begins_when_it_says(world: World) -> None:
    text = world.token(exp=NOW + 60)
    later = world.token(nbf=NOW + 60 + LEEWAY, exp=NOW + 600)
    for seconds, statuses in ((0, (200, 401)), (59 + LEEWAY, (200, 200)), (60 + LEEWAY, (401, 200))):
        world.served.clock[0] = START_MS // 1000 * 1000 + seconds * 1000
        assert (world.get(text).status_code, world.get(later).status_code) == statuses


def test_token_that_somebody_else_signed_is_refused(world: World) -> None:
    claims = world.provider.claims(START_MS)
    for kid in ("first", None, "evil"):
        assert world.get(world.provider.signed(claims, key=made_key("evil"), kid=kid)).status_code == 401


def test_token_that_was_changed_is_refused(world: World) -> None:
    header, payload, signature = world.token(groups=["staff"]).split(".")
    forged = encoded(world.provider.claims(START_MS))
    for parts in ((header, forged, signature), (header, payload, signature[:-4]), (header, payload, ""),
                  (header, payload), (header, payload, signature, ""), ("", payload, signature)):  # fmt: skip
        assert world.get(".".join(parts)).status_code == 401


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, ["none"], 7])
@pytest.mark.parametrize("signature", ["", "c2ln"])
def test_token_without_an_algorithm_is_refused(world: World, name: object, signature: str) -> None:
    claims = encoded(world.provider.claims(START_MS))
    for header in ({"alg": name, "kid": "first"}, {"alg": name}, {"kid": "first"}):
        assert world.get(f"{encoded(header)}.{claims}.{signature}").status_code == 401


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_public_key_is_no_shared_secret(world: World, algorithm: str) -> None:
    public = made_key("first")
    forms = [public.as_pem(private=False), public.as_pem(private=False).rstrip(), public.as_der(private=False),
             json.dumps(public.as_dict(private=False)).encode()]  # fmt: skip
    for form in forms:
        # By hand: the library does not make such a token either.
        signing = f"{encoded({'alg': algorithm, 'kid': 'first'})}.{encoded(world.provider.claims(START_MS))}"
        signature = hmac.new(form, signing.encode(), f"sha{algorithm[2:]}").digest()
        text = f"{signing}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
        assert world.get(text).status_code == 401


def base64_of(secret: bytes) -> Any:
    return {"kty": "oct", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode()}


def test_shared_secret_among_the_providers_keys_is_not_believed(world: World) -> None:
    secret = OctKey.import_key({**base64_of(b"s" * 32), "kid": "shared"})
    world.provider.answers[KEYS] = world.provider.json(
        {"keys": [secret.as_dict(private=True), made_key("first").as_dict(private=False)]}
    )
    claims = world.provider.claims(START_MS)
    assert world.get(world.provider.signed(claims, key=secret, algorithm="HS256")).status_code == 401
    assert world.get(world.provider.signed(claims)).status_code == 200


def test_algorithm_that_is_not_configured_is_refused(believing: Callable[..., World]) -> None:
    world = believing(algorithms=["ES256"])
    assert world.get(world.token()).status_code == 401


@pytest.mark.parametrize("header", [
    {"jwk": True}, {"jku": "http://127.0.0.1:1/keys"}, {"x5u": "http://127.0.0.1:1/x"}, {"crit": ["exp"]},
    {"typ": "logout+jwt"}, {"typ": "secevent+jwt"}, {"typ": 7}, {"kid": 7}, {"kid": ["first"]},
    {"kid": "../../first"}, {"b64": False, "crit": ["b64"]},
])  # fmt: skip
def test_header_cannot_bring_a_key_or_change_what_is_checked(world: World, header: dict[str, Any]) -> None:
    claims, evil = world.provider.claims(START_MS), made_key("evil")
    if header.get("jwk"):
        header = {"jwk": evil.as_dict(private=False)}
    fields = {"alg": "RS256", "kid": "first", **header}
    signing = f"{encoded(fields)}.{encoded(claims)}"
    by = evil if {"jwk", "jku", "x5u"} & header.keys() else made_key("first")
    signature = JWSRegistry.algorithms["RS256"].sign(signing.encode(), by)
    assert world.get(f"{signing}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}").status_code == 401


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "é.é.é", "x" * (LONGEST_TOKEN + 1), "a.b.c.d.e", "." * 5000,
                                  "e30.e30.", "bnVsbA.bnVsbA.c2ln", "W10.W10.c2ln", "eyJhbGciOg.e30.c2ln"])  # fmt: skip
def test_text_that_is_no_token_is_refused_without_asking_the_provider(world: World, text: str) -> None:
    answer = TestClient(world.served.app).get(CALLER, headers={"Authorization": f"Bearer {text}".encode("latin-1")})
    assert answer.status_code == 401
    assert not world.provider.asked


# ----------------------------------------------------------------------------------------------------- its keys


def test_keys_are_asked_for_once_and_again_when_they_are_old(world: World) -> None:
    text = world.token(exp=NOW + 10**6)
    for _ in range(5):
        assert world.get(text).status_code == 200
    assert world.provider.asked == {DISCOVERY: 1, KEYS: 1}
    world.passes(seconds=FRESH_SECONDS - 0.001)
    assert (world.get(text).status_code, world.provider.asked[KEYS]) == (200, 1)
    world.passes(seconds=0.001)
    assert (world.get(text).status_code, world.provider.asked[KEYS]) == (200, 2)


@pytest.mark.slow
def test_key_that_the_provider_has_rotated_in_is_found_and_the_old_one_is_forgotten(world: World) -> None:
    old = world.token()
    assert world.get(old).status_code == 200
    world.provider.keys = [made_key("second")]
    new = world.token()
    world.passes(seconds=PAUSE_SECONDS)
    assert world.get(new).status_code == 200
    assert world.get(old).status_code == 401
    assert world.provider.asked[KEYS] == 2


def test_key_that_the_provider_withdraws_is_believed_no_longer_than_keys_are_fresh(world: World) -> None:
    text = world.token()
    assert world.get(text).status_code == 200
    world.provider.keys = [made_key("second")]
    world.passes(seconds=FRESH_SECONDS)
    assert world.get(text).status_code == 401


@pytest.mark.slow
def test_key_that_the_provider_has_replaced_under_its_name_is_believed_at_once(world: World) -> None:
    old = world.token()
    assert world.get(old).status_code == 200
    world.provider.keys = [RSAKey.import_key({**made_key("second").as_dict(private=True), "kid": "first"})]
    new = world.token()
    assert world.get(new).status_code == 401  # asked a moment ago
    world.passes(seconds=PAUSE_SECONDS)
    assert [world.get(new).status_code for _ in range(3)] == [200] * 3
    for _ in range(20):
        assert world.get(old).status_code == 401
    assert world.provider.asked[KEYS] == 2


@pytest.mark.filterwarnings("ignore:Key size should be")  # so says the library that makes it
def test_rsa_key_of_fewer_than_2048_bits_is_not_believed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    short = RSAKey.generate_key(1024, {"kid": "short", "use": "sig"})
    world.provider.keys = [short, made_key("first")]
    assert world.get(world.provider.signed(world.provider.claims(START_MS), key=short)).status_code == 401
    assert "has 1024 bits" in caplog.text
    assert world.get(world.provider.signed(world.provider.claims(START_MS), key=made_key("first"))).status_code == 200


@pytest.mark.slow
def test_made_up_keys_do_not_make_the_server_ask_all_the_time(world: World) -> None:
    assert world.get(world.token()).status_code == 200
    claims = world.provider.claims(START_MS)
    for number in range(20):
        assert world.get(world.provider.signed(claims, kid=f"made-up-{number}")).status_code == 401
    assert world.provider.asked[KEYS] == 1
    world.passes(seconds=PAUSE_SECONDS)
    for number in range(20):
        assert world.get(world.provider.signed(claims, kid=f"made-up-{number}")).status_code == 401
    assert world.provider.asked[KEYS] == 2


def test_token_without_a_key_id_is_taken_only_if_the_provider_has_one_key(world: World) -> None:
    claims = world.provider.claims(START_MS)
    assert world.get(world.provider.signed(claims, kid=None)).status_code == 200
    world.provider.keys = [made_key("first"), made_key("second")]
    world.passes(seconds=FRESH_SECONDS)
    assert world.get(world.provider.signed(claims, kid=None)).status_code == 401


def test_key_for_encryption_or_another_algorithm_checks_no_signature(world: World) -> None:
    for change in ({"use": "enc"}, {"alg": "RS512"}, {"kty": "post-quantum"}, {"n": "!"}):
        fields = {**made_key("first").as_dict(private=False), **change}
        world.provider.answers[KEYS] = world.provider.json(
            {"keys": [fields, made_key("second").as_dict(private=False)]}
        )
        world.passes(seconds=FRESH_SECONDS)
        assert world.get(world.token()).status_code == 401


BROKEN: list[tuple[str, tuple[int, dict[str, str], bytes]]] = [
    (DISCOVERY, (500, {}, b"")), (DISCOVERY, (200, {}, b"<html>")), (DISCOVERY, (200, {}, b"[]")),
    (DISCOVERY, (200, {}, b'{"issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys"}')),
    (DISCOVERY, (200, {}, b"{}")), (DISCOVERY, (302, {"Location": "http://127.0.0.1:1/"}, b"")),
    (KEYS, (500, {}, b"")), (KEYS, (404, {}, b"")), (KEYS, (200, {}, b"{")), (KEYS, (200, {}, b'{"keys": []}')),
    (KEYS, (200, {}, b'{"keys": {}}')), (KEYS, (200, {}, b" " * (1 << 21))), (KEYS, (200, {}, b'{"keys": [7, null]}')),
    (KEYS, (301, {"Location": "/elsewhere"}, b"")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "answer"), BROKEN)
def test_provider_that_does_not_answer_as_one_is_a_503_and_not_a_401(
    world: World, path: str, answer: tuple[int, dict[str, str], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    world.provider.answers[path] = answer
    text = world.token()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            got = world.get(text)
            assert (got.status_code, got.headers["Retry-After"]) == (503, "1")
            assert got.headers["Content-Type"] == "application/problem+json"
            assert "sign-in provider" in got.json()["detail"]
    assert len([record for record in caplog.records if "could not be asked for" in record.getMessage()]) == 1
    assert world.get(world.served.tokens["admin"]).status_code == 200
    del world.provider.answers[path]
    world.passes(seconds=PAUSE_SECONDS)
    assert world.get(text).status_code == 200


@pytest.mark.parametrize(
    "address", ["http://login.example.org/keys", "file:///etc/passwd", "", None, 7, "//x", "http://["]
)
def test_keys_are_not_asked_for_at_an_address_that_anybody_could_answer(world: World, address: object) -> None:
    world.provider.answers[DISCOVERY] = world.provider.json({"issuer": world.provider.issuer, "jwks_uri": address})
    assert world.get(world.token()).status_code == 503


@pytest.mark.parametrize("issuer", ["https://login.example.org", "{}/", None, ["{}"]])
def test_keys_of_a_discovery_document_of_another_issuer_are_not_believed(world: World, issuer: Any) -> None:
    said = issuer.format(world.provider.issuer) if isinstance(issuer, str) else issuer
    keys = world.provider.issuer + KEYS
    world.provider.answers[DISCOVERY] = world.provider.json({"issuer": said, "jwks_uri": keys})
    assert world.get(world.token()).status_code == 503
    assert KEYS not in world.provider.asked


def test_provider_that_is_gone_is_a_503(believing: Callable[..., World]) -> None:
    with provider_on_loopback() as gone:
        pass
    world = believing(issuer=gone.issuer)
    text = gone.signed(gone.claims(START_MS))
    assert world.get(text).status_code == 503
    assert world.get(gone.signed(gone.claims(START_MS), algorithm="RS512")).status_code == 401


@pytest.mark.parametrize(
    ("headers", "body"),
    [({f"X-{i}": "1" for i in range(200)}, b"{}"), ({}, b"[" * 200_000), ({"Transfer-Encoding": "chunked"}, b"zz")],
    ids=["200 headers", "deeply nested", "broken chunks"],
)
def test_provider_whose_answer_breaks_is_a_503_and_is_asked_again(
    world: World, headers: dict[str, str], body: bytes
) -> None:
    world.provider.answers[DISCOVERY] = (200, headers, body)
    assert world.get(world.token()).status_code == 503
    world.provider.answers.clear()
    world.passes(seconds=PAUSE_SECONDS + 1)
    assert world.get(world.token()).status_code == 200


def test_last_keys_are_believed_for_a_while_if_the_provider_is_gone(world: World) -> None:
    text = world.token(exp=NOW + 10**6)
    assert world.get(text).status_code == 200
    world.provider.answers[DISCOVERY] = (500, {}, b"")
    world.passes(seconds=FRESH_SECONDS)
    assert world.get(text).status_code == 200
    # Whether this key is one that the provider has rotated in, only the provider could tell.
    new = world.provider.signed(world.provider.claims(START_MS), key=made_key("second"))
    assert world.get(new).status_code == 503
    world.passes(seconds=STALE_SECONDS - FRESH_SECONDS)
    assert world.get(text).status_code == 503


# ------------------------------------------------------------------------------------------------ claims and roles


@pytest.mark.parametrize(("claims", "role", "tenant"), [
    ({"groups": ["platform"]}, "admin", None),
    ({"groups": "platform"}, "admin", None),
    ({"groups": ["acme-operators"]}, "tenant_admin", "acme"),
    ({"groups": ["acme-operators", "platform"]}, "admin", None),  # the first rule that fits
    ({"groups": [], "realm_access": {"roles": ["customer"]}, "org": "blue"}, "tenant_admin", "blue"),
    ({"groups": None, "department": "audit"}, "viewer", None),
])  # fmt: skip
def test_claims_give_the_role_of_the_first_rule_that_fits(
    world: World, claims: dict[str, Any], role: str, tenant: str | None
) -> None:
    answer = world.get(world.token(**claims)).json()
    assert (answer["role"], answer["tenant"]) == (role, tenant)


CUSTOMER = {"realm_access": {"roles": ["customer"]}}
NO_ROLES: list[dict[str, Any]] = [
    {"groups": None}, {"groups": []}, {"groups": ["staff"]}, {"groups": "platforms"}, {"groups": ["Platform"]},
    {"groups": "staff platform"}, {"groups": {"platform": True}}, {"groups": [["platform"]]}, {"groups": 7},
    {"groups": True}, {"groups": ["platform "]}, {"groups": None, "role": "admin"}, {"groups": None, "admin": True},
    {"groups": None, "realm_access": {"roles": {"customer": 1}}, "org": "blue"},
    {"groups": None, "realm_access": ["roles"], "org": "blue"}, {"groups": None, "realm_access.roles": ["customer"]},
    *({"groups": None, "department": "audit", **CUSTOMER, "org": org}
      for org in (None, "", "*", "a*", "blue/x", ["blue"], 7, {"blue": 1}, "a\nb", "x" * 101)),
]  # fmt: skip


@pytest.mark.parametrize("claims", NO_ROLES, ids=lambda claims: repr(claims)[:70])
def test_caller_whom_no_rule_gives_a_role_may_do_nothing(world: World, claims: dict[str, Any]) -> None:
    text = world.token(**claims)
    for path in (CALLER, "/admin/v2/status", "/metrics", "/admin/v2/policies/namespaces"):
        answer = world.get(text, path)
        assert answer.status_code == 403
        assert "gives you a role" in answer.json()["detail"]
    headers = {"Authorization": f"Bearer {text}"}
    assert TestClient(world.served.app).put(GOLD, json={}, headers=headers).status_code == 403
    assert world.served.store.revision() == 0
    assert world.served.audited[-1]["caller"].startswith("signed in as ann-7 at ")


def test_tenant_admin_by_sign_in_is_held_to_its_tenant(world: World) -> None:
    text = world.token(groups=["acme-operators"])
    assert world.get(text, "/admin/v2/policies/namespaces/blue%2Fx").status_code == 403
    assert world.get(text, "/admin/v2/history").status_code == 403


@pytest.mark.parametrize("name", [None, "", "a\x1b[2J", 7, ["ann"], "x" * 101])
def test_name_that_cannot_be_shown_is_replaced_by_the_subject(world: World, name: object) -> None:
    assert world.get(world.token(preferred_username=name)).json()["name"] == "ann-7"


def test_name_of_a_caller_imitates_no_token(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.token(preferred_username='ann (token 0123456789ab)')}"}
    TestClient(world.served.app).put(GOLD, json={}, headers=headers)
    (entry,) = world.served.service.history()
    assert entry.caller == f"signed in as ann-7 at {world.provider.issuer}"


def test_token_of_the_provider_is_in_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    text = world.token(groups=None)
    with caplog.at_level(logging.DEBUG):
        world.get(text)
        world.get(text, f"/admin/v2/{text}")
        world.get(text, f"/admin/v2/status?token={text}")
    assert world.served.audit is not None
    said = "\n".join(record.getMessage() for record in caplog.records if record.name != "httpx")
    assert text.rpartition(".")[2] not in said + world.served.audit.path.read_text()
