"""`stepfast watermark`: how far a feed has been read, and moving that by hand."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Target, Why, actor, loaded, opened
from stepfast.cli.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from stepfast.admin.watermarks import WatermarkReport


app = typer.Typer(help="Watermarks of feeds: show, set.", no_args_is_help=True)


@app.command("show")
def show(
    ctx: typer.Context,
    feed: Annotated[
        str | None, typer.Argument(metavar="FEED", help="Only this feed.", show_default=False)
    ] = None,
    *,
    limit: Limit = 200,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show up to when everything that the source changed is in the target, on the source's clock."""
    from stepfast.admin.watermarks import list_watermarks, show_watermark

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_watermarks(tx, limit=limit) if feed is None else [show_watermark(tx, feed)]
    if json:
        print_json(found if feed is None else found[0])
    elif feed is None:
        _print_all(found)
    else:
        _print(found[0])


def _print_all(found: list[WatermarkReport]) -> None:
    print_table(
        ("feed", "watermark (UTC)", "age", "debts", "active run", "last run", "exported to"),
        [
            (it.feed, it.watermark, it.age, it.open_debts, it.active_run, it.last_run, it.export_to)
            for it in found
        ],
        empty="no feed has run",
        less=("exported to", "active run", "last run"),
    )


def _print(it: WatermarkReport) -> None:
    print_facts(
        (
            ("feed", it.feed),
            ("watermark", it.watermark or "none; the first run reads everything"),
            ("age", it.age),
            ("moves", it.version),
            ("last run", it.last_run),
            ("completed", it.last_run_completed_at),
            ("active run", it.active_run),
            ("open debts", it.open_debts or None),
            ("exported to", it.export_to),
        )
    )


@app.command("set")
def set_(
    ctx: typer.Context,
    feed: Annotated[str, typer.Argument(metavar="FEED", help="Which feed.")],
    *,
    to: Annotated[
        str,
        typer.Option("--to", metavar="TIME", help="On the source's clock: 2026-12-24T18:00:00Z."),
    ],
    reason: Why,
    force: Annotated[bool, typer.Option("--force", help="Also back, or for a feed that never ran.")] = False,
    target: Target = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Move a watermark by hand, while no run of the feed is active. What is exported is written again."""
    from stepfast.admin.watermarks import set_watermark
    from stepfast.database.database import persist

    at, who = _instant(to), actor(by, reason)
    feeds: list[str] = []
    if target is not None:  # only a feed that never ran needs it
        with loaded(ctx, target, database_url) as app_of_feed:
            feeds = [it.name for it in app_of_feed.feeds.all()]
    with opened(ctx, database_url) as database:
        moved = persist(database, lambda tx: set_watermark(tx, feed, at, force=force, by=who, declared=feeds))
    if json:
        print_json(
            {
                "feed": moved.feed,
                "before": moved.before,
                "after": moved.after,
                "consequence": moved.consequence,
            }
        )
        return
    before = "none" if moved.before is None else f"{moved.before:%Y-%m-%d %H:%M:%S} UTC"
    typer.echo(
        f"the watermark of {feed} is at {moved.after:%Y-%m-%d %H:%M:%S} UTC, it was {before}; {moved.consequence}"
    )


def _instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2026-12-24T18:00:00Z", param_hint="--to"
        ) from None
    if at.tzinfo is None:
        raise typer.BadParameter(
            f"{text!r} has no time zone; write {at.isoformat()}Z for UTC", param_hint="--to"
        )
    return at
