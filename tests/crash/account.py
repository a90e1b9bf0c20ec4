"""What a run of the crash program left behind, recounted from input and output tables and Spark's offset log alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pandas as pd
import pyarrow.parquet as pq

from spark_throttle.control.codec import parse_policies
from spark_throttle.control.compile import revision_of
from spark_throttle.core.codec import unpack_epoch
from tests.crash.job import SHARDS
from tests.crash.workload import LARGEST_BYTES
from tests.ledger import BATCH, count_out_of_order, excess, read_batch_times_ms, read_table

COLUMNS: Final = ["id", "namespace", "size", "note"]


@dataclass(frozen=True, slots=True)
class Account:
    """The last line of the program."""

    kills: int
    offered: int
    admitted: int
    rejected: int
    lost: int
    """Offered rows that are in no table as they were offered."""

    doubled: int
    """Rows beyond the one that each offered row may have."""

    over_limit: int
    """Quotas that were passed, counted anew in each time that one revision of the policies was in force."""

    out_of_order: int

    @property
    def keeps_the_laws(self) -> bool:
        return (self.lost, self.doubled, self.over_limit, self.out_of_order) == (0, 0, 0, 0)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def take_account(root: Path, kills: int, policies: Mapping[str, str]) -> Account:
    """Recount a run; `policies` are the texts that were in force, by revision."""
    offered = pd.concat([pq.read_table(path).to_pandas() for path in sorted((root / "source").glob("*.parquet"))])
    admitted, rejected = read_decided(root)
    found = pd.concat([admitted[COLUMNS], rejected[COLUMNS]])
    matches = found.merge(offered[COLUMNS].assign(is_offered=True), on=COLUMNS, how="left")["is_offered"].notna()
    as_offered = found.reset_index(drop=True)[matches.to_numpy()]
    distinct = as_offered["id"].nunique()
    return Account(
        kills=kills,
        offered=len(offered),
        admitted=len(admitted),
        rejected=len(rejected),
        lost=len(offered) - distinct,
        doubled=len(found) - distinct,
        over_limit=sum(_excesses(root, admitted, policies)),
        out_of_order=count_out_of_order(admitted.sort_values(BATCH, kind="stable"), key="namespace", by="id"),
    )


def read_decided(root: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return admitted and rejected rows in the order in which they were written, with their batch."""
    if (root / "decided").exists():
        decided = _read_file_sink(root / "decided")
        is_admitted = decided["verdict"] == "ADMIT"
        return decided[is_admitted], decided[~is_admitted]
    return _read(root / "admitted"), _read(root / "rejected" if (root / "rejected").exists() else _DEAD(root))


def _DEAD(root: Path) -> Path:  # noqa: N802
    return root / "checkpoint" / "throttle" / "rejected"


def _read(path: Path) -> pd.DataFrame:
    if (path / "_delta_log").exists():
        return read_table(path, COLUMNS)
    pieces = [
        pq.read_table(file, columns=COLUMNS, partitioning=None).to_pandas().assign(**{BATCH: _batch_of(file)})
        for file in sorted(path.rglob("*.parquet"))
        if "_temporary" not in file.parts
    ]
    return pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame(columns=[*COLUMNS, BATCH])


def _batch_of(file: Path) -> int:
    """Return the batch that a folder names, -1 where the sink does not say."""
    return next((int(part.partition("=")[2]) for part in file.parts if part.startswith("batch=")), -1)


def _read_file_sink(path: Path) -> pd.DataFrame:
    """Return the rows of the files that the sink's own log names."""
    pieces = []
    for log in sorted((path / "_spark_metadata").iterdir(), key=lambda entry: entry.name.rjust(20, "0")):
        if log.name.startswith("."):
            continue
        for line in log.read_text().splitlines()[1:]:
            entry: dict[str, Any] = json.loads(line)
            file = Path(unquote(urlsplit(entry["path"]).path))
            # A compacted log repeats what the logs before it said.
            pieces.append((file, int(log.name.partition(".")[0])))
    first: dict[Path, int] = {}
    for file, batch in pieces:
        first[file] = min(batch, first.get(file, batch))
    frames = [pq.read_table(file).to_pandas().assign(**{BATCH: batch}) for file, batch in first.items()]
    return pd.concat(frames, ignore_index=True)


def _excesses(root: Path, admitted: pd.DataFrame, policies: Mapping[str, str]) -> Iterator[bool]:
    """Yield of every quota, and every time that a revision was in force, whether more was admitted than it allows."""
    if (admitted[BATCH] < 0).any():
        return  # a sink that does not say in which batch a row came
    times_ms = read_batch_times_ms(root / "checkpoint")
    for revision, batches in _reigns(root, list(times_ms)):
        document = parse_policies(policies[revision])
        of_reign = {batch: times_ms[batch] for batch in batches}
        rows = admitted[admitted[BATCH].isin(of_reign)]
        tenant = rows["namespace"].str.partition("/")[0]
        group = rows["namespace"].map({name: one.resource_group for name, one in document.namespaces.items()})
        of_tenant = tenant.map({name: one.resource_group for name, one in document.tenants.items()})
        group = group.where(group.notna(), of_tenant)
        scopes = [
            *((quota.publish, rows[group == name], SHARDS) for name, quota in document.resource_groups.items()),
            *((quota.publish, rows[tenant == name], SHARDS) for name, quota in document.tenants.items()),
            *((quota.publish, rows[rows["namespace"] == name], 1) for name, quota in document.namespaces.items()),
        ]
        for quota, passed, debtors in scopes:
            by_batch = passed.groupby(BATCH)
            for rate, counts, most in (
                (quota.messages_per_second, by_batch.size(), debtors),
                (quota.bytes_per_second, by_batch["size"].sum(), debtors * LARGEST_BYTES),
            ):
                if rate is not None:
                    burst = float(rate * quota.burst_seconds)
                    yield excess(counts, of_reign, per_second=float(rate), burst=burst) > most


def _reigns(root: Path, batches: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield revisions with the batches, one after another, that they were in force for."""
    revision, reign = "", list[int]()
    for batch in batches:
        now = _revision(root, batch)
        if now != revision and reign:
            yield revision, reign
            reign = []
        revision = now
        reign.append(batch)
    if reign:
        yield revision, reign


def _revision(root: Path, batch: int) -> str:
    """Return the revision that a batch was planned with: its offset names the epoch, and the epoch the revision."""
    lines = (root / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
    named = next(json.loads(line) for line in lines if '"epoch"' in line)
    epoch = root / "checkpoint" / "throttle" / "epochs" / named["file"]
    return unpack_epoch(epoch.read_bytes(), str(epoch)).revision


def revisions(texts: tuple[str, ...]) -> dict[str, str]:
    """Return policies by their revision."""
    return {revision_of(parse_policies(text), "publish"): text for text in texts}
