"""`stepfast demo`: the diamond catalogue is synced, a worker is killed, and nothing is lost."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stepfast.applications.commands import usage

STONES = 50_000
MOST_WORKERS = 64


def demo(
    ctx: typer.Context,
    *,
    stones: Annotated[
        int,
        typer.Option("--stones", metavar="N", min=100, max=10_000_000, help="Stones that the source has."),
    ] = STONES,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, max=MOST_WORKERS, help="Worker processes.")
    ] = 4,
    no_kill: Annotated[
        bool,
        typer.Option("--no-kill", help="Let all of them live; else one is killed in the middle of a page."),
    ] = False,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            help="An empty database to fill: postgresql://user@host/name, mysql://user@host/name, sqlite:///new.db. "
            "STEPFAST_DATABASE_URL is not looked at.",
            show_default="a new SQLite file in the directory",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="FOLDER",
            help="Where the SQLite file and the logs of the workers go; new or empty.",
            show_default="a new temporary one",
        ),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove the directory in the end; else it stays, to look around in."),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Where the simulator listens; 0 chooses a free one.",
        ),
    ] = 0,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="NAME",
            help="Tell workers of pages by a broker: service-bus (our emulator), storage-queue (Azurite, which Node runs), "
            "database or memory.",
            show_default="none: workers look into the database",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="The same number makes the same catalogue.")
    ] = 1,
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="KNOBS",
            help="What the source does wrong, as for `stepfast diamonds simulate`.",
            show_default="short pages, shuffled ties, lost and broken answers",
        ),
    ] = None,
) -> None:
    """Sync a simulated catalogue, kill a worker, check the result.

    Four workers read diamonds; the table is compared with the source in the end. Needs no server and no account. Exits with 1 if a stone is missing, doubled or stale.
    """
    if not no_kill and workers == 1:
        raise typer.BadParameter(
            "nobody could take over from a single worker; use at least 2, or --no-kill",
            param_hint="--workers",
        )
    _require_extra()
    from stepfast_diamonds.demo.processes import TRANSPORTS
    from stepfast_diamonds.demo.source import FAULTS
    from stepfast_diamonds.demo.story import DemoOptions, run_demo
    from stepfast_diamonds.simulator.faults import parse_knobs

    with usage("--faults"):
        parse_knobs(faults)
    if transport is not None and transport not in TRANSPORTS:
        raise typer.BadParameter(
            f"{transport!r} is none of {', '.join(TRANSPORTS)}", param_hint="--transport"
        )
    options = DemoOptions(
        stones=stones,
        workers=workers,
        kill=not no_kill,
        database=database or _given_before(ctx),
        directory=directory,
        keep=not remove,
        port=port,
        seed=seed,
        faults=faults or FAULTS,
        transport=transport,
    )
    # Like Ctrl-C: all that was started is ended on the way out.
    before = signal.signal(signal.SIGTERM, _end)
    try:
        clean = run_demo(options)
    except KeyboardInterrupt:
        typer.echo("\nstopped; nothing is running any more", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if not clean:
        raise typer.Exit(1)


def _given_before(ctx: typer.Context) -> str | None:
    """The URL of `stepfast --database-url URL demo`. A URL in the environment is not used: it may be a real database."""
    source = None if ctx.parent is None else ctx.parent.get_parameter_source("database_url")
    given: str | None = ctx.obj
    return given if source is not None and source.name == "COMMANDLINE" else None


def _end(number: int, _: Any) -> None:
    sys.exit(128 + number)


def _require_extra() -> None:
    from importlib.util import find_spec

    from stepfast.errors import ConfigurationError, install_hint

    if any(find_spec(it) is None for it in ("httpx", "cryptography")):
        raise ConfigurationError(f"the demo needs a package: {install_hint(package='stepfast-diamonds')}")
