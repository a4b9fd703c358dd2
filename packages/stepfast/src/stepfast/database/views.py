"""Views for a person at a SQL prompt. None of them is needed by Stepfast itself.

A component has each view in a file `migrations/views/NAME.sql`. In the database it has that name, or the name with a prefix, or it is not
there at all: `stepfast migrate --views default|PREFIX|none` chooses, and stepfast_view_names remembers the choice.

The definition of a view has a mark in its WHERE clause: only views with it are replaced or dropped. A name that the user's own
table or view has is left alone. (A comment would not do: MariaDB has none for views, and PostgreSQL keeps that of a view
when somebody replaces it.)
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.database.dialects import MARK
from stepfast.database.relations import find_relations
from stepfast.database.sql_files import in_order, statements_for, statements_of, texts_for
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, DatabaseError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.resources.abc import Traversable

    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.dialects import Dialect
    from stepfast.database.relations import Relation


NO_VIEWS: Final = "none"
OWN_NAMES: Final = "default"
CHOICES: Final = "stepfast_view_names"  # the table that remembers them

_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,29}")

CHOSEN_NAMES = sql("SELECT id, names FROM stepfast_view_names")
CHANGE_NAMES = sql("UPDATE stepfast_view_names SET names = :names WHERE id = :component")
REMEMBER_NAMES = sql(
    "INSERT INTO stepfast_view_names (id, names) VALUES (:component, :names) {keep_existing}"
)


def checked_names(names: str) -> str:
    """The names that views shall have: "none", "default", or a prefix. Anything else is refused."""
    if not _PREFIX.fullmatch(names):
        raise ConfigurationError(
            f"views: {names!r} cannot begin the name of a view; write none, default, or a prefix of small letters, digits "
            "and underscores that begins with a letter, 30 characters at most"
        )
    return names


@dataclass(frozen=True)
class View:
    """One view of a component: for each database CREATE VIEW, and perhaps what belongs to the view, such as a trigger."""

    name: str
    statements: tuple[str, ...]

    def name_among(self, names: str) -> str | None:
        """Its name in a database whose views have these names."""
        return {NO_VIEWS: None, OWN_NAMES: self.name}.get(names, f"{names}{self.name}")

    def mark(self, dialect: Dialect) -> str:
        """What the definition of exactly this version of the view contains."""
        text = "\n".join(statements_for(dialect, self.statements))
        return f"{MARK}: {hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def texts(self, dialect: Dialect, name: str) -> tuple[str, ...]:
        """CREATE VIEW under this name, then what belongs to it."""
        condition = f"'{self.mark(dialect)}' <> ''"
        filled = [it.replace("{view}", name).replace("{mark}", condition) for it in self.statements]
        return tuple(texts_for(dialect, filled))


def read_views(folder: Traversable) -> tuple[View, ...]:
    """The views in this folder, if there is one."""
    if not folder.is_dir():
        return ()
    files = [file for file in in_order(folder) if file.name.endswith(".sql")]
    views = tuple(View(file.name.removesuffix(".sql"), statements_of(file)) for file in files)
    for view in views:
        for statement in view.statements:
            creates = "CREATE VIEW" in statement
            if creates and ("{view}" not in statement or "{mark}" not in statement):
                raise ConfigurationError(
                    f"{view.name}.sql: the statement must have {{view}} in the place of the name, and {{mark}} in its "
                    "WHERE clause, so that `stepfast migrate` knows the view for its own"
                )
    return views


def chosen_names(tx: Transaction, component: str, default: str) -> tuple[str, bool]:
    """The names that the views of a component have, and whether these were chosen for it, not for `default`."""
    chosen = {str(row[0]): str(row[1]) for row in tx.rows(CHOSEN_NAMES)}
    return chosen.get(component, chosen.get(default, OWN_NAMES)), component in chosen


def remember_names(tx: Transaction, component: str, names: str) -> None:
    if tx.run(CHANGE_NAMES, component=component, names=names) == 0:
        tx.run(REMEMBER_NAMES, component=component, names=names)


@dataclass(frozen=True)
class ViewChange:
    """A view to create, replace or drop: each of `ways` are statements that do it, tried in turn."""

    name: str
    verb: str
    ways: tuple[tuple[str, ...], ...]

    def apply(self, connection: Connection) -> str | None:
        """Make the change; if the database refuses, return a sentence about it, and leave everything as it was."""
        for way in self.ways:
            refusal = _attempt(connection, way)
            if refusal is None or self._was_made_by_another_node(refusal, connection):
                return None
        cure = "drop it by hand" if self.verb == "dropped" else "the next `stepfast migrate` tries again"
        return f"the view {self.name} could not be {self.verb} ({' '.join(str(refusal).split())}); {cure}"

    def _was_made_by_another_node(self, refusal: DatabaseError, connection: Connection) -> bool:
        """On Galera no lock keeps two nodes from migrating at once."""
        is_there = self.verb == "created" and "already exists" in str(refusal)
        return is_there and connection.dialect.name == "mariadb"


def _attempt(connection: Connection, statements: Sequence[str]) -> DatabaseError | None:
    """Execute all of these or none; the error of the one that was refused."""
    # Elsewhere a refused statement does not spoil the transaction.
    can_undo = connection.dialect.name == "postgresql"
    if can_undo:
        connection.execute("SAVEPOINT stepfast_view")
    try:
        for statement in statements:
            connection.execute(statement, {})
    except (UnreachableError, ContentionError):
        raise
    except DatabaseError as error:
        if can_undo:
            connection.execute("ROLLBACK TO SAVEPOINT stepfast_view")
        return error
    return None


def plan_views(
    tx: Transaction, dialect: Dialect, views: Sequence[View], before: str, names: str
) -> tuple[list[ViewChange], list[str]]:
    """What to change so that the views have these `names`; and a sentence for each name that is not ours to take."""
    here = find_relations(
        tx, {name for view in views for it in (before, names) if (name := view.name_among(it))}
    )
    changes: list[ViewChange] = []
    taken: list[str] = []
    for view in views:
        old, new = view.name_among(before), view.name_among(names)
        if old is not None and old != new and (found := here.get(old)) is not None and _is_marked(found):
            changes.append(ViewChange(old, "dropped", ((f"DROP VIEW {old}",),)))
        if new is None:
            continue
        found = here.get(new)
        if found is None:
            changes.append(ViewChange(new, "created", (view.texts(dialect, new),)))
        elif not _is_marked(found):
            if found.definition != "":  # MariaDB shows no definition to a user without the right SHOW VIEW
                taken.append(_name_taken(found))
        elif view.mark(dialect) not in (found.definition or ""):
            changes.append(ViewChange(new, "replaced", tuple(_replacing(view, dialect, new))))
    return changes, taken


def _is_marked(found: Relation) -> bool:
    return found.kind == "view" and f"{MARK}: " in (found.definition or "")


def _replacing(view: View, dialect: Dialect, name: str) -> Iterator[tuple[str, ...]]:
    text, *more = view.texts(dialect, name)
    if dialect.name != "sqlite":
        yield (text.replace("CREATE ", "CREATE OR REPLACE ", 1), *more)  # keeps its grants
    if dialect.name != "mariadb":
        yield (f"DROP VIEW {name}", text, *more)  # PostgreSQL does not replace a view if a column is gone


def _name_taken(found: Relation) -> str:
    return (
        f"there is {found} that Stepfast did not make: it is left alone, and Stepfast's view of that name is missing; "
        "choose other names with `stepfast migrate --views PREFIX`, or no views with `--views none`"
    )
