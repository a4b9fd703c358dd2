"""What commands of applications are made of: the options, the output and the refusals of Stepfast's own commands.

An application brings a Typer app or a function under the entry point `stepfast.commands`; this module is for these only,
since it imports Typer.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, Why, actor, opened, url, usage
from stepfast.cli.output import complain, console, print_facts, print_json, print_table, progress, said
from stepfast.cli.run_watch import LINE_EVERY
from stepfast.cli.run_watch import Asked as StandstillReasons
from stepfast.cli.run_watch import Bars as RunBars
from stepfast.cli.run_watch import empty_bars as empty_run_bars
from stepfast.cli.run_watch import line as run_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.app import Stepfast
    from stepfast.applications import Component

__all__ = [
    "LINE_EVERY",
    "By",
    "DatabaseUrl",
    "Json",
    "Limit",
    "Reason",
    "RunBars",
    "StandstillReasons",
    "Why",
    "actor",
    "complain",
    "console",
    "database_named",
    "empty_run_bars",
    "opened_app",
    "print_facts",
    "print_json",
    "print_table",
    "print_tables",
    "progress",
    "run_line",
    "said",
    "usage",
]


@contextmanager
def opened_app(ctx: typer.Context, database_url: str | None) -> Iterator[Stepfast]:
    """An app on the database that the command names, which must be there, with tables this code knows."""
    from stepfast.app import Stepfast

    with opened(ctx, database_url) as database:
        yield Stepfast(database=database)


def database_named(ctx: typer.Context, database_url: str | None) -> bool:
    """Whether a database was named, or the default one is there."""
    from stepfast.config import DEFAULT_URL
    from stepfast.database.drivers import sqlite_path

    return url(ctx, database_url) != DEFAULT_URL or Path(sqlite_path(DEFAULT_URL)).exists()


def print_tables(app: Stepfast, component: Component) -> None:
    """Print the SQL of an application's tables, for somebody else to run."""
    from stepfast.database.migrate import printed

    typer.echo(printed(app.database.dialect, [component]), nl=False)
