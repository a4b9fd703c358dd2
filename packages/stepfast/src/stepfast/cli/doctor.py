"""`stepfast doctor`: find what is wrong, and say what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, Target, loaded, operating
from stepfast.cli.output import STYLES, console, print_json
from stepfast.telemetry.masking import visible

if TYPE_CHECKING:
    from stepfast.reports import Finding
    from stepfast.runs.feeds import Feeds


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
    from stepfast.reports import Level
    from stepfast.telemetry.logs import leave_out_others

    leave_out_others()
    feeds, unknown = _feeds(ctx, target, database_url)
    with operating(ctx, database_url, by, reason, checked=False, feeds=feeds) as operator:
        findings = [*operator.doctor(repair=repair), *unknown]
    bad = {Level.FAIL, Level.WARN} if strict else {Level.FAIL}
    fine = not any(finding.level in bad for finding in findings)
    if json:
        print_json({"healthy": fine, "findings": findings})
    else:
        for finding in findings:
            _print(finding)
    if not fine:
        raise typer.Exit(1)


def _feeds(ctx: typer.Context, target: str | None, url: str | None) -> tuple[Feeds | None, list[Finding]]:
    """The feeds of the app, where one is named; and a finding if it cannot be loaded."""
    from stepfast.jobs.retry import describe
    from stepfast.reports import Finding, Level

    if target is None:
        return None, []
    try:
        with loaded(ctx, target, url) as app:
            return app.feeds, []
    except Exception as error:  # noqa: BLE001 - the application's code; everything else is looked at all the same
        found = (
            f"{target} cannot be loaded, so that the brokers of its feeds are not known: {describe(error)}"
        )
        cure = "check --app, STEPFAST_APP, and from which folder this runs"
        return None, [Finding("app", Level.WARN, found, cure)]


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
