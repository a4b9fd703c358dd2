"""`stepfast encryption`: the keys with which payloads, cursors, results and events are encrypted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, operating
from stepfast.cli.output import Listing, answer, complain

if TYPE_CHECKING:
    from stepfast.reports import EncryptionKey


app = typer.Typer(help="List encryption keys, and rotate them.", no_args_is_help=True)

KEYS: Listing[EncryptionKey] = Listing(
    columns={"key": "key", "documents": "documents", "here": "here", "seals": "seals"},
    empty="nothing is encrypted, and STEPFAST_SECRET_KEY is not set",
)


@app.command("list")
def list_(ctx: typer.Context, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """List the keys that encrypted rows need, and whether STEPFAST_SECRET_KEY has them here. Reads every such row."""
    with operating(ctx, database_url) as operator:
        KEYS.show(operator.encryption_keys(), json=json)


@app.command("rotate")
def rotate(
    ctx: typer.Context,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Encrypt everything anew with the first key of STEPFAST_SECRET_KEY. Safe to stop, and to run again.

    Exits with 1 if rows are left whose key is not here.
    """
    with operating(ctx, database_url, by, reason) as operator:
        done = operator.rotate_encryption()
    sentence = f"key {done.key}: {done.renewed} rows encrypted anew, {done.current} were under it before"
    answer(done, sentence, json=json)
    if done.unreadable:
        if not json:
            complain(f"{done.unreadable} rows need a key that is not here (stepfast encryption list)")
        raise typer.Exit(1)
