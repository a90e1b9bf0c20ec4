"""After a store is restored from a backup its revision numbers are given twice; an ETag never means two contents."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.errors import ConflictError
from spark_throttle.store.policy_location import open_store
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.conftest import ServedApp, served_over

ANN = Author("ann")
GOLD = "/admin/v2/policies/resource_groups/gold"


class Lake:
    """A store below a folder, and a backup of it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self._backup = folder / "lake", folder / "backup"
        self.folder.mkdir()
        self.location = f"{kind}:{self.folder / 'policies'}"
        open_store(self.location, is_created=True)

    def service(self) -> PolicyService:
        return PolicyService(open_store(self.location), clock_ms=lambda: 0)

    def write(self, messages_per_second: int) -> int:
        values = {"publish": {"messages_per_second": messages_per_second}}
        return self.service().put("resource_group", "gold", values, ANN).revision

    def back_up(self) -> None:
        shutil.copytree(self.folder, self._backup)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._backup, self.folder)


@pytest.fixture(params=["file", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


@pytest.fixture
def serve_lake(lake: Lake, tmp_path: Path) -> Callable[[], ServedApp]:
    """Serve the lake's store by a server that knows nothing of earlier ones."""
    return lambda: served_over(open_store(lake.location), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("is_same_server", [True, False])
def test_tag_of_before_a_restore_matches_no_other_contents(
    lake: Lake, serve_lake: Callable[[], ServedApp], is_same_server: bool
) -> None:
    lake.write(1)
    lake.back_up()
    assert lake.write(2) == 2
    served = serve_lake()
    seen = served.client().get(GOLD).headers["ETag"]
    lake.restore()
    assert lake.write(3) == 2
    client = (served if is_same_server else serve_lake()).client()
    late = client.put(GOLD, json={"publish": {"messages_per_second": 4}}, headers={"If-Match": seen})
    assert late.status_code == 412, late.text
    assert late.json()["detail"] == (
        "resource group gold has other contents at revision 2 than the change was made for; the store may have been "
        "restored from a backup since, which gives revisions twice: nothing was changed; read it again, then decide "
        "whether to try again"
    )
    assert client.delete(GOLD, headers={"If-Match": seen}).status_code == 412
    read = client.get(GOLD, headers={"If-None-Match": seen})
    assert (read.status_code, read.json()["policy"]) == (200, {"publish": {"messages_per_second": 3}})
    assert lake.service().store.revision() == 2


@pytest.mark.slow
def test_tag_of_what_a_restore_left_as_it_was_still_matches(lake: Lake, serve_lake: Callable[[], ServedApp]) -> None:
    lake.write(1)
    lake.back_up()
    seen = serve_lake().client().get(GOLD).headers["ETag"]
    lake.write(2)
    lake.restore()
    client = serve_lake().client()
    assert client.get(GOLD, headers={"If-None-Match": seen}).status_code == 304
    answer = client.put(GOLD, json={"publish": {"messages_per_second": 4}}, headers={"If-Match": seen})
    assert answer.status_code == 200, answer.text
    assert client.get(GOLD).headers["ETag"] == answer.headers["ETag"]


def test_tag_tells_whether_the_tenant_or_an_administrator_wrote_the_same(in_memory: ServedApp) -> None:
    service = in_memory.service
    service.put("tenant", "acme", {"publish": {"messages_per_second": 9}}, ANN)
    path, body = "/admin/v2/policies/namespaces/acme%2Fx", {"publish": {"messages_per_second": 2}}
    of_tenant = in_memory.client("tenant_admin").put(path, json=body)
    assert of_tenant.headers["ETag"] == in_memory.client().get(path).headers["ETag"]
    service.delete("namespace", "acme/x", ANN)
    of_admin = in_memory.client().put(path, json=body)
    tags = [answer.headers["ETag"].strip('"').partition("-") for answer in (of_tenant, of_admin)]
    assert tags[0][2] != tags[1][2]


@pytest.mark.parametrize("is_there", [True, False])
def test_tag_of_a_release_that_named_the_revision_alone_is_refused(in_memory: ServedApp, is_there: bool) -> None:
    if is_there:
        in_memory.service.put("resource_group", "gold", {}, ANN)
    before = in_memory.store.revision()
    client = in_memory.client()
    for tag in ('"0"', '"1"'):
        answer = client.put(GOLD, json={}, headers={"If-Match": tag})
        assert answer.status_code == 412, answer.text
        assert answer.json()["detail"] == (
            f"resource group gold: {tag} is a revision, and an ETag also names the contents, for a store that is "
            f"restored gives revisions twice: nothing was changed; read it again, then decide whether to try again"
        )
    assert client.get("/admin/v2/policy/job", headers={"If-None-Match": '"0"'}).status_code == 200
    assert in_memory.store.revision() == before


@pytest.mark.slow
def test_number_of_a_revision_is_all_that_the_command_line_expects(lake: Lake) -> None:
    lake.write(1)
    lake.back_up()
    lake.write(2)
    lake.restore()
    lake.write(3)
    service = lake.service()
    with pytest.raises(ConflictError, match="is at revision 2 and the change was made for revision 1"):
        service.delete("resource_group", "gold", ANN, expected=1)
    assert service.delete("resource_group", "gold", ANN, expected=2).revision == 3
