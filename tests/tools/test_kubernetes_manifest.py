"""The manifest of conf/kubernetes: its job starts with the settings of its ConfigMap, and follows its policies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from jobs.settings import load_settings
from spark_throttle.policy.source import PolicyFile
from tests.sessions import ROOT

CONFIG_MAP, APPLICATION = yaml.safe_load_all((ROOT / "conf" / "kubernetes" / "throttle.yaml").read_text())
DATA: dict[str, str] = CONFIG_MAP["data"]


def mount(folder: Path, data: dict[str, str]) -> None:
    """Mount a ConfigMap as a kubelet does: each file is a link into ``..data``, a link that one rename replaces."""
    kept = folder / f"..{len(list(folder.iterdir()))}"
    kept.mkdir()
    for name, text in data.items():
        (kept / name).write_text(text)
        os.utime(kept / name, ns=(1, 1))
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..next").symlink_to(kept.name)
    (folder / "..next").rename(folder / "..data")


def test_the_driver_mounts_the_config_map_and_the_job_gets_settings_that_load(tmp_path: Path) -> None:
    (mounted,) = APPLICATION["spec"]["driver"]["configMaps"]
    assert mounted["name"] == CONFIG_MAP["metadata"]["name"]
    key, conf = APPLICATION["spec"]["arguments"]
    assert (key, Path(conf).parent) == ("--conf", Path(mounted["path"]))
    mount(tmp_path, DATA)
    settings = load_settings(tmp_path / Path(conf).name)
    policies = Path(str(settings.throttle.policies))
    assert policies.parent == Path(mounted["path"])
    assert policies.name in DATA
    script = APPLICATION["spec"]["mainApplicationFile"].removeprefix("local:///opt/spark-throttle/")
    assert (ROOT / script).is_file()


@pytest.mark.parametrize("changed", ["messages_per_second: 200", "messages_per_second: 900"])
def test_policies_are_followed_when_the_kubelet_swaps_the_config_map(tmp_path: Path, changed: str) -> None:
    """Also where the new file has the size and the time of the old one."""
    mount(tmp_path, DATA)
    policies = PolicyFile(tmp_path / "policies.yaml")
    before = policies.current()
    mount(tmp_path, DATA | {"policies.yaml": DATA["policies.yaml"].replace("messages_per_second: 100", changed)})
    after = policies.current()
    assert after.problem is None
    limit = after.document.resource_groups["free"].publish.messages_per_second
    assert (before.revision != after.revision, f"messages_per_second: {limit:g}") == (True, changed)
