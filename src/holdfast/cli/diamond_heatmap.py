"""`holdfast diamonds heatmap`: where the stones are, and how a run would divide them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.options import Json, usage
from holdfast.cli.output import console, print_json, print_table

if TYPE_CHECKING:
    from holdfast.runs.partitioning.contract import Plan

FEEDS: Final = ("nivoda-natural", "nivoda-labgrown")
PRICES: Final = ("dollar_per_carat", "dollar_value")
WIDEST: Final = 120  # columns; a longer bar says no more


def heatmap(
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
) -> None:
    """Show where the stones of a feed are, and how a run would divide them. Nothing is started or written.

    The source is asked for counts, at the rate of NIVODA_RATE. Who asks is in NIVODA_USERNAME and NIVODA_PASSWORD.
    """
    from holdfast.diamonds.heatmap import nivoda_heatmap
    from holdfast.diamonds.heatmap_preview import preview as explore
    from holdfast.diamonds.settings import from_environment
    from holdfast.runs.partitioning.drawing import draw

    if feed not in FEEDS:
        raise typer.BadParameter(
            f"{feed!r} is no feed of Nivoda; use {' or '.join(FEEDS)}", param_hint="FEED"
        )
    if by is not None and by not in PRICES:
        raise typer.BadParameter(f"{by!r} is no price; use {' or '.join(PRICES)}", param_hint="--by")
    with usage():
        settings = from_environment()
    chosen: dict[str, Any] = {"by": by or settings.partition_by} | ({"target": target} if target else {})
    lab_grown = feed == FEEDS[1]
    with _counting() as told:
        planned = nivoda_heatmap(lab_grown=lab_grown, **chosen)
        frontier = explore(settings, planned, lab_grown=lab_grown, told=told)
    plan = frontier.plan()
    if json:
        print_json(_facts(feed, plan))
    elif preview:
        typer.echo(draw(frontier, lines=lines, width=min(WIDEST, console().width)))
    else:
        rows = [(number, it.range.name, it.estimate, it.problem) for number, it in enumerate(plan.partitions)]
        print_table(("partition", "range", "stones", "problem"), rows, empty="no partitions")


def _facts(feed: str, plan: Plan) -> dict[str, Any]:
    return {
        "feed": feed,
        "stones": plan.baseline,
        "counts": plan.requests,
        "gap": plan.gap,
        "partitions": [
            {"range": it.range.name, "stones": it.estimate, "problem": it.problem} for it in plan.partitions
        ],
    }


@contextmanager
def _counting() -> Iterator[Callable[[int], None]]:
    """Says on stderr how far it is, while somebody watches: nobody knows in advance how many counts it takes."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    with screen.status("counting") as status:
        yield lambda asked: status.update(f"{asked:,} ranges counted")
