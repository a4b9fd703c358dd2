"""`stepfast doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, Target, actor, loaded, opened
from stepfast.cli.output import STYLES, console, print_json
from stepfast.telemetry.masking import visible

if TYPE_CHECKING:
    from stepfast.admin.doctor.finding import Finding
    from stepfast.runs.broker import Broker


def doctor(
    ctx: typer.Context,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="First repair what needs no decision: release stranded jobs.")
    ] = False,
    reason: Reason = None,
    by: By = None,
    target: Target = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Check the database, its settings, clock and tables, stuck work, and sessions in the way; say what to do.

    Brokers and blob storage that the environment names are asked as well, and those of the app's feeds.
    Exits with 0 if nothing is stuck and nothing could be lost, else with 1.
    """
    from stepfast.admin.doctor.examination import examine
    from stepfast.admin.doctor.finding import Level, healthy
    from stepfast.admin.doctor.repair import repair as repair_findings
    from stepfast.telemetry.logs import leave_out_others

    leave_out_others()
    with opened(ctx, database_url, checked=False) as database:
        brokers, unread = _brokers(ctx, target, database_url)
        findings = examine(database, brokers)
        if repair and (done := repair_findings(database, findings, by=actor(by, reason))):
            findings = [*done, *examine(database, brokers)]
        findings += unread
    fine = healthy(findings) and not (strict and any(it.level is Level.WARN for it in findings))
    if json:
        print_json({"healthy": fine, "findings": findings})
    else:
        for finding in findings:
            _print(finding)
    if not fine:
        raise typer.Exit(1)


def _brokers(ctx: typer.Context, target: str | None, url: str | None) -> tuple[list[Broker], list[Finding]]:
    """Those of the app's feeds, where we are told of an app; and what is wrong with it."""
    from stepfast.admin.doctor.finding import warn
    from stepfast.jobs.retry import describe

    if target is None:
        return [], []
    try:
        with loaded(ctx, target, url) as app:
            return [it.broker for it in app.feeds.all() if it.broker is not None], []
    except Exception as error:  # noqa: BLE001 - somebody's code; everything else is looked at all the same
        said = f"{target} cannot be loaded, so that the brokers of its feeds are not known: {describe(error)}"
        return [], [warn("app", said, "check --app, STEPFAST_APP, and from which folder this runs")]


def _print(finding: Finding) -> None:
    from rich.padding import Padding
    from rich.text import Text

    screen = console()
    head = Text.assemble(
        (f"{finding.level:<4}  ", STYLES[finding.level]),
        (f"{finding.name}: ", "bold"),
        visible(finding.found),
    )
    screen.print(head)
    if finding.cure:
        screen.print(Padding(Text(f"→ {visible(finding.cure)}"), (0, 0, 0, 6)))
