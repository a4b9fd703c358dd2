"""The command line. Everything it knows and does is in `stepfast.admin`; here it gets words and tables.

What is heavy (drivers, tables, the engine) is imported inside the commands, so that help appears at once.
"""

from __future__ import annotations


def main() -> None:
    """The program `stepfast`."""
    from stepfast.cli.command import app

    app()
