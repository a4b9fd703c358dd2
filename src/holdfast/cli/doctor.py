"""`holdfast doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import DatabaseUrl, Json, opened
from holdfast.cli.output import STYLES, console, print_json
from holdfast.telemetry.masking import visible

if TYPE_CHECKING:
    from holdfast.admin.doctor.finding import Finding


def doctor(
    ctx: typer.Context,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Check the database, its settings, clock and tables, stuck work, and sessions in the way; say what to do.

    Exits with 0 if nothing is stuck and nothing could be lost, else with 1.
    """
    from holdfast.admin.doctor.examination import examine
    from holdfast.admin.doctor.finding import Level, healthy

    with opened(ctx, database_url, checked=False) as database:
        findings = examine(database)
    fine = healthy(findings) and not (strict and any(it.level is Level.WARN for it in findings))
    if json:
        print_json({"healthy": fine, "findings": findings})
    else:
        for finding in findings:
            _print(finding)
    if not fine:
        raise typer.Exit(1)


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
