"""Commands on the tokens of the admin API; a token's text is shown once, when it is created."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from spark_throttle.admin.cli.options import OutputForm, ReportingGroup
from spark_throttle.admin.cli.output import Form, Output, shown, table_of

if TYPE_CHECKING:
    from spark_throttle.admin.tokens import Token, TokenFile

app = typer.Typer(cls=ReportingGroup, no_args_is_help=True, help="Tokens of the admin API.")

TokensFile = Annotated[
    str, typer.Option("--tokens", envvar="SPARK_THROTTLE_TOKENS", metavar="FILE", help="The file of hashed tokens.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the owner, for the history.")],
    tokens: TokensFile,
    role: Annotated[str, typer.Option(help="admin, tenant_admin or viewer.")] = "viewer",
    tenant: Annotated[str | None, typer.Option(help="The tenant of a tenant_admin.")] = None,
    days: Annotated[int | None, typer.Option(help="Days until it expires; by default it never does.")] = None,
    form: OutputForm = Form.TEXT,
) -> None:
    """Create a token, and show it this one time."""
    text = _file(tokens).create(name, role, tenant=tenant, days=days)
    Output(form).show({"token": text}, lambda: text)


@app.command("list")
def list_(tokens: TokensFile, form: OutputForm = Form.TEXT) -> None:
    """List the tokens, without their texts, which are not kept."""
    found = [_answer(token) for token in _file(tokens).list()]
    columns = [("id", False), ("name", False), ("role", False), ("tenant", False), ("expires", False)]
    Output(form).show(
        found,
        lambda: table_of(
            columns,
            [[row["id"], row["name"], row["role"], row["tenant"], row["expires_at"] or "never"] for row in found],
        ),
    )


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `list` shows.")],
    tokens: TokensFile,
    form: OutputForm = Form.TEXT,
) -> None:
    """Revoke a token: it is refused from its next request on."""
    _file(tokens).revoke(token_id)
    Output(form).show({"revoked": token_id}, lambda: shown(f"token {token_id}: revoked"))


def _file(path: str) -> TokenFile:
    from spark_throttle.admin.tokens import TokenFile

    return TokenFile(path, clock_ms=lambda: time.time_ns() // 1_000_000)  # noqa: TID251 - for creation and expiry


def _answer(token: Token) -> dict[str, str | None]:
    expires = (
        None if token.expires_ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(token.expires_ms / 1000))
    )
    return {
        "id": token.id, "name": token.name, "role": token.role, "tenant": token.tenant, "expires_at": expires,
    }  # fmt: skip
