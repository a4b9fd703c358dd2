"""`stepfast quarantine`: rows that could not be mapped or stored, and what to do with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, OneFeed, Reason, Why, actor, opened
from stepfast.cli.output import print_facts, print_json, print_table, progress

if TYPE_CHECKING:
    from stepfast.admin.quarantine import Entries, EntryDetail


app = typer.Typer(
    help="Rows that could not be mapped or stored: list, show, replay, discard.", no_args_is_help=True
)

Stage = Annotated[
    str | None,
    typer.Option("--stage", metavar="NAME", help="Only identify, map or store.", show_default=False),
]
Code = Annotated[
    str | None,
    typer.Option("--code", metavar="TEXT", help="Only this code, as `list` prints it.", show_default=False),
]
OneRun = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Only rows that this run saw.", show_default=False)
]
OneId = Annotated[int | None, typer.Option("--id", metavar="N", help="Only this entry.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="All that wait.")]


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    stage: Stage = None,
    code: Code = None,
    run: OneRun = None,
    group: Annotated[bool, typer.Option("--group", help="Count them by feed, stage and code.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were settled.")] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List rows that wait for a fix, the latest first, or what they were refused for."""
    from stepfast.admin.quarantine import Entries, entry_groups, list_entries

    which = Entries(feed, stage, code, run)
    with opened(ctx, database_url) as database, database.reading() as tx:
        groups = entry_groups(tx, which, everything=everything, limit=limit) if group else []
        found = [] if group else list_entries(tx, which, everything=everything, limit=limit)
    if json:
        print_json(groups if group else found)
    elif group:
        print_table(
            ("feed", "stage", "code", "rows", "first (UTC)", "last (UTC)", "for example"),
            [
                (it.feed, it.stage, it.code, it.rows, it.first_seen_at, it.last_seen_at, it.example)
                for it in groups
            ],
            empty="nothing is in quarantine",
            less=("first (UTC)", "last (UTC)"),
        )
    else:
        print_table(
            ("id", "feed", "item", "stage", "state", "code", "hits", "mapper", "last (UTC)", "message"),
            [
                (
                    it.id,
                    it.feed,
                    it.item_id,
                    it.stage,
                    it.state.value,
                    it.code,
                    it.hits,
                    it.mapper_version,
                    it.last_seen_at,
                    it.message,
                )
                for it in found
            ],
            empty="nothing is in quarantine",
            less=("mapper", "hits", "last (UTC)"),
            cut=("item",),
        )


@app.command("show")
def show(
    ctx: typer.Context,
    entry_id: Annotated[int, typer.Argument(metavar="ID", help="Which entry.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show one row with its reason and its payload."""
    from stepfast.admin.quarantine import show_entry

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = show_entry(tx, entry_id)
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: EntryDetail) -> None:
    from stepfast.jobs.payload import to_json

    it = found.entry
    print_facts(
        (
            ("id", it.id),
            ("feed", it.feed),
            ("item", it.item_id),
            ("state", it.state.value),
            ("stage", it.stage),
            ("code", it.code),
            ("message", it.message),
            ("hits", it.hits),
            ("mapper version", it.mapper_version),
            ("run", it.run_id),
            ("first seen", it.first_seen_at),
            ("last seen", it.last_seen_at),
            ("note", it.note),
            ("payload", to_json(found.payload)),
        )
    )


@app.command("replay")
def replay(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    stage: Stage = None,
    code: Code = None,
    run: OneRun = None,
    entry: OneId = None,
    every: Every = False,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="Where the feed's workers listen.",
            show_default="as the feed's last run",
        ),
    ] = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Have rows mapped and stored again, by a worker that has the fix: one, those that match, or all."""
    from stepfast.admin.quarantine import Quarantine

    which = _chosen(feed, stage, code, run, entry, every=every)
    with opened(ctx, database_url) as database:
        quarantine = Quarantine(database, actor(by, reason))
        with progress("choosing", quarantine.count(which)) as tell:
            count = quarantine.replay(which, queue=queue, progress=tell)
    if json:
        print_json({"replaying": count})
    else:
        typer.echo(f"{_rows(count)} {'is' if count == 1 else 'are'} tried again")


@app.command("discard")
def discard(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    stage: Stage = None,
    code: Code = None,
    run: OneRun = None,
    entry: OneId = None,
    every: Every = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Why,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let rows go that nobody wants: one, those that match, or all. A newer version of an item comes anew."""
    from stepfast.admin.quarantine import Quarantine

    which = _chosen(feed, stage, code, run, entry, every=every)
    with opened(ctx, database_url) as database:
        quarantine = Quarantine(database, actor(by, reason))
        total = quarantine.count(which)
        if total and not yes:
            typer.confirm(f"Discard {_rows(total)}?", abort=True, err=True)
        with progress("discarding", total) as tell:
            count = quarantine.discard(which, progress=tell)
    if json:
        print_json({"discarded": count})
    else:
        typer.echo(f"{_rows(count)} discarded")


def _chosen(
    feed: str | None, stage: str | None, code: str | None, run: str | None, entry: int | None, *, every: bool
) -> Entries:
    """What was meant, which must be said in exactly one way: nobody discards everything by leaving something out."""
    from stepfast.admin.quarantine import Entries

    filtered = any(it is not None for it in (feed, stage, code, run))
    if [entry is not None, filtered, every].count(True) != 1:
        raise typer.BadParameter("say which ones: --id, or --feed, --stage, --code, --run, or --all")
    return Entries(feed, stage, code, run, entry)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
