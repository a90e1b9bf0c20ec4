"""The demonstration of the control plane (`make admin-demo`): what an operator sees and changes while a job runs.

A job follows a policy store in Delta and throttles synthetic traffic of 304 groups. The admin server displays it with
its usage table, and a headless browser opens its page.

- One of 300 small groups is overloaded: command line, metrics and page show it first, and an alert tells of it.
- "What if bronze had 300 messages a second?" is asked, and the job that then has it confirms the figures.
- The quota of bronze is changed from the command line, through the API and on the page.
- An exception of the group free ends by itself. 2,000 namespaces are changed at once, and that is taken back.

Then the job is stopped and its output is recounted: for each change, the number of batches planned after its commit up
to the first that applied it (1 is at once), and whether a row was lost or duplicated. Screenshots of the page are in
`build/admin-demo`. The last line of standard output is JSON. The exit status is 0 if all this is so. With `--place`,
the policies, the tables and the checkpoint are on a store.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import fs
from pyspark.sql.streaming.query import StreamingQuery

from demos.admin.operator_view import CROWD_TRAFFIC, WORST, Operator, Rates, crowd_policies, say, wait_until
from demos.admin.page import Page
from demos.demo import demo_settings
from demos.recount import check_conservation
from demos.tables import as_offered, ask_for_place, bring, read_batches, read_rows
from jobs.wiring import make_throttle, open_session, read_events, start_query, stop_between_batches, wait_for_end
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.control.reports import newest_batch
from spark_throttle.core.epoch import Epoch
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.load.traffic import LoadOptions
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.record import unpack
from spark_throttle.spark.state_reader import read_queued
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.policy_location import load_policies
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author

ROOT: Final = Path(__file__).parent.parent
GROUP: Final = "bronze"
TRAFFIC: Final[list[dict[str, Any]]] = [
    {"prefix": "gold", "namespaces": 20, "messages_per_second": 750, "zipf_exponent": 0.6, "bursts": False},
    {"prefix": "silver", "namespaces": 20, "messages_per_second": 400, "zipf_exponent": 0.8},
    {"prefix": "bronze", "namespaces": 20, "messages_per_second": 900, "zipf_exponent": 0.3, "bursts": False},
    {"prefix": "free", "namespaces": 10, "messages_per_second": 150, "zipf_exponent": 1.0, "bursts": False},
]
WAIT_SECONDS: Final = 170
"""Time limit for a few batches, the session's start included."""

WARM_UP_BATCHES: Final = 6
FREE_RATE: Final = 100
"""The quota of the group free, in messages a second."""

CONFIRMING_SECONDS: Final = 30
"""The time for which it is foretold what a change would do, and then seen what it did."""

PAUSE_BATCHES: Final = 3
"""Number of batches between two changes, so that each can be seen by itself."""


ROLLBACK_SECONDS: Final = 10
"""The most that the rollback of 2,000 namespaces may take, the start of the command included."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an operator saw while the job ran."""

    shown_first: list[str]
    """The group that the command line, the metrics and the page show first."""

    alerted: list[str] | None
    """The groups of which the alert on old messages tells; `None` without Prometheus."""

    foretold: Rates
    happened: Rates
    quotas_of_exception: list[int]
    apply_seconds: float
    rollback_seconds: float

    @property
    def is_right(self) -> bool:
        """Whether all is as the demonstration says."""
        return (
            set(self.shown_first) == {WORST}
            and (self.alerted is None or WORST in self.alerted)
            and self.foretold.is_near(self.happened)
            and self.quotas_of_exception == [FREE_RATE, 2 * FREE_RATE, FREE_RATE]
            and self.rollback_seconds <= ROLLBACK_SECONDS
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the demonstration."""

    batches_cli: int
    batches_api: int
    batches_page: int
    lost: int
    doubled: int
    seen: Seen

    @property
    def is_right(self) -> bool:
        """Whether every change took effect in the next batch, no row is lost or doubled, and the operator is served."""
        counts = (self.batches_cli, self.batches_api, self.batches_page, self.lost, self.doubled)
        return counts == (1, 1, 1, 0, 0) and self.seen.is_right


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return its exit status."""
    asked = _parser().parse_args(arguments)
    out: Path = asked.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    place = asked.place or str(out)
    store = DeltaStore.create(f"{place}/policies")
    service = PolicyService(store, clock_ms=_wall_clock_ms)
    service.apply(_with_crowd(load_policies(asked.policies)), Author("demonstration", "what it begins with"))
    token = TokenFile(out / "tokens.json", clock_ms=_wall_clock_ms).create("demonstration", "admin", days=1)

    settings = demo_settings(place, store.location, 600, asked.seed, [*TRAFFIC, CROWD_TRAFFIC])
    settings = settings.model_copy(update={"usage": f"{place}/usage"})
    throttle = make_throttle(settings.throttle)
    control = f"{settings.checkpoint}/throttle"
    spark = open_session(settings)
    events = read_events(spark, settings.source)
    query = start_query(throttle, events, settings)

    def wait_for_batches(count: int) -> None:
        _wait_for_batches(query, Directory(control), count)

    try:
        with (
            _server(out, store.location, control, f"{place}/usage") as address,
            Page.opened(address, token, out, GROUP) as page,
        ):
            operator = Operator(address, token, store.location, control, out)
            revisions, seen = _operate(operator, page, store, wait_for_batches)
        stop_between_batches(query)
        queued = read_queued(spark, settings.checkpoint, schema=events.schema).toArrow()
    finally:
        query.stop()
        spark.stop()

    acted = [batches_until(revision, service, f"{place}/policies", control) for revision in revisions]
    bring(asked.place, out)
    batches = read_batches(out / "checkpoint")
    parts = [read_rows(out / name, batches).rows for name in ("admitted", "rejected")]
    conservation = check_conservation(
        LoadOptions.parse(settings.source.options).traffic, batches[-1].end_row, [*parts, as_offered(queued)]
    )
    outcome = Outcome(acted[0], acted[1], acted[2], conservation.lost, conservation.doubled, seen)
    say(f"{len(batches)} batches, {batches[-1].end_row:,} messages offered; pictures in {out}")
    print(json.dumps(asdict(outcome), separators=(",", ":")), flush=True)
    return 0 if outcome.is_right else 1


def _operate(
    operator: Operator, page: Page, store: DeltaStore, wait_for_batches: Callable[[int], None]
) -> tuple[list[int], Seen]:
    """Do what the demonstration shows; return the revisions of the three changes, and what was seen."""
    wait_for_batches(1)
    first_ms = _wall_clock_ms()
    wait_for_batches(WARM_UP_BATCHES)
    shown_first = [operator.worst_by_command_line(), operator.worst_by_metrics(), page.worst()]
    say(f"the page shows {shown_first[-1]} first")
    alerted = operator.alerted()
    _wait_until_ms(first_ms + 1000 * CONFIRMING_SECONDS)
    wait_for_batches(1)
    foretold = operator.what_if(GROUP, 300, CONFIRMING_SECONDS)
    page.begin()
    page.look("1-before")
    began_ms = _wall_clock_ms()
    by_cli = _change_by_cli(operator, store)
    _wait_until_ms(began_ms + 1000 * CONFIRMING_SECONDS)
    wait_for_batches(1)
    happened = operator.happened(GROUP, began_ms, CONFIRMING_SECONDS)
    by_api = _change_by_api(operator.address, operator.token)
    wait_for_batches(PAUSE_BATCHES)
    page.look("2-cli-and-api")
    page.edit({"publish.messages_per_second": "700"}, why="the page gives bronze 700")
    by_page = store.revision()
    wait_for_batches(PAUSE_BATCHES)
    until_ms = operator.exception("free", 2 * FREE_RATE)
    page.exception("free")
    _wait_until_ms(until_ms)
    wait_for_batches(PAUSE_BATCHES)
    quotas = operator.quotas_of("free", began_ms)
    applied, taken_back = operator.bulk()
    page.look_around()
    seen = Seen(shown_first, alerted, foretold, happened, quotas, round(applied, 1), round(taken_back, 1))
    return [by_cli, by_api, by_page], seen


def _with_crowd(document: PolicyDocument) -> PolicyDocument:
    values = json.loads(document.model_dump_json(exclude_defaults=True))
    for section, entries in crowd_policies().items():
        values[section] |= entries
    return parse_document(values)


def batches_until(revision: int, service: PolicyService, store: str, control: str) -> int:
    """Return the number of epochs planned after a revision was committed, up to the first that applied it.

    Every epoch has exactly one batch here, because each batch brings rows. The time of the commit is that of its file
    in Delta's log, the time of the epoch that of the clock that planned it; both are on one machine.
    """
    committed_ms = commit_times_ms(store)[revision]
    wanted = compile_policy(service.document(at=revision), "publish").revision
    directory = Directory(control)
    planned = 0
    for name in directory.names("epochs"):
        epoch = unpack(Epoch, directory.read(f"epochs/{name}") or b"", name)
        planned_ms = epoch.reading.wall_ms
        if planned_ms <= committed_ms:
            continue
        planned += 1
        if epoch.revision == wanted:
            return planned
    raise RuntimeError(f"no batch applied revision {revision}, although {planned} were planned after it")


def commit_times_ms(store: str) -> Mapping[int, int]:
    """Return the time by which each revision of a Delta store was committed.

    A disk keeps the nanosecond in which a file was written, an S3 store only the second: then it is that second's last
    millisecond.
    """
    files, root = file_system(store)
    times: dict[int, int] = {}
    for file in files.get_file_info(fs.FileSelector(f"{root}/_delta_log")):
        if not file.path.endswith(".json"):
            continue
        rest_of_second_ms = 0 if file.mtime_ns % 1_000_000_000 else 999
        # A commit of the table is a revision of the store: the first makes the table, and has none.
        times[int(file.base_name.removesuffix(".json"))] = file.mtime_ns // 1_000_000 + rest_of_second_ms
    return times


def _change_by_cli(operator: Operator, store: DeltaStore) -> int:
    operator.command(
        "group", "update", GROUP, "publish.messages_per_second=300", "--store", store.location, "--why",
        "the command line gives bronze 300",
    )  # fmt: skip
    return store.revision()


def _change_by_api(address: str, token: str) -> int:
    path = f"{address}/admin/v2/resourcegroup/{GROUP}"
    fields, etag = _request(path, token)
    answer, _ = _request(
        f"{path}?why=the+API+gives+bronze+600",
        token,
        method="PUT",
        body={**fields, "publishRateInMsgs": 600},
        etag=etag,
    )
    say(f"the API answers: {json.dumps(answer)}")
    return int(answer["revision"])


def _request(
    url: str, token: str, *, method: str = "GET", body: Mapping[str, Any] | None = None, etag: str | None = None
) -> tuple[dict[str, Any], str]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if etag is not None:
        headers["If-Match"] = etag
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - our own server on loopback
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.load(answer), answer.headers["ETag"]


@contextmanager
def _server(out: Path, store: str, control: str, usage: str) -> Iterator[str]:
    """Yield the address of a server that uses the store and watches the job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "spark_throttle.command_line", "serve", "--tokens", str(out / "tokens.json"),
        "--store", store, "--port", str(port), "--job", f"demo={control}", "--usage", f"demo={usage}",
    ]  # fmt: skip
    with (out / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": "1"})  # noqa: S603
        try:
            wait_until(lambda: _answers(port), 60, "the server answers")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _wait_for_batches(query: StreamingQuery, directory: Directory, count: int) -> None:
    """Wait until `count` more batches have reported; raise if the query fails."""
    deadline = time.monotonic() + WAIT_SECONDS
    first = newest_batch(directory)
    while time.monotonic() < deadline:
        if wait_for_end(query, 0.1):
            raise RuntimeError("the query ended by itself")
        if newest_batch(directory) >= first + count:
            return
    raise TimeoutError(f"{count} batches did not come within {WAIT_SECONDS} s")


def _wait_until_ms(at_ms: int) -> None:
    wait_until(lambda: _wall_clock_ms() > at_ms, 120, "the time passes")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 - the time of a commit


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "admin-demo", help="deleted, then written again")
    ask_for_place(parser)
    parser.add_argument("--policies", type=Path, default=ROOT / "conf" / "policies" / "admin_demo.yaml")
    parser.add_argument("--seed", type=int, default=20261121, help="seed of the traffic")
    return parser


if __name__ == "__main__":
    sys.exit(main())
