"""`stepfast diamonds`: the catalogue of diamonds, and a source to try it with."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.applications.commands import Json, usage
from stepfast_diamonds.commands import heatmap as diamond_heatmap
from stepfast_diamonds.commands import repricing as diamond_repricing
from stepfast_diamonds.commands import rules as diamond_rules

app = typer.Typer(help="The diamond catalogue, and a simulator of its source.", no_args_is_help=True)


@app.callback()
def diamonds() -> None:
    """The diamond catalogue, and a simulator of its source."""


app.command("migrate", short_help="Create the tables of the catalogue.")(diamond_rules.migrate)
app.add_typer(diamond_rules.app, name="rules")
app.command("heatmap", short_help="Show how a feed would be divided.")(diamond_heatmap.heatmap)
diamond_rules.app.command("reprice")(diamond_repricing.reprice)
diamond_rules.app.command("repricings")(diamond_repricing.repricings)
diamond_rules.app.command("revert", short_help="Take a repricing back.")(diamond_repricing.revert)


@app.command("simulate", short_help="Serve an API like Nivoda's on loopback.")
def simulate(
    *,
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", min=0, max=65535, help="Listen here; 0 chooses a free one."),
    ] = 8090,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="How many stones: 1k, 50k, 500k, 900k-labgrown, another number, or several: 50k+50k-labgrown.",
        ),
    ] = "50k",
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", help="The same number makes the same catalogue with the same life."
        ),
    ] = 1,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            metavar="KNOBS",
            help="none, default, real or rough; then changes: rough,hang_prob=0.01,requests_per_s=100.",
        ),
    ] = "default",
    speed: Annotated[
        float,
        typer.Option(
            "--speed", metavar="X", min=0, help="Seconds of its clock that pass in one of ours; 0 stops it."
        ),
    ] = 1.0,
    json: Json = False,
) -> None:
    """Serve an API like Nivoda's on loopback, with its bad habits and an oracle that knows the truth.

    Runs until SIGTERM or Ctrl-C.
    """
    import asyncio
    from json import dumps

    from stepfast_diamonds.simulator import Simulator

    with usage():
        simulator = Simulator(profile, seed=seed, faults=faults, speed=speed, port=port)

    def ready(it: Simulator) -> None:
        facts = {
            "url": it.url,
            "oracle": f"{it.base_url}/oracle/",
            "username": it.username,
            "password": it.password,
            "stones": it.statistics()["stones"],
        }
        if json:
            typer.echo(dumps(facts))  # on one line: a program that starts this reads it and goes on
        else:
            typer.echo(
                "{stones:,} stones at {url}\nlog in as {username} with the password {password}\n"
                "the truth is at {oracle}; stop with Ctrl-C".format(**facts)
            )

    asyncio.run(simulator.serve(ready, signals=True))
