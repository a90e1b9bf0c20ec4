"""Texts that no tool writes, and fields that no importer knows."""

from __future__ import annotations

import pytest

from spark_throttle.errors import PolicyError
from spark_throttle.importers.pegasus import import_pegasus
from spark_throttle.importers.pulsar import import_pulsar

# ---------------------------------------------------------------------------------------------------- Kafka


def test_aliases_that_repeat_a_text_without_end_are_looked_at_once() -> None:
    layers = ["a0: &a0 {x: 1}"] + [f"a{at}: &a{at} {{x: *a{at - 1}, y: *a{at - 1}}}" for at in range(1, 28)]
    with pytest.raises(PolicyError, match="resource_groups"):
        import_pegasus("\n".join([*layers, "resource_groups: {}"]))


def test_unknown_field_with_fields_of_its_own_is_listed_beside_the_rates_of_one_group() -> None:
    found = import_pulsar('{"ratio": {"x": 1}, "publishRateInMsgs": 5}', group="gold")
    assert found.document.resource_groups["gold"].publish.messages_per_second == 5
    assert [line.partition(" = ")[0] for line in found.unexpressed] == ["resourcegroups.gold.ratio"]
