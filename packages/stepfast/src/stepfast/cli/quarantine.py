"""`stepfast quarantine`: rows that could not be identified, mapped or stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import (
    LARGEST_ID,
    SMALLEST_ID,
    By,
    DatabaseUrl,
    Json,
    Limit,
    OneFeed,
    Reason,
    RequiredReason,
    Yes,
    operating,
)
from stepfast.cli.output import Listing, answer, as_json, confirm, print_facts, print_json, progress

if TYPE_CHECKING:
    from stepfast.reports import Entries, EntryDetail, EntryGroup, EntryReport


app = typer.Typer(help="List refused rows, replay and discard them.", no_args_is_help=True)

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
OneId = Annotated[
    int | None,
    typer.Option(
        "--id", metavar="N", min=SMALLEST_ID, max=LARGEST_ID, help="Only this entry.", show_default=False
    ),
]
Every = Annotated[bool, typer.Option("--all", help="All rows that wait for a fix.")]


ENTRIES: Listing[EntryReport] = Listing(
    columns={
        "id": "id",
        "feed": "feed",
        "item": "item_id",
        "stage": "stage",
        "state": "state",
        "code": "code",
        "hits": "hits",
        "mapper": "mapper_version",
        "last (UTC)": "last_seen_at",
        "message": "message",
    },
    empty="nothing is in quarantine",
    less=("mapper", "hits", "last (UTC)"),
    cut=("item",),
)
GROUPS: Listing[EntryGroup] = Listing(
    columns={
        "feed": "feed",
        "stage": "stage",
        "code": "code",
        "rows": "rows",
        "first (UTC)": "first_seen_at",
        "last (UTC)": "last_seen_at",
        "for example": "example",
    },
    empty="nothing is in quarantine",
    less=("first (UTC)", "last (UTC)"),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    stage: Stage = None,
    code: Code = None,
    run: OneRun = None,
    group: Annotated[bool, typer.Option("--group", help="Count them by feed, stage and code.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also rows that were applied or discarded since.")
    ] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List rows that wait for a fix, the latest first, or count them by reason."""
    from stepfast.reports import Entries

    which = Entries(feed, stage, code, run)
    with operating(ctx, database_url) as operator:
        quarantine = operator.quarantine
        if group:
            GROUPS.show(quarantine.groups(which, everything=everything, limit=limit), json=json)
        else:
            ENTRIES.show(quarantine.entries(which, everything=everything, limit=limit), json=json)


@app.command("show")
def show(
    ctx: typer.Context,
    entry_id: Annotated[
        int, typer.Argument(metavar="ID", min=SMALLEST_ID, max=LARGEST_ID, help="Which entry.")
    ],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show one row with its reason and its payload."""
    with operating(ctx, database_url) as operator:
        found = operator.quarantine.show(entry_id)
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: EntryDetail) -> None:
    entry = found.entry
    print_facts(
        (
            ("id", entry.id),
            ("feed", entry.feed),
            ("item", entry.item_id),
            ("state", str(entry.state)),
            ("stage", entry.stage),
            ("code", entry.code),
            ("message", entry.message),
            ("hits", entry.hits),
            ("mapper version", entry.mapper_version),
            ("run", entry.run_id),
            ("first seen", entry.first_seen_at),
            ("last seen", entry.last_seen_at),
            ("note", entry.note),
            ("payload", as_json(found.payload)),
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
            help="Queue that the feed's workers serve.",
            show_default="as the feed's last run",
        ),
    ] = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Have rows mapped and stored again, by a worker that has the fix: one, those that match, or all."""
    which = _chosen(feed, stage, code, run, entry, every=every)
    with operating(ctx, database_url, by, reason) as operator:
        quarantine = operator.quarantine
        with progress("choosing", quarantine.count(which)) as tell:
            count = quarantine.replay(which, queue=queue, progress=tell)
    sentence = f"{_rows(count)} {'is' if count == 1 else 'are'} tried again"
    answer({"replaying": count}, sentence, json=json)


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
    yes: Yes = False,
    reason: RequiredReason,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Discard rows for good: one, those that match, or all. A newer version of an item comes anew."""
    which = _chosen(feed, stage, code, run, entry, every=every)
    with operating(ctx, database_url, by, reason) as operator:
        quarantine = operator.quarantine
        total = quarantine.count(which)
        confirm(f"Discard {_rows(total)}?", yes=yes or not total)
        with progress("discarding", total) as tell:
            count = quarantine.discard(which, progress=tell)
    answer({"discarded": count}, f"{_rows(count)} discarded", json=json)


def _chosen(
    feed: str | None, stage: str | None, code: str | None, run: str | None, entry: int | None, *, every: bool
) -> Entries:
    """The entries that are meant, said in exactly one way: a forgotten option must not mean all."""
    from stepfast.reports import Entries

    filtered = any(it is not None for it in (feed, stage, code, run))
    if [entry is not None, filtered, every].count(True) != 1:
        raise typer.BadParameter("say which ones: --id, or --feed, --stage, --code, --run, or --all")
    return Entries(feed, stage, code, run, entry)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
