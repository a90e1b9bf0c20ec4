"""The page's functions that touch no document, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.policy.quotas import NamespaceQuota, Quota
from tests.sessions import ROOT

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node to run the page's modules with")
PAGE = ROOT / "spark_throttle/admin/page"


def returned(module: str, function: str, *calls: list[Any], folder: Path) -> list[Any]:
    """Return what a function of a module of the page returns for each list of arguments, or the text of its error."""
    for script in PAGE.glob("*.js"):
        shutil.copy(script, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    schemas = {each.__name__: each.model_json_schema() for each in (Quota, NamespaceQuota)}
    program = (
        f"import {{ {function} }} from './{module}.js';"
        f"import {{ learn }} from './policy_fields.js'; learn({json.dumps(schemas)});"
        "const said = (call) => { try { return "
        + function
        + "(...call) ?? null } catch (error) { return error.message } };"
        f"console.log(JSON.stringify({json.dumps(calls)}.map(said)))"
    )
    (folder / "program.js").write_text(program)
    done = subprocess.run([str(NODE), str(folder / "program.js")], capture_output=True, text=True, check=True)
    values: list[Any] = json.loads(done.stdout)
    return values


@pytest.mark.slow
def test_number_without_a_unit_takes_none(tmp_path: Path) -> None:
    good = returned("numbers", "typedNumber", ["5000"], [" 0.5 "], [""], ["0"], ["5e3"], folder=tmp_path)
    assert good == [5000, 0.5, None, 0, 5000]
    for text in ("8MiB", "8 MB", "8K", "8k", "1M", "5s", "5/s", "-1", "five", "1,000"):
        (refusal,) = returned("numbers", "typedNumber", [text], folder=tmp_path)
        assert refusal == f'"{text}" is not a number without a unit, such as 5000 or 0.5'


@pytest.mark.slow
def test_size_takes_units_of_bytes_and_no_bare_prefix(tmp_path: Path) -> None:
    good = returned("numbers", "typedSize", ["5000"], ["8MiB"], ["1.5 MB"], ["1kB"], ["7B"], [""], folder=tmp_path)
    assert good == [5000, 8 * 2**20, 1_500_000, 1000, 7, None]
    for text in ("8K", "8M", "8iB", "8mib", "8 messages"):
        (refusal,) = returned("numbers", "typedSize", [text], folder=tmp_path)
        assert refusal.startswith(f'"{text}" is not a number of bytes')


@pytest.mark.slow
def test_only_fields_of_bytes_take_units_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "fields.js").write_text("""
        import { FIELDS } from './policy_fields.js';
        export const takes = (text) => FIELDS.filter(({ read }) => {
          try { read(text); return true } catch { return false }
        }).map(({ key }) => key);
    """)
    sized, all_fields = returned("fields", "takes", ["8MiB"], ["8"], folder=tmp_path)
    assert all_fields == [*NamespaceQuota.model_fields]
    in_bytes = [key for key in NamespaceQuota.model_fields if "bytes" in key]
    assert sized == [*in_bytes, "on_excess"]  # the last is chosen, not typed


@pytest.mark.slow
def test_scale_of_a_chart_has_short_texts_that_differ(tmp_path: Path) -> None:
    ticks = [[value, "messages"] for value in (0, 25_000, 1_500_000, 1_250_000_000)]
    assert returned("numbers", "scaleText", *ticks, folder=tmp_path) == ["0", "25K", "1.5M", "1.25B"]
    ticks = [[value * 2**20, "bytes"] for value in (0, 8, 16, 512)]
    assert returned("numbers", "scaleText", *ticks, folder=tmp_path) == ["0 B", "8 MiB", "16 MiB", "512 MiB"]


@pytest.mark.slow
def test_policy_keeps_what_the_form_does_not_edit(tmp_path: Path) -> None:
    destination = {"floor_messages_per_second": 1}
    policy = {"resource_group": "gold", "write_throttling": "2*delay*100", "destination": destination,
              "publish": {"weight": 2}, "schedule": {"sat,sun": {"publish": {"weight": 3}}}}  # fmt: skip
    typed = {"resource_group": None, "locked": False, "publish.weight": None, "publish.on_excess": "delay",
             "dispatch.messages_per_second": 0, "dispatch.on_excess": "reject"}  # fmt: skip
    (changed,) = returned("policy_fields", "changedPolicy", [policy, typed], folder=tmp_path)
    assert changed == {
        "write_throttling": "2*delay*100", "destination": destination, "schedule": policy["schedule"],
        "dispatch": {"messages_per_second": 0, "on_excess": "reject"},
    }  # fmt: skip
    (said,) = returned("policy_fields", "otherText", [changed], folder=tmp_path)
    assert said == (
        "at sat,sun publish.weight: 3, write_throttling: 2*delay*100, destination.floor_messages_per_second: 1"
    )
    (found,) = returned("policy_fields", "differences", [policy, changed], folder=tmp_path)
    none = "\u2013"
    assert found == [
        ["resource_group", "gold", none], ["publish.weight", "2", none], ["dispatch.messages_per_second", none, "0"],
        ["dispatch.on_excess", none, "reject"],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quota", "said"),
    [
        ({"messages_per_second": 0}, "0 messages/s, burst 10 s, weight 1, delay (0 admits nothing: rows wait until"),
        ({"bytes_per_second": 0, "on_excess": "delay"}, "0 B/s, burst 10 s, weight 1, delay (0 admits nothing:"),
        ({"messages_per_second": 0, "on_excess": "reject"}, "0 messages/s, burst 10 s, weight 1, reject"),
        ({"max_message_bytes": 1024}, "largest message 1 KiB"),
        ({"weight": 3}, "weight 3"),
        ({"units_per_month": 50_000_000, "bytes_per_day": 1024}, "bytes per day 1 KiB, units per month 50,000,000"),
        ({}, ""),
    ],
)
def test_quota_of_zero_says_what_it_does(tmp_path: Path, quota: dict[str, Any], said: str) -> None:
    (text,) = returned("policy_fields", "quotaText", [quota], folder=tmp_path)
    assert text.startswith(said)
    assert ("0 admits nothing" in text) == ("0 admits nothing" in said)


@pytest.mark.slow
def test_page_of_names_begins_right_before_a_prefix(tmp_path: Path) -> None:
    for prefix in ("a", "acme/", "été", "x\ue000", "x\U00010000"):
        (before,) = returned("policy_fields", "justBefore", [prefix], folder=tmp_path)
        assert before < prefix
        assert not before.startswith(prefix)
        nearest = prefix[:-1] + chr(0xD7FF if prefix[-1] == "\ue000" else ord(prefix[-1]) - 1) + "zz"
        assert nearest < before
    assert returned("policy_fields", "justBefore", [""], folder=tmp_path) == [""]


def revisions(*numbers: int) -> list[dict[str, int]]:
    return [{"revision": number} for number in numbers]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shown", "newest", "merged"),
    [
        ([], [3, 2], [3, 2]),
        ([4, 3, 2, 1], [5, 4], [5, 4, 3, 2, 1]),
        ([3, 2, 1], [5, 4], [5, 4, 3, 2, 1]),
        ([2, 1], [5, 4], [5, 4]),  # a gap: nobody has read revision 3
        ([9, 8, 7], [4, 3], [4, 3]),  # a restored store
        ([2, 1], [], []),
    ],
)
def test_changes_that_were_shown_stay_shown(
    tmp_path: Path, shown: list[int], newest: list[int], merged: list[int]
) -> None:
    calls = [revisions(*shown), revisions(*newest)]
    assert returned("policy_fields", "mergedHistory", calls, folder=tmp_path) == [revisions(*merged)]


@pytest.mark.parametrize(
    ("active", "backlogged", "ratio", "services", "said"),
    [
        (1, 1, None, [0.5], "Namespaces compete only while two or more have a backlog."),
        (3, 3, None, [None, None, None], "The group has no quota to share, or one of 0."),
        (3, 3, None, [0.5, 0, 0], "Fewer than two of these were admitted anything"),
        (2, 2, 1.0, [0.5, 0.5], "those that were admitted anything had equal shares by weight."),
        (2, 2, 1.5, [0.6, 0.4], "the best served had 1.50 times the share by weight of the worst served."),
        (9, 2, 1.5, [0.6, 0.4], "The 2 with the most messages are shown."),
    ],
)
def test_sentence_on_fairness_does_not_contradict_itself(
    tmp_path: Path, active: int, backlogged: int, ratio: float | None, services: list[float | None], said: str
) -> None:
    page = {"active": active, "backlogged": backlogged, "fairness_ratio": ratio,
            "namespaces": [{"service": service} for service in services]}  # fmt: skip
    (text,) = returned("fairness", "fairnessText", [page], folder=tmp_path)
    assert said in text
    assert ("compete only" in text) == (backlogged < 2)


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 401, 403, 409, 412, 428, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("is_change", [False, True])
def test_every_failure_says_what_happened_and_what_to_do(tmp_path: Path, status: int, is_change: bool) -> None:
    (said,) = returned("advice", "advice", [status, "it went wrong", {"isChange": is_change}], folder=tmp_path)
    assert said.startswith("It went wrong. ")
    remedies = ("tries again", "Try again", "Sign in", "An administrator may", "Look at", "look at", "confirmed")
    assert any(remedy in said for remedy in remedies)
    # Whether a change was made is unknown only where the server may have made it.
    outcome = "It is unknown whether" if status in (0, 500, 502, 504) else "Nothing was changed."
    assert (outcome in said) == is_change


@pytest.mark.slow
def test_quota_of_many_names_says_how_many_are_only_observed_and_others_do_not(tmp_path: Path) -> None:
    quotas = [{"messages_per_second": 5, "observe_percent": 90}, {"messages_per_second": 5}]
    many, one = returned("policy_fields", "quotaText", *([each] for each in quotas), folder=tmp_path)
    assert many == f"{one}, 90 % of the names only observed"


@pytest.mark.slow
def test_rates_of_a_namespace_are_shown_in_what_is_chosen(tmp_path: Path) -> None:
    numbers = {"rejected_per_second": 7, "rejected_bytes_per_second": 2048}
    calls = [[numbers, "rejected", dimension] for dimension in ("messages", "bytes")]
    assert returned("numbers", "rateOf", *calls, folder=tmp_path) == ["7", "2 KiB"]
