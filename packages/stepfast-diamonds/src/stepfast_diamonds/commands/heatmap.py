"""`stepfast diamonds heatmap`: where the stones are, and how a run would divide them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.applications import counted
from stepfast.applications.commands import (
    DatabaseUrl,
    Json,
    console,
    database_named,
    print_json,
    print_table,
    usage,
)
from stepfast.errors import PermanentError, ThrottledError

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.applications import Frontier, Plan
    from stepfast_diamonds.heatmap import StartTimes
    from stepfast_diamonds.settings import NivodaSettings


FEEDS: Final = ("nivoda-natural", "nivoda-labgrown")
PRICES: Final = ("dollar_per_carat", "dollar_value")
WIDEST: Final = 120  # columns; a longer bar says no more
LONGEST_WAIT: Final = timedelta(seconds=1)  # for a place in the rate


def heatmap(
    ctx: typer.Context,
    feed: Annotated[str, typer.Argument(metavar="FEED", help="nivoda-natural or nivoda-labgrown.")],
    *,
    preview: Annotated[
        bool, typer.Option("--preview", help="Draw the density and the partitions instead of listing them.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="PRICE",
            help="dollar_per_carat or dollar_value.",
            show_default="NIVODA_PARTITION_BY, else dollar_per_carat",
        ),
    ] = None,
    target: Annotated[
        int | None,
        typer.Option("--target", metavar="N", min=1, help="Stones of a partition.", show_default="3000"),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", metavar="N", min=1, max=1_000, help="Lines of the drawing.")
    ] = 24,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show where the stones of a feed are, and how a run would divide them. Nothing is started or changed.

    The source is asked for counts, at the rate of NIVODA_RATE. Who asks is in NIVODA_USERNAME and NIVODA_PASSWORD. Beside
    an application, rate, pace and token are shared with its workers. A throttle ends the command, and pauses no feed.
    """
    from stepfast.applications import draw
    from stepfast_diamonds.settings import from_environment

    if feed not in FEEDS:
        raise typer.BadParameter(
            f"{feed!r} is no feed of Nivoda; use {' or '.join(FEEDS)}", param_hint="FEED"
        )
    if by is not None and by not in PRICES:
        raise typer.BadParameter(f"{by!r} is no price; use {' or '.join(PRICES)}", param_hint="--by")
    with usage():
        settings = from_environment()
    chosen: dict[str, Any] = {"by": by or settings.partition_by} | ({"target": target} if target else {})
    frontier = _explored(ctx, database_url, settings, feed, chosen)
    plan = frontier.plan()
    if json:
        print_json(_facts(feed, plan))
    elif preview:
        typer.echo(draw(frontier, lines=lines, width=min(WIDEST, console().width)))
    else:
        rows = [
            (f"partition-{number}", it.range.name, it.estimate, it.problem)
            for number, it in enumerate(plan.partitions)
        ]
        print_table(("partition", "range", "stones", "problem"), rows, empty="no partitions")


def _explored(
    ctx: typer.Context, database_url: str | None, settings: NivodaSettings, feed: str, chosen: dict[str, Any]
) -> Frontier:
    from stepfast_diamonds.client import BadAnswerError
    from stepfast_diamonds.feed import no_stone_sentence
    from stepfast_diamonds.heatmap import nivoda_heatmap, preview

    lab_grown = feed == FEEDS[1]
    try:
        with _beside(ctx, database_url) as app, _counting() as told:
            frontier = preview(
                settings,
                nivoda_heatmap(lab_grown=lab_grown, **chosen),
                lab_grown=lab_grown,
                told=told,
                app=app,
                starts=None if app is None else _starts(app, settings),
            )
    except ThrottledError as error:
        raise ThrottledError(
            f"{error}. Nothing was changed, and no feed is paused; try again later"
        ) from None
    except BadAnswerError as error:
        raise PermanentError(f"{error}; try again") from None
    if frontier.plan().baseline == 0:
        raise PermanentError(no_stone_sentence(feed))
    return frontier


@contextmanager
def _beside(ctx: typer.Context, database_url: str | None) -> Iterator[Stepfast | None]:
    """The application on its database, or None where no database was named and the default one is not there."""
    from stepfast_diamonds.commands.rules import catalogue

    if not database_named(ctx, database_url):
        yield None
        return
    with catalogue(ctx, database_url) as app:
        yield app


def _starts(app: Stepfast, settings: NivodaSettings) -> StartTimes:
    """Starts in the rate that all workers of the account share."""
    from stepfast.applications import persist, reserve_starts
    from stepfast_diamonds.feed import LIMIT, limits_of

    limits = limits_of(settings)
    return lambda most: persist(app, lambda tx: reserve_starts(tx, limits, LIMIT, most, LONGEST_WAIT))


def _facts(feed: str, plan: Plan) -> dict[str, Any]:
    return {
        "feed": feed,
        "stones": plan.baseline,
        "counts": plan.requests,
        "gap": plan.gap,
        "partitions": [
            {
                "partition_id": f"partition-{number}",
                "range": it.range.name,
                "stones": it.estimate,
                "problem": it.problem,
            }
            for number, it in enumerate(plan.partitions)
        ],
    }


@contextmanager
def _counting() -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many ranges were counted; how many it will be is not known in advance."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    with screen.status("counting") as status:
        yield lambda asked: status.update(f"{counted(asked, 'range')} counted")
