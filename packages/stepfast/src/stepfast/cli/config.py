"""`stepfast config`: the settings in force here, and where they come from."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json  # noqa: TC001 - options are read at run time
from stepfast.cli.output import print_json, print_table


def config(
    ctx: typer.Context,
    *,
    env_file: Annotated[
        str | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="File with variables that the environment does not have.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show every setting of the environment, its value here, and where the value comes from.

    Secrets are not shown. Exits with 1 if settings are wrong, and lists all problems at once.
    """
    import os

    from stepfast.notifications.settings import from_environment
    from stepfast.tasks.intake import missing_secret
    from stepfast.tasks.settings import DATABASE, explain, read_env_file, task_settings

    given = database_url or ctx.obj
    from_option = {DATABASE: given} if given and given != os.environ.get(DATABASE) else {}
    from_file = read_env_file(env_file) if env_file is not None else set()
    os.environ.update(from_option)
    found = explain(dict.fromkeys(from_file, f"file {env_file}") | dict.fromkeys(from_option, "given"))
    if json:
        print_json(found)
    else:
        print_table(
            ("variable", "value", "from", "meaning"),
            [(it.variable, it.value, it.source, it.meaning) for it in found],
            empty="",
            less=("meaning",),
        )
    task_settings()
    if (missing := missing_secret(from_environment())) is not None:
        typer.echo(f"note: {missing}", err=True)
