"""The command line: one module per group of commands. Each command goes through `Operator`; here are words and tables.

Heavy modules (drivers, reports, the engine) are imported inside the commands, so that help appears at once.
"""

from __future__ import annotations


def main() -> None:
    """The program `stepfast`."""
    import os
    import sys

    from stepfast.cli.command import app

    if runs_a_worker(sys.argv[1:], single_task="TASK_DATA" in os.environ):
        from stepfast.worker.guardian_link import start_under_guardian

        start_under_guardian()
    app()


def runs_a_worker(arguments: list[str], *, single_task: bool) -> bool:
    """Whether these arguments run a worker: `stepfast worker`, or `stepfast tasks work` that polls a queue."""
    words, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--database-url":
            skip = True
        elif not argument.startswith("-"):
            words.append(argument)
    helps = "--help" in arguments
    return not helps and (words[:1] == ["worker"] or (words[:2] == ["tasks", "work"] and not single_task))
