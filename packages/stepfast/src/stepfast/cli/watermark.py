"""`stepfast watermark`: how far each feed has been read, and moving a watermark by hand."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, RequiredReason, Target, loaded, operating
from stepfast.cli.output import Listing, answer, complain, print_facts, print_json

if TYPE_CHECKING:
    from stepfast.reports import WatermarkReport
    from stepfast.runs.feeds import Feeds


app = typer.Typer(help="Show how far feeds have been read, and set a watermark.", no_args_is_help=True)

WATERMARKS: Listing[WatermarkReport] = Listing(
    columns={
        "feed": "feed",
        "watermark (UTC)": "watermark",
        "age": "age",
        "debts": "open_debts",
        "active run": "active_run",
        "last run": "last_run",
        "exported to": "export_to",
    },
    empty="no feed has run",
    less=("exported to", "active run", "last run"),
)


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
    """Show watermarks: all that the source changed before it, on the source's clock, is in the target.

    For one feed it also says whether the exported document was changed by hand.
    """
    with operating(ctx, database_url) as operator:
        if feed is None:
            WATERMARKS.show(operator.watermarks(limit=limit), json=json)
            return
        found, edited = operator.watermark(feed), operator.edited_export(feed)
    if json:
        print_json(found)
    else:
        _print(found)
    if edited is not None:
        complain(edited)


def _print(found: WatermarkReport) -> None:
    print_facts(
        (
            ("feed", found.feed),
            ("watermark", found.watermark or "none; the first run reads everything"),
            ("age", found.age),
            ("moves", found.version),
            ("last run", found.last_run),
            ("completed", found.last_run_completed_at),
            ("active run", found.active_run),
            ("open debts", found.open_debts or None),
            ("exported to", found.export_to),
        )
    )


@app.command("set")
def set_(
    ctx: typer.Context,
    feed: Annotated[str, typer.Argument(metavar="FEED", help="Which feed.")],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TIME", help="The new watermark, on the source's clock: 2026-12-24T18:00:00Z."
        ),
    ],
    reason: RequiredReason,
    force: Annotated[
        bool, typer.Option("--force", help="Also move it back, or set that of a feed that never ran.")
    ] = False,
    target: Target = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Move a watermark by hand, while no run of the feed is active. Its export is written again."""
    at = _instant(to)
    feeds: Feeds | None = None
    if target is not None:  # only a feed that never ran needs it
        with loaded(ctx, target, database_url) as app_of_feed:
            feeds = app_of_feed.feeds
    with operating(ctx, database_url, by, reason, feeds=feeds) as operator:
        moved = operator.set_watermark(feed, at, force=force)
    facts = {
        "feed": moved.feed,
        "before": moved.before,
        "after": moved.after,
        "consequence": moved.consequence,
    }
    before = "none" if moved.before is None else f"{moved.before:%Y-%m-%d %H:%M:%S} UTC"
    at_now = f"{moved.after:%Y-%m-%d %H:%M:%S} UTC"
    answer(facts, f"the watermark of {feed} is at {at_now}, it was {before}; {moved.consequence}", json=json)


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
