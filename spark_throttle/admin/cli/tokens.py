"""Commands on the tokens of the admin API; a token's text is shown once, when it is created."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_throttle.admin.cli.audited import Audit, audited
from spark_throttle.admin.cli.options import OutputForm, ReportingGroup, wall_clock_ms
from spark_throttle.admin.cli.output import Form, Output, shown, table_of
from spark_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_throttle.admin.tokens import Token, TokenFile

app = typer.Typer(cls=ReportingGroup, no_args_is_help=True, help="Tokens of the admin API.")

TokensFile = Annotated[
    str, typer.Option("--tokens", envvar="SPARK_THROTTLE_TOKENS", metavar="FILE", help="The file of hashed tokens.")
]

TokenId = Annotated[str, typer.Argument(metavar="ID", help="The id that `list` shows.")]

DAYS: Final = 365
"""Days until a token expires, unless its maker says otherwise."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the owner, for the history.")],
    tokens: TokensFile,
    role: Annotated[str, typer.Option(help="admin, tenant_admin or viewer.")] = "viewer",
    tenant: Annotated[str | None, typer.Option(help="The tenant of a tenant_admin.")] = None,
    days: Annotated[int | None, typer.Option(help=f"Days until it expires; by default {DAYS}.")] = None,
    is_endless: Annotated[bool, typer.Option("--never-expires", help="It is accepted until it is revoked.")] = False,
    audit: Audit = None,
    form: OutputForm = Form.TEXT,
) -> None:
    """Create a token, and show it this one time."""
    with audited(tokens, audit) as about:
        about.extend([name, role, tenant or ""])
        if is_endless and days is not None:
            raise ConfigurationError(f"--days {days} and --never-expires exclude each other: give one of them")
        text = _file(tokens).create(
            name, role, tenant=tenant, days=None if is_endless else DAYS if days is None else days
        )
        about.append(id_of(text))
    Output(form).show({"token": text}, lambda: text)


@app.command("list")
def list_(tokens: TokensFile, form: OutputForm = Form.TEXT) -> None:
    """List the tokens, without their texts, which are not kept."""
    listed = _file(tokens).list()
    heads = ("id", "name", "role", "tenant", "created (UTC)", "expires (UTC)")
    Output(form).show(
        [_answer(token) for token in listed],
        lambda: table_of(
            [(head, False) for head in heads],
            [
                [token.id, token.name, _role(token.role), token.tenant,
                 _minute(token.created_ms), _minute(token.expires_ms)]
                for token in listed
            ],
        ),
    )  # fmt: skip


@app.command()
def rotate(
    token_id: TokenId,
    tokens: TokensFile,
    days: Annotated[
        int | None, typer.Option(help="Days until the new one expires; by default as many as the old one was given.")
    ] = None,
    overlap_minutes: Annotated[int, typer.Option(help="How long the old one is still accepted.")] = 0,
    audit: Audit = None,
    form: OutputForm = Form.TEXT,
) -> None:
    """Replace a token by a new one of the same owner and role, and show the new one this one time."""
    with audited(tokens, audit) as about:
        about.append(token_id)
        text = _file(tokens).rotate(token_id, days=days, overlap_minutes=overlap_minutes)
        about.append(id_of(text))
    Output(form).show({"token": text, "replaced": token_id}, lambda: text)


@app.command()
def revoke(
    token_id: TokenId,
    tokens: TokensFile,
    audit: Audit = None,
    form: OutputForm = Form.TEXT,
) -> None:
    """Revoke a token: it is refused from its next request on."""
    with audited(tokens, audit) as about:
        about.append(token_id)
        _file(tokens).revoke(token_id)
    Output(form).show({"revoked": token_id}, lambda: shown(f"token {token_id}: revoked"))


def _file(path: str) -> TokenFile:
    from spark_throttle.admin.tokens import TokenFile

    return TokenFile(path, clock_ms=wall_clock_ms)


def id_of(text: str) -> str:
    """Return the id of a token, which is no secret, from its text."""
    return text.split("_")[1]


def _answer(token: Token) -> dict[str, str | None]:
    return {
        "id": token.id, "name": token.name, "role": token.role, "tenant": token.tenant,
        "created_at": _time(token.created_ms), "expires_at": _time(token.expires_ms),
    }  # fmt: skip


def _role(role: str) -> str:
    from spark_throttle.admin.caller import ROLES

    return role if role in ROLES else f"{role} (unknown: may do nothing)"


def _minute(at_ms: int | None) -> str:
    """Return a time for people to read."""
    return "never" if at_ms is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_ms / 1000))


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))
