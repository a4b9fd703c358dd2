"""All commands in one tree. A refusal is one sentence on stderr and exit code 1; wrong usage is exit code 2."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from stepfast.cli import (
    alerts,
    audit,
    config,
    dead_letters,
    debts,
    doctor,
    events,
    jobs,
    keys,
    leases,
    limits,
    migrate,
    outbox,
    partitions,
    quarantine,
    queues,
    runs,
    schedules,
    sweeps,
    tasks,
    watermark,
    worker,
    workers,
)
from stepfast.cli.options import URL_HELP, Json
from stepfast.cli.output import complain, print_json
from stepfast.errors import StepfastError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Commands(TyperGroup):
    """The root of the tree: adds the commands of applications, and turns what Stepfast raises into a sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(applications())]

    def get_command(self, ctx: Any, name: str) -> Any:
        """One of ours, or else what an installed application brings under this name."""
        if (ours := super().get_command(ctx, name)) is not None:
            return ours
        return click_command(name, applications()[name].load()) if name in applications() else None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StepfastError as error:
            complain(str(error))
            raise typer.Exit(1) from None


@cache
def applications() -> dict[str, EntryPoint]:
    """What installed packages name under the entry point `stepfast.commands`: a Typer application or a function."""
    from importlib.metadata import entry_points

    return {it.name: it for it in entry_points(group="stepfast.commands")}


def click_command(name: str, loaded: Any) -> Any:
    """An application's command as the tree takes it."""
    around = typer.Typer(rich_markup_mode=None)  # plain help, like ours
    if isinstance(loaded, typer.Typer):
        around.add_typer(loaded, name=name)
    else:
        around.command(name)(loaded)
    return typer.main.get_group(around).commands[name]


app = typer.Typer(
    cls=Commands,
    name="stepfast",
    help="Background work that is not lost and not done twice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its listings of local variables would show passwords
)


@app.callback()
def database(
    ctx: typer.Context,
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url", envvar="STEPFAST_DATABASE_URL", metavar="URL", help=URL_HELP, show_default=False
        ),
    ] = None,
) -> None:
    """Background work that is not lost and not done twice."""
    ctx.obj = database_url


app.command("migrate")(migrate.migrate)
app.command("worker", short_help="Run jobs until told to stop.")(worker.worker)
app.add_typer(tasks.app, name="tasks")
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(queues.app, name="queues")
app.add_typer(workers.app, name="workers")
app.add_typer(leases.app, name="leases")
app.add_typer(schedules.app, name="schedules")
app.add_typer(limits.app, name="limits")
app.add_typer(events.app, name="events")
app.add_typer(keys.app, name="keys")
app.add_typer(runs.app, name="runs")
app.add_typer(partitions.app, name="partitions")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(debts.app, name="debts")
app.add_typer(watermark.app, name="watermark")
app.add_typer(sweeps.app, name="sweeps")
app.add_typer(outbox.app, name="outbox")
app.add_typer(alerts.app, name="alerts")
app.add_typer(audit.app, name="audit")
app.command("config", short_help="Say which settings are in force, and where from.")(config.config)
app.command("doctor", short_help="Find what is wrong, and what to do.")(doctor.doctor)


@app.command("version", short_help="Say which version this is.")
def version(*, json: Json = False) -> None:
    """Say which version of Stepfast, Python and the tables this is."""
    import platform
    from importlib.metadata import version as installed

    from stepfast.database.migrate import installed_components

    stepfast, python = installed("stepfast"), platform.python_version()
    tables = {component.name: component.version for component in installed_components()}
    if json:
        print_json({"stepfast": stepfast, "python": python, "schema": tables})
    else:
        listed = ", ".join(f"{name} {number}" for name, number in tables.items())
        typer.echo(f"stepfast {stepfast} (Python {python}; tables: {listed})")
