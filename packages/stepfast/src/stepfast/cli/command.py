"""All commands in one tree, in groups. A refusal is one sentence on stderr and exit code 1; wrong usage is exit code 2."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from stepfast.cli import (
    alerts,
    audit,
    config,
    dead_letters,
    debts,
    doctor,
    encryption,
    events,
    jobs,
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
from stepfast.telemetry.masking import visible

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# The groups of `stepfast --help`, in their order
WORK: Final = "Work"
LOOK: Final = "Look"
MEND: Final = "Mend"
SYNC: Final = "Sync"
SET_UP: Final = "Set up"
APPLICATIONS: Final = "Applications"


class Commands(TyperGroup):
    """The root of the tree: commands in groups, ours and those of applications. Turns our errors into a sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(applications())]

    def get_command(self, ctx: Any, name: str) -> Any:
        """A command of ours, or else that of an installed application."""
        if (ours := super().get_command(ctx, name)) is not None:
            return ours
        return click_command(name, applications()[name].load()) if name in applications() else None

    def groups(self, ctx: Any) -> dict[str, dict[str, Any]]:
        """The commands by group and name. An application's command without a group is in "Applications"."""
        grouped: dict[str, dict[str, Any]] = {name: {} for name in (WORK, LOOK, MEND, SYNC, SET_UP)}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            grouped.setdefault(command.rich_help_panel or APPLICATIONS, {})[name] = command
        return grouped

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section per group, all with the same width of names."""
        groups = self.groups(ctx)
        width = max(len(name) for commands in groups.values() for name in commands)
        room = formatter.width - width - 6
        for group, commands in groups.items():
            rows = [
                (name.ljust(width), command.get_short_help_str(room))
                for name, command in commands.items()
                if not command.hidden
            ]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in args:
            if not is_text(word):
                raise typer.BadParameter(
                    f"{visible(word)!r} is not text in UTF-8; check how it was typed or pasted"
                )
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StepfastError as error:
            complain(str(error))
            raise typer.Exit(1) from None


def is_text(word: str) -> bool:
    """Whether all bytes of a word of the command line are characters: Python makes half a character of each that is not."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def applications() -> dict[str, EntryPoint]:
    """The entry points `stepfast.commands` of installed packages. Each names a Typer application or a function.

    `stepfast --help` loads all of them, so their modules import what is heavy inside their functions. The short help is
    that of the application, or the first sentence of the function's docstring. A Typer application may choose its group:
    `typer.Typer(rich_help_panel="Sync")`.
    """
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="stepfast.commands")}


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


def _show_version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        version(json=False)
        raise typer.Exit


@app.callback()
def database(
    ctx: typer.Context,
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url", envvar="STEPFAST_DATABASE_URL", metavar="URL", help=URL_HELP, show_default=False
        ),
    ] = None,
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Background work that is not lost and not done twice."""
    del show_version  # its callback has ended the program
    ctx.obj = database_url


app.command("worker", short_help="Run jobs until told to stop.", rich_help_panel=WORK)(worker.worker)
app.add_typer(tasks.app, name="tasks", rich_help_panel=WORK)
app.add_typer(schedules.app, name="schedules", rich_help_panel=WORK)
app.add_typer(events.app, name="events", rich_help_panel=WORK)

app.add_typer(jobs.app, name="jobs", rich_help_panel=LOOK)
app.add_typer(queues.app, name="queues", rich_help_panel=LOOK)
app.add_typer(workers.app, name="workers", rich_help_panel=LOOK)
app.add_typer(limits.app, name="limits", rich_help_panel=LOOK)
app.add_typer(alerts.app, name="alerts", rich_help_panel=LOOK)
app.add_typer(audit.app, name="audit", rich_help_panel=LOOK)

app.command("doctor", short_help="Find what is wrong, and what to do.", rich_help_panel=MEND)(doctor.doctor)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=MEND)
app.add_typer(leases.app, name="leases", rich_help_panel=MEND)
app.add_typer(outbox.app, name="outbox", rich_help_panel=MEND)

app.add_typer(runs.app, name="runs", rich_help_panel=SYNC)
app.add_typer(partitions.app, name="partitions", rich_help_panel=SYNC)
app.add_typer(quarantine.app, name="quarantine", rich_help_panel=SYNC)
app.add_typer(debts.app, name="debts", rich_help_panel=SYNC)
app.add_typer(watermark.app, name="watermark", rich_help_panel=SYNC)
app.add_typer(sweeps.app, name="sweeps", rich_help_panel=SYNC)

app.command("migrate", short_help="Create or upgrade the tables.", rich_help_panel=SET_UP)(migrate.migrate)
app.command(
    "config", short_help="Show the settings in force, and where they come from.", rich_help_panel=SET_UP
)(config.config)
app.add_typer(encryption.app, name="encryption", rich_help_panel=SET_UP)


@app.command("version", short_help="Show the version.", rich_help_panel=SET_UP)
def version(*, json: Json = False) -> None:
    """Show the versions of Stepfast, Python and the tables."""
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
