"""Every command of `stepfast`, in the groups of its help, with arguments and options, from the command line itself.

`docs/reference/cli.md` includes it through cog.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from stepfast.cli.command import app

SHARED = {"--database-url", "--json", "--help"}  # described once, above all commands


def root() -> Any:
    """The tree of commands."""
    return typer.main.get_command(app)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that is no group, by the words of its line."""
    yield from _below("stepfast", root())


def text() -> str:
    """A part per group, with a section per command."""
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    for group, commands_of_group in root().groups(None).items():
        yield f"## {group}\n"
        for word, command in commands_of_group.items():
            for name, below in _below(f"stepfast {word}", command):
                yield from _section(name, below)


def options(command: Any) -> list[Any]:
    return [it for it in command.params if it.param_type_name == "option" and it.name != "help"]


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word in command.list_commands(None):
        yield from _below(f"{name} {word}", command.get_command(None, word))


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [it for it in command.params if it.param_type_name == "argument"]
    typed = [
        f"[{_label(it)}]" if not it.required and "[" not in _label(it) else _label(it) for it in arguments
    ]
    yield f"### {' '.join([name, *typed])}\n"
    yield f"{_plain(command.help)}\n"
    own = [it for it in options(command) if not SHARED.intersection(it.opts)]
    if own:
        yield "| option | meaning | default |\n|---|---|---|"
        for it in own:
            yield f"| `{', '.join(it.opts)}` | {_plain(it.help)} | {_default(it)} |"
        yield ""


def _label(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if option.show_default is False or option.default in (None, False):
        return ""
    return str(option.default)


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
