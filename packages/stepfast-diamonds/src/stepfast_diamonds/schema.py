"""The tables of the catalogue: a component of their own, so that programs that sync something else never have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.applications import Component, migrate
from stepfast.errors import DatabaseError, SchemaError
from stepfast_diamonds.rule_sets import add_default_rules

if TYPE_CHECKING:
    from stepfast import Stepfast


COMPONENT: Final = Component("diamonds", package="stepfast_diamonds", after=add_default_rules)
_MISSING: Final = ("no such table", "does not exist", "doesn't exist")


def prepare(app: Stepfast) -> None:
    """Create what is missing, and begin with the default rules. Safe to run again, from many processes at once."""
    migrate(app, COMPONENT)


def naming_the_command(error: DatabaseError) -> Exception:
    """The error, or, if a table is missing, one that names the command that creates it."""
    if any(words in str(error) for words in _MISSING):
        return SchemaError(
            "the database has no tables of the diamond catalogue; run `stepfast diamonds migrate` once"
        )
    return error
