"""A made-up component with two migrations and a view, as an application would bring it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.applications import Component

if TYPE_CHECKING:
    from stepfast import Transaction


def first_shelf(tx: Transaction) -> None:
    if not tx.query("SELECT id FROM library_shelf"):
        tx.execute("INSERT INTO library_shelf (id, room) VALUES ('first', 'hall')")


LIBRARY: Final = Component("library", package="tests.support", folder="library", after=first_shelf)
LIBRARY_BEFORE: Final = Component("library", package="tests.support", folder="library_before")  # version 1
