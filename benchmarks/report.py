"""The results: a table on the terminal, and a page of the documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.figures import Figure, Section
    from benchmarks.machine import Machine

HEAD = """\
# Benchmarks

For readers who want to know how fast Stepfast is, and how it was measured. Written by `{command}` on {day}; do not edit.

Figures are medians with [lowest to highest]. Each system ran in a process of its own and the peers in environments of
their own, in turns, on one machine in one run, on durable servers (fsync on, flush at every commit) that the
benchmark started. Absolute figures belong to this machine: read the ratios. "Foreign load" is how many cores other
programs used meanwhile, in the worst of the runs; a measurement that was disturbed by more than a quarter of a core
was repeated, at most twice, and the quietest try counts, whatever it showed.
"""
MACHINE = "## The machine"
COLUMNS = ("what", "measured", "against the target", "foreign load", "remarks")


def show(console: Console, section: Section) -> None:
    table = Table(title=section.title, title_justify="left", caption=section.method, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column)
    for figure in section.figures:
        table.add_row(*_cells(figure, "[green]pass[/green]", "[red]miss[/red]", "\n"))
    console.print(table)


def page(machine: Machine, sections: list[Section], command: str) -> str:
    parts = [HEAD.format(command=command, day=datetime.now(UTC).date()), MACHINE, ""]
    parts += [f"- {line}" for line in machine.lines()]
    parts += ["", "## Targets", "", *_targets(sections)]
    for section in sections:
        parts += ["", f"## {section.title}", "", section.method, ""]
        parts += [_row(COLUMNS), _row(("---",) * len(COLUMNS))]
        parts += [_row(_cells(figure, "pass", "**miss**", "<br>")) for figure in section.figures]
    parts += ["", "## Repeat it", "", f"    {command}", "", "It takes about a quarter of an hour.", ""]
    return "\n".join(parts)


def _targets(sections: list[Section]) -> list[str]:
    """Every promise in one table, in the order of the sections."""
    promised = [(it.title, figure, goal) for it in sections for figure in it.figures for goal in figure.goals]
    rows = [
        (title, figure.name, str(goal), "pass" if goal.met else "**miss**")
        for title, figure, goal in promised
    ]
    heads = ("section", "what", "reached (target)", "verdict")
    return [_row(heads), _row(("---",) * len(heads)), *map(_row, rows)]


def _cells(figure: Figure, passed: str, missed: str, line_end: str) -> tuple[str, ...]:
    return (
        figure.name,
        str(figure.sample),
        line_end.join(f"{passed if goal.met else missed}: {goal}" for goal in figure.goals),
        "" if figure.sample.foreign is None else f"{figure.sample.foreign:.2f}",
        figure.note,
    )


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
