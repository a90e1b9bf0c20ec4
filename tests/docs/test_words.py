"""What the pages list is what the code has: keys, reasons, metrics, exit codes, files, targets, tests."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from spark_throttle.admin.api.pip82_calls import OTHER_NAMES
from spark_throttle.admin.refusals import Exit
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.admin.watch.metrics import exposed
from spark_throttle.core.batch.decisions import REASONS
from spark_throttle.policy.model import (
    DIRECTIONS,
    DestinationPolicy,
    GroupPolicy,
    JobPolicy,
    NamespacePolicy,
    PolicyDocument,
    QueuePolicy,
)
from spark_throttle.policy.quotas import NamespaceQuota
from spark_throttle.sharing.settings import SHARE_POLICIES, ExchangeOptions, ShareSettings
from spark_throttle.spark.columns.payload_columns import SOURCE_ORDERS
from spark_throttle.spark.sinks.targets import FORMATS
from spark_throttle.status.usage_table import USAGE_SCHEMA
from spark_throttle.store.policy_location import open_store
from tests.docs.names import make_targets
from tests.docs.snippets import PAGES
from tests.integration import restarts
from tests.sessions import ROOT

DOCS = ROOT / "docs"
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
_PATH = re.compile(r"(?:conf|docs|jobs|notebooks|scripts|tests)/[\w./*-]+")


def words_in_code(page: Path) -> set[str]:
    return set(_CODE.findall(page.read_text()))


def plain(text: str) -> str:
    """Return a text without links, code, line breaks and its last full stop."""
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", text).lower().rstrip(".").split())


def test_policies_has_every_key() -> None:
    assert PolicyDocument.model_fields.keys() <= words_in_code(DOCS / "policies.md")
    parts = (NamespacePolicy, GroupPolicy, JobPolicy, DestinationPolicy, QueuePolicy, NamespaceQuota)
    texts = {key: field.description for part in parts for key, field in part.model_fields.items()}
    page = (DOCS / "policies.md").read_text()
    rows = dict(reversed(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE)))  # of several the first
    unlike = {key for key in texts.keys() - {*DIRECTIONS} if not plain(rows[key]).startswith(plain(texts[key] or "?"))}
    assert unlike == set(), "a row begins with the key's text in the model"


def test_sending_has_every_reason_of_a_dead_letter() -> None:
    assert set(REASONS) - {""} <= words_in_code(DOCS / "sending.md")


def test_guarantees_has_the_order_of_every_source() -> None:
    _, _, order = (DOCS / "guarantees.md").read_text().partition("\n## Order\n")
    written = set(_CODE.findall(order.partition("\n## ")[0]))
    assert set().union(*SOURCE_ORDERS) <= written


def test_guarantees_has_every_format_of_a_sink_beside_its_promise() -> None:
    rows = re.findall(r"^\| (.+?) \| ([\w' ]+) \|", (DOCS / "guarantees.md").read_text(), re.MULTILINE)
    promised = {(name, promise) for names, promise in rows for name in _CODE.findall(names)}
    assert {(each.name, each.promise) for each in FORMATS.values() if not each.refused} <= promised


def test_changing_a_job_has_the_table_of_restarts_that_tests_make() -> None:
    assert f"\n\n{restarts.table()}\n" in (DOCS / "changing-a-job.md").read_text()


def test_admin_has_every_field_of_a_group_that_has_not_the_name_of_its_key() -> None:
    assert {f"publish{name}" for name in OTHER_NAMES.values()} <= words_in_code(DOCS / "admin.md")


def test_contributing_names_files_and_tests_that_exist() -> None:
    words = words_in_code(ROOT / "CONTRIBUTING.md")
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in words if re.fullmatch(r"test_\w+", name) and f"def {name}(" not in tests] == []
    paths = {name for name in words if re.fullmatch(r"(?:conf|docs|jobs|scripts|spark_throttle|tests)/[\w./]+", name)}
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_recipes_are_of_at_most_five_files_a_commit() -> None:
    _, _, recipes = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## How to add")
    tables = [re.findall(r"^\| (?!file |---)", table, re.MULTILINE) for table in recipes.split("| file |")[1:]]
    assert tables
    assert max(map(len, tables)) <= 5


def test_operating_has_every_exit_code() -> None:
    table = re.findall(r"^\| (\d+) \|", (DOCS / "operating.md").read_text(), re.MULTILINE)
    assert {int(code) for code in table} >= {int(code) for code in Exit}


def test_operating_has_every_metric_and_no_other() -> None:
    names = re.findall(
        r"^# TYPE spark_throttle_(\w+) ", exposed(JobWatch({}), open_store("memory:")).decode(), re.MULTILINE
    )
    text = (DOCS / "operating.md").read_text()
    # The table says of three counters that they exist of bytes and units too.
    written = words_in_code(DOCS / "operating.md")
    said = {name for name in names if {name, re.sub("_(bytes|units)_total", "_messages_total", name)} & written}
    assert set(names) == said
    assert set(re.findall(r"spark_throttle_(\w+)", text)) <= set(names)


def test_several_jobs_has_the_default_of_every_key_of_an_exchange() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?([\w.]+)(?: s|`)? \|", (DOCS / "several-jobs.md").read_text(), re.MULTILINE)
    given = {key: text if key == "policy" else float(text) for key, text in rows}
    assert len(given) == len(fields(ShareSettings))
    assert ExchangeOptions.parse({"path": "/exchange", **given}).settings == ShareSettings()


def test_several_jobs_and_documents_have_every_policy_of_division() -> None:
    text = (DOCS / "documents.md").read_text() + (DOCS / "several-jobs.md").read_text()
    assert all(policy in text for policy in SHARE_POLICIES)


def test_operating_names_the_columns_of_the_usage_table() -> None:
    written = words_in_code(DOCS / "operating.md")
    said = {name for name in USAGE_SCHEMA.names if {name, re.sub(r"_(messages|bytes|units)$", "", name)} & written}
    assert said == set(USAGE_SCHEMA.names)


def test_how_it_works_names_at_most_ten_files_in_order_and_they_exist() -> None:
    text = (DOCS / "how-it-works.md").read_text()
    order = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \|", text, re.MULTILINE)
    assert [int(number) for number, _ in order] == list(range(1, len(order) + 1))
    assert 0 < len(order) <= 10
    named = re.findall(r"`((?:control|core|checkpoint|spark)/[\w/]+\.py)`", text)
    assert {path for _, path in order} <= set(named)
    assert [path for path in named if not (ROOT / "spark_throttle" / path).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tests" / "benchmarks" / "README.md"], ids=lambda page: page.stem)
def test_files_and_targets_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    named = {path.rstrip("./") for code in _CODE.findall(text) for path in _PATH.findall(code) if " " not in code}
    missing = [path for path in named if not list(ROOT.glob(path)) and "v1" not in path]
    assert missing == []
    assert set(re.findall(r"\bmake ([a-z][a-z-]+)(?=[`\s])", " ".join(_CODE.findall(text)))) <= make_targets()
    assert [
        link for link in _LINK.findall(text) if not (page.parent / link).exists() and "generated/" not in link
    ] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_to_a_heading_name_it_as_github_and_the_book_do(page: Path) -> None:
    linked = [(page.parent / path if path else page, name) for path, name in _ANCHOR.findall(page.read_text())]
    assert [f"{path.name}#{name}" for path, name in linked if name not in headings(path)] == []


def headings(page: Path) -> set[str]:
    """Return the names of a page's headings in links: both keep underscores."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def test_documents_has_every_worked_number() -> None:
    provenance = (ROOT / "tests" / "conformance" / "PROVENANCE.md").read_text()
    numbers = _CODE.findall(provenance.partition("| document | numbers |")[2])
    page = (DOCS / "documents.md").read_text()
    assert len(numbers) > 40
    assert [number for number in numbers if number not in page] == []


def test_documents_names_tests_that_exist() -> None:
    page = (DOCS / "documents.md").read_text()
    modules, named = (set(re.findall(rf"`(test_\w+{end})`", page)) for end in (r"\.py", ""))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert modules
    assert [name for name in modules if not (ROOT / "tests" / "conformance" / name).exists()] == []
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_pictures_show_what_their_sources_say() -> None:
    sources = sorted((DOCS / "diagrams").glob("*.d2"))
    assert sources
    for source in sources:
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        for theme in ("light", "dark"):
            picture = source.with_name(f"{source.stem}-{theme}.svg").read_text()
            assert picture.endswith(f"<!-- {source.name} {digest} -->\n"), f"{source.name}: make docs draws it anew"


def test_every_page_is_linked_from_the_landing_page() -> None:
    index = re.findall(r"^(?:.* <)?([\w-]+)>?$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert [page.stem for page in PAGES[1:] if page.stem != "index" and page.stem not in index] == []
