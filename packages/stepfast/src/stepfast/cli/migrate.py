"""`stepfast migrate`: create or upgrade the tables."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, url, usage
from stepfast.cli.output import complain, print_json

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.database.migrate import Component


class DialectName(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MARIADB = "mariadb"
    MYSQL = "mysql"


def migrate(
    ctx: typer.Context,
    *,
    print_: Annotated[bool, typer.Option("--print", help="Only print the SQL, to be run by hand.")] = False,
    dialect: Annotated[
        DialectName | None,
        typer.Option(
            "--dialect",
            metavar="sqlite|postgresql|mariadb|mysql",
            help="With --print: the SQL of this product.",
            show_default="that of the URL",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="COMPONENT",
            help="Only these tables: stepfast, or those of one application.",
            show_default="all that are installed",
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(
            "--views",
            metavar="none|default|PREFIX",
            help="Make no views, or views with their own names, or with names that begin with PREFIX. Later migrations "
            "keep to it.",
            show_default="as before, at first default",
        ),
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Create or upgrade the tables and views of Stepfast and of installed applications.

    Safe to run again, and from many machines at once. Never changes a table or view that is not Stepfast's.
    """
    from stepfast.database.dialects import DIALECTS
    from stepfast.database.drivers import open_database
    from stepfast.database.migrate import printed
    from stepfast.database.views import checked_names

    if dialect is not None and not print_:
        raise typer.BadParameter("--dialect goes with --print")
    if print_ and json:
        raise typer.BadParameter("--print prints SQL, not JSON")
    components = _chosen(only)
    if views is not None:
        with usage("--views"):
            checked_names(views)
    if dialect is not None:
        name = "mariadb" if dialect is DialectName.MYSQL else dialect.value
        typer.echo(printed(DIALECTS[name], components, views=views), nl=False)
        return
    with closing(open_database(url(ctx, database_url))) as database:
        if print_:
            typer.echo(printed(database.dialect, components, views=views), nl=False)
            return
        done = [_applied(database, component, views) for component in components]
    if json:
        print_json(
            [
                {
                    "component": component.name,
                    "applied": applied,
                    "version": component.version,
                    "notes": notes,
                }
                for component, applied, notes in done
            ]
        )
        return
    for component, applied, notes in done:
        what = f"applied {', '.join(applied)}" if applied else "nothing to do"
        typer.echo(f"{component.name}: {what}; the tables are at version {component.version}")
        for note in notes:
            complain(note)


def _applied(
    database: Database, component: Component, views: str | None
) -> tuple[Component, list[str], list[str]]:
    """The component, the migrations applied, and sentences about views that could not be made."""
    from stepfast.database.migrate import migrate as apply

    notes: list[str] = []
    return component, apply(database, component, views=views, tell=notes.append), notes


def _chosen(only: str | None) -> list[Component]:
    """The installed components, or the one that is named."""
    from stepfast.database.migrate import installed_components

    components = installed_components()
    names = [component.name for component in components]
    if only is not None and only not in names:
        raise typer.BadParameter(
            f"{only!r} is not installed; there is {', '.join(names)}", param_hint="--only"
        )
    return [component for component in components if only in (None, component.name)]
