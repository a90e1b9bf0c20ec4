"""What `make run` prints before Spark has started."""

from __future__ import annotations

from rich.console import Console

from demos.introduction import introduction
from spark_throttle.policy.codec import parse_policies

POLICIES = """
resource_groups:
  gold: {publish: {messages_per_second: 10000}}
  bronze: {publish: {messages_per_second: 3000}}
  free: {publish: {messages_per_second: 0.5, on_excess: reject}}
  dry: {publish: {messages_per_second: 1, on_excess: observe}}
  open: {}
queue: {age_seconds: 15}
"""


def test_introduction_says_of_each_group_what_happens_to_the_excess() -> None:
    offered = {"gold": 7500, "bronze": 9000, "free": 1500, "dry": 2, "open": 3}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(introduction(parse_policies(POLICIES), offered))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capture.get().splitlines()]
    assert [row for row in rows if row] == [
        ["gold", "7,500", "10,000", "waits"],
        ["bronze", "9,000", "3,000", "waits; rejected after 15 s"],
        ["free", "1,500", "0.5", "rejected at once"],
        ["dry", "2", "1", "passes, is counted"],
        ["open", "3", "none", ""],
    ]
