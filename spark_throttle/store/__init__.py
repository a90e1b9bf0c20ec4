"""Policies live in a store: in Delta, in a file or in memory, between people who change them and jobs that follow them.

It may import `policy` and the layers below; it knows no job and no Spark. Start with `store`, the protocol, then
`service`, which checks every change. `policy_location` decides what a value of `policies=` means. Names are loaded when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_throttle.lazy_names import loaded_when_asked

if TYPE_CHECKING:
    from spark_throttle.store.policy_location import load_policies, open_store
    from spark_throttle.store.service import PolicyService
    from spark_throttle.store.store import Author

__all__ = ["Author", "PolicyService", "load_policies", "open_store"]

__getattr__ = loaded_when_asked(
    __name__,
    {
        "Author": "spark_throttle.store.store",
        "PolicyService": "spark_throttle.store.service",
        "load_policies": "spark_throttle.store.policy_location",
        "open_store": "spark_throttle.store.policy_location",
    },
)
