"""`stepfast keys`: the keys under which payloads, cursors, results and events are encrypted."""

from __future__ import annotations

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, actor, opened
from stepfast.cli.output import complain, print_json, print_table

app = typer.Typer(help="Keys of what is stored encrypted.", no_args_is_help=True)


@app.command("list")
def list_(ctx: typer.Context, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """List the keys that encrypted rows need, and whether STEPFAST_SECRET_KEY has them here. Reads every such row."""
    from stepfast.admin.encryption import keys_in_use
    from stepfast.encryption import key_ids

    here = key_ids()
    with opened(ctx, database_url) as database:
        needed = keys_in_use(database)
    found = [
        {
            "key": key,
            "documents": needed.get(key, 0),
            "here": key in here,
            "seals": bool(here) and key == here[0],
        }
        for key in [*here, *sorted(needed.keys() - set(here))]
    ]
    if json:
        print_json(found)
        return
    print_table(
        ("key", "documents", "here", "seals"),
        [(it["key"], it["documents"], it["here"], it["seals"]) for it in found],
        empty="nothing is encrypted, and STEPFAST_SECRET_KEY is not set",
    )


@app.command("rotate")
def rotate(
    ctx: typer.Context,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Encrypt everything anew under the first key of STEPFAST_SECRET_KEY. Safe to stop, and to run again.

    Exits with 1 if rows are left whose key is not here.
    """
    from stepfast.admin.encryption import rotate as rotate_keys

    with opened(ctx, database_url) as database:
        done = rotate_keys(database, by=actor(by, reason))
    if json:
        print_json(done)
    else:
        typer.echo(f"key {done.key}: {done.renewed} rows encrypted anew, {done.current} were under it before")
        if done.unreadable:
            complain(f"{done.unreadable} rows need a key that is not here (stepfast keys list)")
    if done.unreadable:
        raise typer.Exit(1)
