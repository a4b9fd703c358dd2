"""The command line: one module per group of commands. Each command goes through `Operator`; here are words and tables.

Heavy modules (drivers, reports, the engine) are imported inside the commands, so that help appears at once.
"""

from __future__ import annotations


def main() -> None:
    """The program `stepfast`."""
    from stepfast.cli.command import app

    app()
