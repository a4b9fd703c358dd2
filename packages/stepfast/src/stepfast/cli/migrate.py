"""`stepfast migrate`: create or upgrade the tables."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, url
from stepfast.cli.output import print_json


class DialectName(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MARIADB = "mariadb"
    MYSQL = "mysql"


def migrate(
    ctx: typer.Context,
    *,
    print_: Annotated[
        bool, typer.Option("--print", help="Only print the SQL, for somebody else to run.")
    ] = False,
    dialect: Annotated[
        DialectName | None,
        typer.Option(
            "--dialect",
            metavar="sqlite|postgresql|mariadb|mysql",
            help="With --print: the SQL of this product.",
            show_default="that of the URL",
        ),
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Create or upgrade the tables. Safe to run again, and from many machines at once."""
    from stepfast.database.dialects import DIALECTS
    from stepfast.database.drivers import open_database
    from stepfast.database.migrate import known_version, printed
    from stepfast.database.migrate import migrate as apply

    if dialect is not None and not print_:
        raise typer.BadParameter("--dialect goes with --print")
    if print_ and json:
        raise typer.BadParameter("--print prints SQL, not JSON")
    if dialect is not None:
        name = "mariadb" if dialect is DialectName.MYSQL else dialect.value
        typer.echo(printed(DIALECTS[name]), nl=False)
        return
    with closing(open_database(url(ctx, database_url))) as database:
        if print_:
            typer.echo(printed(database.dialect), nl=False)
            return
        applied = apply(database)
    if json:
        print_json({"applied": applied, "version": known_version()})
    elif applied:
        typer.echo(f"applied {', '.join(applied)}")
    else:
        typer.echo(f"nothing to do: the tables are at version {known_version()}")
