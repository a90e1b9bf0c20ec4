"""Policies from Apache Pegasus' table environments (https://pegasus.apache.org/administration/throttling).

The input is JSON or YAML, ``{table: {env: value}}``, or what the shell prints: a ``use TABLE`` line and the output of
``get_app_envs``, in any of its forms. A table becomes a namespace of the same name. The forms are::

    [app_envs]                              ``name : value`` on each line
    {"app_envs": {"name": "value"}}         the same with ``-j``
    get app envs succeed, count = 1         ``name = value`` between two rules of ``=`` (earlier releases)

Of two lists of a table the later counts. One environment may hold either of two kinds of value:

* ``2000*delay*100,5000*reject*50`` is kept as written;
* ``200K``, for the token bucket controllers (``replica.read_throttling_by_size``), becomes a rate per second with a
  burst of one second, and the excess is rejected.

Pegasus divides a table's numbers among its partitions; here they apply to the namespace as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from spark_throttle.core.limits.pegasus import parse_throttling
from spark_throttle.errors import PolicyError
from spark_throttle.importers.origin import ImportResult, Origin, check_origin, mapping_of
from spark_throttle.policy.yaml_text import read_yaml
from spark_throttle.remedies import Remedy

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
_PROMPT = re.compile(r"\s*>>>\s*")
_USE = re.compile(r"use\s+(\S+)\s*")
_COLONS: Final = "[app_envs]"
_EQUALS = re.compile(r"get app envs succeed, count = [0-9]+\s*")
_RULE = re.compile(r"={5,}\s*")
_ENV: Final = {
    sign: re.compile(rf"\s*([\w.\-]+)\s*{sign}\s*(.*?)\s*") for sign in (":", "=")
}  # fmt: skip
_JSON: Final = "app_envs"


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
    check_origin(text, Origin.PEGASUS)
    namespaces: dict[str, dict[str, Any]] = {}
    unexpressed: list[str] = []
    for name, envs in _tables(text, table).items():
        if not envs:
            unexpressed.append(f"{name}: the table has no environments, so nothing limits it")
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
    shell = _Shell(table)
    if shell.read(text):
        return shell.tables
    values = mapping_of(read_yaml(text), "")
    if table is not None:
        if any(isinstance(value, Mapping) for value in values.values()):
            raise PolicyError("", f"the text names its tables, so {table!r} cannot be the name of one table's values")
        values = {table: values}
    return {name: dict(mapping_of(envs or {}, name)) for name, envs in values.items()}


class _Shell:
    """Reads what the shell prints, line by line."""

    def __init__(self, table: str | None) -> None:
        self.tables: dict[str, dict[str, str]] = {}
        self._table = table
        self._is_named_by_shell = False
        self._sign: str | None = None
        """What stands between a name and its value in the list that is being read; `None` outside of one."""

        self._envs: dict[str, str] = {}

    def read(self, text: str) -> bool:
        """Read the lists of a text; return whether it has any, or at least says which tables it is of.

        Of a table without environments, some releases print an empty list, and others nothing.
        """
        lines = text.splitlines(keepends=True)
        has_list, at = False, 0
        while at < len(lines):
            line = _PROMPT.sub("", lines[at], count=1)
            number, at = at + 1, at + 1
            if use := _USE.fullmatch(line):
                self._table, self._is_named_by_shell, self._sign, has_list = use[1], True, None, True
                self.tables.setdefault(use[1], {})
            elif line.strip() == _COLONS or _EQUALS.fullmatch(line):
                self._begin(number)
                self._sign, has_list = ":" if line.strip() == _COLONS else "=", True
            elif line.startswith("{") and (envs := _printed_json("".join([line, *lines[at:]]))) is not None:
                self._begin(number)
                self._envs.update(envs[0])
                has_list, at = True, at + envs[1]
            elif self._sign is not None:
                self._read_env(line)
        return has_list

    def _begin(self, number: int) -> None:
        if self._table is None:
            raise PolicyError("", f"line {number}: the text does not name the table", Remedy.NAME_TABLE)
        if self._table in self.tables and not self._is_named_by_shell:
            raise PolicyError("", f"line {number}: a second list, and no line `use TABLE` says whose; keep one")
        self._envs = self.tables[self._table] = {}

    def _read_env(self, line: str) -> None:
        if self._sign == "=" and _RULE.fullmatch(line):
            self._sign = None if self._envs else self._sign
        elif self._sign is not None and (env := _ENV[self._sign].fullmatch(line.rstrip("\r\n"))):
            self._envs[env[1]] = env[2]
        else:
            self._sign = None


def _printed_json(text: str) -> tuple[dict[str, str], int] | None:
    """Return the environments that ``get_app_envs -j`` printed where a text begins, and how many more lines they take.

    It is `None` if something else stands there.
    """
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    envs = value.get(_JSON) if isinstance(value, dict) and set(value) == {_JSON} else None
    if not isinstance(envs, dict) or not all(isinstance(each, str) for each in envs.values()):
        return None
    return envs, text[:end].count("\n")
