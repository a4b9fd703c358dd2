"""`stepfast runs`: plan, start and watch runs of feeds; show why one does not advance, and repair it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from stepfast.cli import run_watch
from stepfast.cli.options import (
    LARGEST_ID,
    By,
    DatabaseUrl,
    Json,
    Limit,
    Reason,
    Target,
    loaded,
    operating,
    usage,
)
from stepfast.cli.output import Listing, answer, as_text, print_facts, print_json, print_table
from stepfast.clock import counted

if TYPE_CHECKING:
    from stepfast.reports import PageTimes, RunDetail, RunPlan, RunRepair, RunReport, Runs


NAMED: Final = 5  # partitions that a sentence names; of more only their number
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
        max=LARGEST_ID,
        help="A trial: read about this many rows. It moves no watermark and sweeps nothing.",
        show_default="all",
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Which run: its id, the beginning of it, latest, or a feed for its newest."
    ),
]

app = typer.Typer(help="Plan, start, watch, retry, cancel and resume runs of feeds.", no_args_is_help=True)


# Begin


@app.command("start", short_help="Start a run of a feed; workers do the rest.")
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
    """Start a run of a feed; workers do the rest."""
    request = _request(kind, from_, to, max_rows)
    with _with_feeds(ctx, target, database_url, by, reason) as runs:
        run = runs.start(feed, **request)
    _print_started(run, f"{run.kind}, {_window(run.window_from, run.window_to)}", json=json)


@app.command("remap", short_help="Map and write all rows of a feed again.")
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
    """Map and write all rows of a feed again, after its map() was fixed. The source is not asked."""
    with _with_feeds(ctx, target, database_url, by, reason) as runs:
        run = runs.remap(feed)
    _print_started(run, "all its rows are mapped and written again", json=json)


def _print_started(run: RunReport, what: str, *, json: bool) -> None:
    sentence = f"run {run.id} of feed {run.feed} is started: {what}"
    answer(run, f"{sentence}\nwatch it with: stepfast runs watch {run.id}", json=json)


@app.command("plan", short_help="Show what a run would read, and what it would cost.")
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
    with _with_feeds(ctx, target, database_url) as runs:
        found = runs.plan(feed, **request)
    if json:
        print_json(found)
    else:
        _print_plan(found, each=each)


def _print_plan(found: RunPlan, *, each: bool) -> None:
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
        rows = [(part.partition_id, part.name, part.rows, part.problem) for part in found.partitions]
        print_table(("partition", "range", "rows", "problem"), rows, empty="no partitions")
    else:
        typer.echo(as_text("\n".join(found.drawing.split("\n")[1:])))
    typer.echo(f"nothing was started; begin it with: stepfast runs start {found.feed}")


def _request(kind: str | None, from_: str | None, to: str | None, max_rows: int | None) -> dict[str, Any]:
    from stepfast.reports import RunKind, Runs

    if kind is not None and kind not in get_args(RunKind):
        raise typer.BadParameter(
            f"{kind!r} is no kind of run; use {', '.join(get_args(RunKind))}", param_hint="--kind"
        )
    request: dict[str, Any] = {
        "kind": kind,
        "from_": _time(from_, "--from"),
        "to": _time(to, "--to"),
        "max_rows": max_rows,
    }
    with usage():
        Runs.check(**request)
    return request


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
    return f"{'since ever' if from_ is None else 'from ' + as_text(from_)} to {as_text(to)}"


# Look


def _took(run: RunReport) -> timedelta | None:
    return None if run.ended_at is None else run.ended_at - run.started_at


RUNS: Listing[RunReport] = Listing(
    columns={
        "run": "id",
        "feed": "feed",
        "kind": "kind",
        "state": "state",
        "partitions": lambda run: f"{run.completed}/{run.partitions}",
        "failed": lambda run: run.failed or None,
        "rows": "seen",
        "applied": "applied",
        "started (UTC)": "started_at",
        "took": _took,
        "reason": "reason",
    },
    empty="no runs: begin one with `stepfast runs start FEED`",
    less=("took", "applied", "kind", "started (UTC)", "rows"),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: Annotated[
        str | None, typer.Option("--feed", metavar="NAME", help="Only runs of this feed.", show_default=False)
    ] = None,
    active: Annotated[bool, typer.Option("--active", help="Only runs that have not ended.")] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List runs, the newest first."""
    with operating(ctx, database_url) as operator:
        found = operator.runs.list(feed=feed, active=active, limit=limit)
    RUNS.show(found, json=json, empty="no run is active" if active else None)


@app.command("show")
def show(ctx: typer.Context, name: Name, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """Show where a run stands, why it does not advance, and which command helps."""
    with operating(ctx, database_url) as operator:
        detail = operator.runs.show(name)
    if json:
        print_json(detail)
        return
    print_facts(_facts(detail))
    typer.echo()
    for reason in detail.why:
        typer.echo(as_text(reason.sentence))
        if reason.command:
            typer.echo(f"  {as_text(reason.command)}")


def _facts(detail: RunDetail) -> list[tuple[str, object]]:
    run = detail.run
    states = ", ".join(f"{count} {state}" for state, count in sorted(detail.states.items()))
    begins = "since ever" if run.window_from is None else f"from {as_text(run.window_from)}"
    return [
        ("run", run.id),
        ("feed", run.feed),
        ("kind", f"{run.kind}, {run.scope}" + (", forced" if run.forced else "")),
        ("state", f"{run.state} while {run.stalled_in}" if run.stalled_in else run.state),
        ("phase", None if detail.phase == run.state else detail.phase),
        ("window", f"{begins} to {as_text(run.window_to)}"),
        ("partitions", f"{run.partitions}: {states}" if states else None),
        ("rows", f"{run.seen:,} read" + (f" of about {run.expected_rows:,}" if run.expected_rows else "")),
        ("rejected", run.rejected or None),
        ("requests", f"{run.requests:,}"),
        ("pages", None if detail.pages is None else _pages(detail.pages)),
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


def _pages(pages: PageTimes) -> str:
    where = f"{pages.slowest_partition} at row {pages.slowest_offset}"
    return (
        f"{pages.pages:,}; 95% answered within {as_seconds(pages.p95_seconds)}, "
        f"the slowest in {as_seconds(pages.slowest_seconds)} ({where})"
    )


def as_seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:,.1f} s"


def _watermark(run: RunReport) -> str:
    before = "none" if run.watermark_before is None else as_text(run.watermark_before)
    return before if run.watermark_after is None else f"{before} → {as_text(run.watermark_after)}"


app.command("watch", short_help="Show the progress of a run until it has ended.")(run_watch.watch)


# Repair


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
            help="Only this partition, by number or id (5, partition-5) or range; may be given more than once.",
            show_default="all that failed or lost their job",
        ),
    ] = None,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start",
            help="Read them from their first row; also partitions that were not verified, and open ones that are named.",
        ),
    ] = False,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Read partitions again that failed or lost their job, from where they stopped.

    A run whose plan failed is planned again.
    """
    with _with_feeds(ctx, target, database_url, by, reason) as runs:
        done = runs.retry(name, partition or (), from_start=from_start)
    start = " from the start" if from_start else ""
    read = f"{_partitions(done)} read again{start}"
    _print_repair(done, read if done.partitions else "it is planned again", json=json)


def _partitions(done: RunRepair) -> str:
    """The partitions of a repair, and their verb: those of a large run by their number."""
    ids = done.partitions
    named = ", ".join(ids) if len(ids) <= NAMED else f"{len(ids)} partitions"
    return f"{named} {'is' if len(ids) == 1 else 'are'}"


@app.command("consolidate")
def consolidate(
    ctx: typer.Context,
    name: Name,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Publish the rows that were read although ranges are missing; the watermark stays.",
        ),
    ] = False,
    target: Target = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Consolidate the rows that a failed run has read, once more."""
    with _with_feeds(ctx, target, database_url, by, reason) as runs:
        done = runs.consolidate(name, force=force)
    owed = (
        f"; {done.debts} of its ranges {'is a debt' if done.debts == 1 else 'are debts'} now"
        if done.debts
        else ""
    )
    _print_repair(done, f"what it read is consolidated{owed}", json=json)


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
    """Stop a run. The rows that it read stay, and it can be resumed until a newer run of its feed starts."""
    with operating(ctx, database_url, by, reason) as operator:
        done = operator.runs.cancel(name)
    _print_repair(done, f"it was {done.was}; resume it with: stepfast runs resume {done.run.id}", json=json)


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
    """Resume a cancelled or stalled run from where it was, or give new jobs to one that has lost its own."""
    with _with_feeds(ctx, target, database_url, by, reason) as runs:
        done = runs.resume(name)
    jobs = f"; {_partitions(done)} read by new jobs" if done.partitions else ""
    _print_repair(done, f"it was {done.was}{jobs}", json=json)


@contextmanager
def _with_feeds(
    ctx: typer.Context,
    target: str | None,
    url: str | None,
    by: str | None = None,
    reason: str | None = None,
) -> Iterator[Runs]:
    """The runs of an application, for commands that need the code of its feeds."""
    with loaded(ctx, target, url) as app:
        yield app.runs.by(by or None, reason=reason)


def _print_repair(done: RunRepair, what: str, *, json: bool) -> None:
    answer(done, f"run {done.run.id} is {done.run.state}: {what}", json=json)
