"""The command line, run in this process against one database."""

from tests.support.command_line import Cli, _plain_surroundings, app, cli

__all__ = ["Cli", "_plain_surroundings", "app", "cli"]
