"""Policies from Apache Pegasus' table environments (https://pegasus.apache.org/administration/throttling).

The input is JSON or YAML, ``{table: {env: value}}``, or the output of the shell: a ``use TABLE`` line and, after
``[app_envs]``, a line ``name : value`` for each environment. A table becomes a namespace of the same name. One
environment may hold either of two kinds of value:

* ``2000*delay*100,5000*reject*50`` is kept as written;
* ``200K``, for the token bucket controllers (``replica.read_throttling_by_size``), becomes a rate per second with a
  burst of one second, and the excess is rejected.

Pegasus divides a table's numbers among its partitions; here they apply to the namespace as a whole.
"""

from __future__ import annotations

import re
from typing import Any, Final

from spark_throttle.core.limits.pegasus_grammar import parse_throttling
from spark_throttle.errors import PolicyError
from spark_throttle.importers.import_result import ImportResult, mapping_of
from spark_throttle.policy.yaml_text import read_yaml

_RULES: Final = {
    "replica.write_throttling": "write_throttling",
    "replica.write_throttling_by_size": "write_throttling_by_size",
    "replica.read_throttling": "read_throttling",
}
_RATES: Final = {
    "replica.read_throttling_by_size": ("dispatch", "bytes_per_second"),
    "replica.read_throttling": ("dispatch", "messages_per_second"),
    "replica.write_throttling": ("publish", "messages_per_second"),
    "replica.write_throttling_by_size": ("publish", "bytes_per_second"),
}
_FACTOR: Final = {"": 1, "K": 1024, "M": 1024**2}
_PLAIN_RATE = re.compile(r"([1-9][0-9]*)([KM]?)", re.ASCII)
_USE = re.compile(r"\s*(?:>>>)?\s*use\s+(\S+)\s*")
_ENV = re.compile(r"\s*([\w.\-]+)\s*:\s*(.*?)\s*")


def import_pegasus(text: str, *, table: str | None = None) -> ImportResult:
    """Return Pegasus' table environments as policies.

    Parameters
    ----------
    table
        The table that the environments belong to, if the text does not name it.

    Examples
    --------
    >>> found = import_pegasus('{"temp": {"replica.write_throttling": "2K*delay*100", "default_ttl": "86400"}}')
    >>> found.document.namespaces["temp"].write_throttling
    '2K*delay*100'
    >>> found.unexpressed
    ('temp: default_ttl = 86400 is not a quota of a policy',)
    """
    namespaces: dict[str, dict[str, Any]] = {}
    unexpressed: list[str] = []
    for name, envs in _tables(text, table).items():
        says: dict[str, Any] = {}
        for env, value in envs.items():
            problem = _take_over(env, str(value), says)
            if problem:
                unexpressed.append(f"{name}: {env} = {value} {problem}")
        if says:
            namespaces[name] = says
    return ImportResult.of({"namespaces": namespaces}, unexpressed)


def _take_over(env: str, value: str, says: dict[str, Any]) -> str:
    """Add an environment to a namespace's values; return why it cannot be added, or an empty text."""
    rate = _PLAIN_RATE.fullmatch(value)
    if env in _RATES and rate:
        direction, key = _RATES[env]
        quota = says.setdefault(direction, {"burst_seconds": 1, "on_excess": "reject"})
        quota[key] = int(rate[1]) * _FACTOR[rate[2]]
        return ""
    if env not in _RULES:
        return "is not a quota of a policy" if env not in _RATES else "is not a rate such as 200K; Pegasus ignores it"
    try:
        parse_throttling(value)
    except PolicyError as error:
        return f"cannot be read: {error.problem}"
    says[_RULES[env]] = value
    return ""


def _tables(text: str, table: str | None) -> dict[str, dict[str, str]]:
    if text.lstrip().startswith("{") or "[app_envs]" not in text:
        values = mapping_of(read_yaml(text), "")
        if table is not None:
            values = {table: values}
        return {name: dict(mapping_of(envs, name)) for name, envs in values.items()}
    tables: dict[str, dict[str, str]] = {}
    name, is_inside = table, False
    for number, line in enumerate(text.splitlines(), start=1):
        if use := _USE.fullmatch(line):
            name, is_inside = use[1], False
        elif line.strip() == "[app_envs]":
            is_inside = True
        elif is_inside and (env := _ENV.fullmatch(line)):
            if name is None:
                raise PolicyError("", f"line {number}: the text does not name the table; give --table")
            tables.setdefault(name, {})[env[1]] = env[2]
    return tables
