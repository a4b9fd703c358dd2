"""`stepfast runs plan` and `start`: what a run would read, and beginning one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from stepfast.cli.app_target import Target, loaded
from stepfast.cli.options import By, DatabaseUrl, Json, Reason, actor, usage
from stepfast.cli.output import print_facts, print_json, print_table, said
from stepfast.wording import counted

if TYPE_CHECKING:
    from stepfast.admin.run_plan import RunPlan

PER_SECOND: Final = 10.0  # a rate to say how long so many requests take

Feed = Annotated[str, typer.Argument(metavar="FEED", help="Which feed.")]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="full, incremental, backfill or verify.",
        show_default="full the first time, then incremental",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="Where a backfill begins: 2026-05-01T00:00 (UTC).", show_default=False
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="Where a backfill ends.", show_default="now"),
]
MaxRows = Annotated[
    int | None,
    typer.Option(
        "--max-rows",
        metavar="N",
        min=1,
        help="A trial: read about so many rows. It moves no watermark and sweeps nothing.",
        show_default="all",
    ),
]


def start(
    ctx: typer.Context,
    feed: Feed,
    *,
    kind: Kind = None,
    from_: From = None,
    to: To = None,
    max_rows: MaxRows = None,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Begin a run of a feed; workers do the rest."""
    from stepfast.admin.runs import Runs

    request = _request(kind, from_, to, max_rows)
    with loaded(ctx, target, database_url) as app:
        run = Runs(app.database, app.feeds, actor(by, reason)).start(feed, **request)
    if json:
        print_json(run)
        return
    typer.echo(
        f"run {run.id} of feed {feed} is started: {run.kind}, {_window(run.window_from, run.window_to)}"
    )
    typer.echo(f"watch it with: stepfast runs watch {run.id}")


def remap(
    ctx: typer.Context,
    feed: Feed,
    *,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Map and write all rows of a feed once more, after its map() was mended. The source is not asked."""
    from stepfast.admin.runs import Runs

    with loaded(ctx, target, database_url) as app:
        run = Runs(app.database, app.feeds, actor(by, reason)).remap(feed)
    if json:
        print_json(run)
        return
    typer.echo(f"run {run.id} of feed {feed} is started: all its rows are mapped and written again")
    typer.echo(f"watch it with: stepfast runs watch {run.id}")


def plan(
    ctx: typer.Context,
    feed: Feed,
    *,
    kind: Kind = None,
    from_: From = None,
    to: To = None,
    max_rows: MaxRows = None,
    each: Annotated[bool, typer.Option("--partitions", help="List every partition.")] = False,
    target: Target = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show what a run would read and how many requests it would take, without starting one.

    The source is asked for counts from here, within the limits of the feed.
    """
    request = _request(kind, from_, to, max_rows)
    with loaded(ctx, target, database_url) as app:
        found = app.runs.plan(feed, **request)
    if json:
        print_json(found)
        return
    _print(found, each=each)


def _print(found: RunPlan, *, each: bool) -> None:
    requests = found.requests
    unknown = (
        f", and {counted(requests.unknown, 'partition')} that nobody counted" if requests.unknown else ""
    )
    print_facts(
        (
            ("feed", found.feed),
            ("kind", found.kind),
            ("window", _window(found.window_from, found.window_to)),
            ("scope", found.scope),
            ("plan", found.summary),
            (
                "debts",
                f"{counted(found.debts, 'range')} of earlier runs, read as well" if found.debts else None,
            ),
            (
                "requests",
                f"{counted(requests.pages, 'page')} and {counted(requests.counts, 'count')}{unknown}",
            ),
            ("longest", f"{counted(requests.longest, 'page')}, one after the other"),
            ("at 10/s", requests.duration(PER_SECOND) if requests.requests else None),
        )
    )
    typer.echo()
    if each:
        rows = [(number, it.name, it.rows, it.problem) for number, it in enumerate(found.partitions)]
        print_table(("partition", "range", "rows", "problem"), rows, empty="no partitions")
    else:
        typer.echo("\n".join(found.drawing.splitlines()[1:]))
    typer.echo(f"nothing was started; begin it with: stepfast runs start {found.feed}")


def _request(kind: str | None, from_: str | None, to: str | None, max_rows: int | None) -> dict[str, Any]:
    from stepfast.runs.starting import Request
    from stepfast.runs.states import RunKind

    if kind is not None and kind not in get_args(RunKind):
        raise typer.BadParameter(
            f"{kind!r} is no kind of run; use {', '.join(get_args(RunKind))}", param_hint="--kind"
        )
    given: dict[str, Any] = {"kind": kind, "from_": _time(from_, "--from"), "to": _time(to, "--to")}
    with usage():
        Request(**given, most_rows=max_rows)
    return {**given, "max_rows": max_rows}


def _time(text: str | None, option: str) -> datetime | None:
    """A time as it is typed; one without an offset is UTC."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2026-12-24T18:00 or 2026-12-24T18:00+01:00", param_hint=option
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _window(from_: datetime | None, to: datetime) -> str:
    return f"{'since ever' if from_ is None else 'from ' + said(from_)} to {said(to)}"
