"""Pulsar's own command line, with Pulsar's admin client in it, against the server: every call of resource groups.

The jars come from `make tool-jars`. One JVM runs all commands (`PulsarAdminSession.java`), each test with groups and
namespaces of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from spark_throttle.admin.tokens import TokenFile
from spark_throttle.importers.pulsar import import_pulsar
from tests.admin.server_process import server_process
from tests.tools.java_session import JavaSession, java_session

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

CLIENT_CONF = """\
webServiceUrl=http://127.0.0.1:{port}
authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
authParams={token}
"""
NO_LIMIT = {"publishRateInMsgs": -1, "publishRateInBytes": -1, "dispatchRateInMsgs": -1, "dispatchRateInBytes": -1}


@dataclass(frozen=True, slots=True)
class PulsarAdmin(JavaSession):
    """The command line, and the server that it calls."""

    address: str
    tokens: dict[str, Path]

    def rates(self, group: str) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.printed("resourcegroups", "get", group))
        return found

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer to a call of the API that Pulsar's tools lack, or would take long for."""
        token = self.tokens["admin"].read_text()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}/admin/v2/{path}", data, headers, method=method)  # noqa: S310 - loopback
        with urlopen(request) as answer:  # noqa: S310
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def pulsar_admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarAdmin]:
    folder = tmp_path_factory.mktemp("pulsar")
    token_file = TokenFile(folder / "tokens.json", clock_ms=lambda: 0)
    tokens = {role: folder / f"{role}.token" for role in ("admin", "viewer")}
    for role, path in tokens.items():
        path.write_text(token_file.create(f"{role}-of-test", role))
    with server_process(folder, token_file, "--yes") as server:
        conf = folder / "client.conf"
        conf.write_text(CLIENT_CONF.format(port=server.port, token=tokens["admin"].as_uri()))
        with java_session("PulsarAdminSession.java", "pulsar-admin", folder / "java.log", str(conf)) as session:
            yield PulsarAdmin(session.process, f"http://127.0.0.1:{server.port}", tokens)


def test_group_is_created_read_listed_and_deleted(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.printed(
        "resourcegroups", "create", "made", "--msg-publish-rate", "5", "--byte-publish-rate", "500",
        "--msg-dispatch-rate", "6", "--byte-dispatch-rate", "600",
    )  # fmt: skip
    assert pulsar_admin.rates("made") == {
        "publishRateInMsgs": 5, "publishRateInBytes": 500, "dispatchRateInMsgs": 6, "dispatchRateInBytes": 600,
    }  # fmt: skip
    assert "made" in pulsar_admin.printed("resourcegroups", "list").splitlines()
    pulsar_admin.printed("resourcegroups", "delete", "made")
    assert "made" not in pulsar_admin.printed("resourcegroups", "list").splitlines()
    assert "Reason: there is no resource group 'made'" in pulsar_admin.refusal("resourcegroups", "get", "made")


@pytest.mark.thorough
def test_update_of_one_rate_leaves_the_others(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.printed("resourcegroups", "create", "kept", "-mp", "5", "-bp", "500")
    pulsar_admin.printed("resourcegroups", "update", "kept", "-mp", "9")
    assert pulsar_admin.rates("kept") == {**NO_LIMIT, "publishRateInMsgs": 9, "publishRateInBytes": 500}


def test_minus_one_lifts_a_limit(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.printed("resourcegroups", "create", "lifted", "-mp", "5", "-bd", "600")
    pulsar_admin.printed("resourcegroups", "update", "lifted", "--byte-dispatch-rate", "-1")
    assert pulsar_admin.rates("lifted") == {**NO_LIMIT, "publishRateInMsgs": 5}


def test_group_without_a_rate_has_no_limit(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.printed("resourcegroups", "create", "bare")
    assert pulsar_admin.rates("bare") == NO_LIMIT


def test_fraction_is_cut_to_a_whole_number_as_the_table_says(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.call("PUT", "resourcegroups/fine", {"publishRateInMsgs": 2.5, "dispatchRateInBytes": 2**33})
    assert pulsar_admin.rates("fine") == {**NO_LIMIT, "publishRateInMsgs": 2, "dispatchRateInBytes": 2**33}


def test_namespace_is_attached_moved_and_detached(pulsar_admin: PulsarAdmin) -> None:
    for group in ("first", "second"):
        pulsar_admin.printed("resourcegroups", "create", group)
    namespace = "acme/orders"
    assert pulsar_admin.printed("namespaces", "get-resource-group", namespace) == "\n"
    for group in ("first", "second"):
        pulsar_admin.printed("namespaces", "set-resource-group", namespace, "--resource-group-name", group)
        assert pulsar_admin.printed("namespaces", "get-resource-group", namespace) == f"{group}\n"
    explained = pulsar_admin.call("GET", "policies/namespaces/acme%2Forders")
    assert explained["policy"] == {"resource_group": "second"}
    pulsar_admin.printed("namespaces", "remove-resource-group", namespace)
    pulsar_admin.printed("namespaces", "remove-resource-group", namespace)
    assert pulsar_admin.printed("namespaces", "get-resource-group", namespace) == "\n"


def test_group_in_use_is_not_deleted(pulsar_admin: PulsarAdmin) -> None:
    """Pulsar's tools have no call for the group of a tenant, which PIP-82 describes; it is in use all the same."""
    pulsar_admin.printed("resourcegroups", "create", "used")
    pulsar_admin.printed("namespaces", "set-resource-group", "user/in", "-rgn", "used")
    said = pulsar_admin.refusal("resourcegroups", "delete", "used")
    assert "Reason: the resource group 'used' is in use by namespace user/in: detach these first" in said
    pulsar_admin.printed("namespaces", "remove-resource-group", "user/in")
    pulsar_admin.call("PUT", "tenants/user/resourcegroup/used")
    assert "is in use by tenant user" in pulsar_admin.refusal("resourcegroups", "delete", "used")
    pulsar_admin.call("DELETE", "tenants/user/resourcegroup")
    pulsar_admin.printed("resourcegroups", "delete", "used")


def test_namespace_is_not_attached_to_a_group_that_is_not_there(pulsar_admin: PulsarAdmin) -> None:
    said = pulsar_admin.refusal("namespaces", "set-resource-group", "acme/lost", "-rgn", "nowhere")
    assert "Reason: there is no resource group 'nowhere'" in said


@pytest.mark.thorough
def test_more_groups_than_a_page_are_all_listed(pulsar_admin: PulsarAdmin) -> None:
    names = [f"many-{at:03}" for at in range(105)]
    for name in names:
        pulsar_admin.call("PUT", f"resourcegroups/{name}", {})
    assert [name for name in pulsar_admin.printed("resourcegroups", "list").split() if name in names] == names


def test_token_of_a_viewer_reads_and_changes_nothing(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.printed("resourcegroups", "create", "seen", "-mp", "5")
    viewer = ("--auth-params", pulsar_admin.tokens["viewer"].as_uri())
    assert '"publishRateInMsgs" : 5' in pulsar_admin.printed(*viewer, "resourcegroups", "get", "seen")
    said = pulsar_admin.refusal(*viewer, "resourcegroups", "update", "seen", "-mp", "9")
    assert "Reason: a viewer's token may only read" in said
    assert pulsar_admin.rates("seen")["publishRateInMsgs"] == 5


def test_unknown_token_is_refused_with_its_reason(pulsar_admin: PulsarAdmin) -> None:
    said = pulsar_admin.refusal("--auth-params", "token:guessed", "resourcegroups", "list")
    assert "there is no token, or it is unknown" in said


def test_what_get_and_list_print_is_imported(pulsar_admin: PulsarAdmin) -> None:
    pulsar_admin.printed("resourcegroups", "create", "gold", "-mp", "100", "-bd", "2048")
    found = import_pulsar(pulsar_admin.printed("resourcegroups", "get", "gold"), group="gold")
    assert found.unexpressed == ()
    group = found.document.resource_groups["gold"]
    assert [group.publish.messages_per_second, group.publish.bytes_per_second] == [100, None]
    assert [group.dispatch.messages_per_second, group.dispatch.bytes_per_second] == [None, 2048]
    listed = import_pulsar(pulsar_admin.printed("resourcegroups", "list"))
    assert "gold" in listed.document.resource_groups
    assert any(line.startswith("resourcegroups.gold: only its name") for line in listed.unexpressed)
