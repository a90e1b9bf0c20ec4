"""Requests that schemathesis makes of the API's own description, and what must hold of every answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from tests.admin.conftest import ServedApp

if TYPE_CHECKING:
    from schemathesis.generation import GenerationMode

CHECKED = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection",
)  # fmt: skip
WRITES = ("PUT", "POST", "DELETE")
ROLES = (None, "viewer", "tenant_admin", "admin")


@dataclass
class Tally:
    """What was asked and answered."""

    requests: Counter[str] = field(default_factory=Counter)
    """Number of requests by the token's role; `nobody` has no token."""

    statuses: Counter[int] = field(default_factory=Counter)


def fuzz(served: ServedApp, *, examples: int, start: int) -> Tally:
    """Make `examples` requests of every call with every kind of token, and check each answer and what it wrote."""
    # Here, for it takes two CPU seconds to load, and each process of pytest collects this module.
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.config import SchemathesisConfig
    from schemathesis.core.result import Ok
    from schemathesis.generation import GenerationMode

    load_all_checks()
    checks = [CHECKS.get_one(name) for name in CHECKED]
    # Each request brings the token of its role, so to leave out the header is not to ask wrongly.
    config = SchemathesisConfig.from_dict({"generation": {"with-security-parameters": False}})
    schema = schemathesis.openapi.from_asgi("/openapi.json", served.app, config=config)
    tally = Tally()
    for at, result in enumerate(schema.get_all_operations()):
        assert isinstance(result, Ok)
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _fuzz_one(served, operation, mode, checks, tally, (examples + 1) // 2, start + at)
            except Unsatisfiable:
                # A call without parameters cannot be asked wrongly.
                assert mode is GenerationMode.NEGATIVE
    return tally


def _fuzz_one(
    served: ServedApp,
    operation: Any,
    mode: GenerationMode,
    checks: list[Any],
    tally: Tally,
    n: int,
    at: int,
) -> None:
    cases = operation.as_strategy(generation_mode=mode)

    @seed(at)
    @settings(
        max_examples=n, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases)
    def ask(case: Any) -> None:
        # To generate a request takes longer than to answer it. Who may write asks last.
        for role in ROLES:
            _ask_as(role, case)

    def _ask_as(role: str | None, case: Any) -> None:
        headers = {} if role is None else {"Authorization": f"Bearer {served.tokens[role]}"}
        before = served.store.revision()
        answer = case.call(headers=headers)
        tally.requests[role or "nobody"] += 1
        tally.statuses[answer.status_code] += 1
        case.validate_response(answer, checks=checks)
        may_write = role == "admin" or (
            role == "tenant_admin" and "namespaces" in operation.path + str(case.path_parameters)
        )
        if served.store.revision() != before:
            assert may_write, (role, operation.label)
            assert operation.method.upper() in WRITES
            (entry,) = served.store.history(limit=1)
            assert entry.who.startswith(f"{role}-of-test (token ")
            if role == "tenant_admin":
                changed = served.store.changed(after=before, until=before + 1)
                assert all(e.kind == "namespace" and e.name.partition("/")[0] == "acme" for e in changed)
        if role is None and operation.path != "/healthz":
            assert answer.status_code in {401, 413, 429}

    ask()
