"""`stepfast runs`: what is read, why it does not advance, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from stepfast.cli import run_watch
from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, Target, actor, loaded, opened, usage
from stepfast.cli.output import print_facts, print_json, print_table, said
from stepfast.clock import counted

if TYPE_CHECKING:
    from stepfast.admin.run_reports import RunReport
    from stepfast.admin.run_status import RunDetail
    from stepfast.admin.runs import RunPlan, RunRepair, Runs


# `stepfast runs plan` and `start`: what a run would read, and beginning one.

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
    from stepfast.runs.run import RunKind
    from stepfast.runs.start import RunRequest

    if kind is not None and kind not in get_args(RunKind):
        raise typer.BadParameter(
            f"{kind!r} is no kind of run; use {', '.join(get_args(RunKind))}", param_hint="--kind"
        )
    given: dict[str, Any] = {"kind": kind, "from_": _time(from_, "--from"), "to": _time(to, "--to")}
    with usage():
        RunRequest(**given, most_rows=max_rows)
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


app = typer.Typer(help="Plan, start, watch, retry, cancel and resume runs of feeds.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Which run: its id, the beginning of it, latest, or a feed for its newest."
    ),
]

app.command("start", short_help="Begin a run of a feed; workers do the rest.")(start)
app.command("remap", short_help="Map and write all rows of a feed once more.")(remap)
app.command("plan", short_help="Show what a run would read, and what it would cost.")(plan)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: Annotated[
        str | None, typer.Option("--feed", metavar="NAME", help="Only runs of this feed.", show_default=False)
    ] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those that have not ended.")] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List runs, the newest first."""
    with _runs(ctx, database_url) as runs:
        found = runs.list(feed=feed, active=active, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        (
            "run",
            "feed",
            "kind",
            "state",
            "partitions",
            "failed",
            "rows",
            "applied",
            "started (UTC)",
            "took",
            "reason",
        ),
        [
            (
                it.id,
                it.feed,
                it.kind,
                it.state,
                f"{it.completed}/{it.partitions}",
                it.failed or None,
                it.seen,
                it.applied,
                it.started_at,
                _took(it),
                it.reason,
            )
            for it in found
        ],
        empty="no run is active" if active else "no runs: begin one with `stepfast runs start FEED`",
        less=("took", "applied", "kind", "started (UTC)", "rows"),
    )


@app.command("show")
def show(ctx: typer.Context, name: Name, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """Show where a run stands, why it does not advance, and which command helps."""
    with _runs(ctx, database_url) as runs:
        detail = runs.show(name)
    if json:
        print_json(detail)
        return
    print_facts(_facts(detail))
    typer.echo()
    for reason in detail.why:
        typer.echo(said(reason.sentence))
        if reason.command:
            typer.echo(f"  {said(reason.command)}")


app.command("watch", short_help="Show a run as it comes along, until it has ended.")(run_watch.watch)


@app.command("retry")
def retry(
    ctx: typer.Context,
    name: Name,
    *,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="P",
            help="Only this one, by number (5, partition-5) or name; may be given several times.",
            show_default="all that failed",
        ),
    ] = None,
    from_start: Annotated[
        bool,
        typer.Option("--from-start", help="Forget what was read of them; also those that were not verified."),
    ] = False,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Read again what failed, from where it stopped. A plan that failed is planned again."""
    with _repairing(ctx, target, database_url, by, reason) as runs:
        done = runs.retry(name, partition or (), from_start=from_start)
    count = len(done.partitions)
    what = (
        f"{count} partition{' is' if count == 1 else 's are'} read again" if count else "it is planned again"
    )
    _print_runs(done, what, json=json)


@app.command("consolidate")
def consolidate(
    ctx: typer.Context,
    name: Name,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Publish what was read although a part is missing; the watermark stays."
        ),
    ] = False,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Consolidate what a failed run has read, once more."""
    with _repairing(ctx, target, database_url, by, reason) as runs:
        done = runs.consolidate(name, force=force)
    owed = (
        f"; {done.debts} of its ranges {'is a debt' if done.debts == 1 else 'are debts'} now"
        if done.debts
        else ""
    )
    _print_runs(done, f"what it read is consolidated{owed}", json=json)


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Stop a run. What it read stays, and it can be resumed until a newer run of its feed begins."""
    with _runs(ctx, database_url, by, reason) as runs:
        done = runs.cancel(name)
    _print_runs(done, f"it was {done.was}; resume it with: stepfast runs resume {done.run.id}", json=json)


@app.command("resume")
def resume(
    ctx: typer.Context,
    name: Name,
    *,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let a cancelled or stalled run go on from where it was."""
    with _repairing(ctx, target, database_url, by, reason) as runs:
        done = runs.resume(name)
    _print_runs(done, f"it was {done.was}", json=json)


@contextmanager
def _runs(
    ctx: typer.Context, url: str | None, by: str | None = None, reason: str | None = None
) -> Iterator[Runs]:
    """For those who look, or cancel: the database is enough."""
    from stepfast.admin.runs import Runs

    with opened(ctx, url) as database:
        yield Runs(database, None, actor(by, reason))


@contextmanager
def _repairing(
    ctx: typer.Context, target: str | None, url: str | None, by: str | None, reason: str | None
) -> Iterator[Runs]:
    """For those who ask for jobs of the feed."""
    from stepfast.admin.runs import Runs

    with loaded(ctx, target, url) as app:
        yield Runs(app.database, app.feeds, actor(by, reason))


def _print_runs(done: RunRepair, what: str, *, json: bool) -> None:
    if json:
        print_json(done)
    else:
        typer.echo(f"run {done.run.id} is {done.run.state}: {what}")


def _facts(detail: RunDetail) -> list[tuple[str, object]]:
    run = detail.run
    states = ", ".join(f"{count} {state}" for state, count in sorted(detail.states.items()))
    begins = "since ever" if run.window_from is None else f"from {said(run.window_from)}"
    return [
        ("run", run.id),
        ("feed", run.feed),
        ("kind", f"{run.kind}, {run.scope}" + (", forced" if run.forced else "")),
        ("state", f"{run.state} while {run.stalled_in}" if run.stalled_in else run.state),
        ("window", f"{begins} to {said(run.window_to)}"),
        ("partitions", f"{run.partitions}: {states}" if states else None),
        ("rows", f"{run.seen:,} read" + (f" of about {run.expected_rows:,}" if run.expected_rows else "")),
        ("rejected", run.rejected or None),
        ("requests", f"{run.requests:,}"),
        ("applied", f"{run.applied:,}"),
        ("to apply", None if detail.pending is None else f"{detail.pending:,}"),
        ("quarantined", run.quarantined or None),
        ("gone", run.gone or None),
        ("still there", f"{detail.still_there:,} that it did not see" if detail.still_there else None),
        ("differences", f"{run.differences:,}" if run.kind == "verify" else None),
        ("open debts", detail.debts or None),
        ("watermark", _watermark(run)),
        ("started", run.started_at),
        ("ended", run.ended_at),
        ("took", _took(run)),
        ("reason", run.reason),
    ]


def _watermark(run: RunReport) -> str:
    before = "none" if run.watermark_before is None else said(run.watermark_before)
    return before if run.watermark_after is None else f"{before} → {said(run.watermark_after)}"


def _took(run: RunReport) -> timedelta | None:
    return None if run.ended_at is None else run.ended_at - run.started_at
