"""SQL in files: the statements of a migration or of a view, and which of them one database gets.

`-- only: postgresql, sqlite` above a statement leaves it out elsewhere. The `{words}` are those of `dialects.Dialect` and
`column_types`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stepfast.database.column_types import with_column_types
from stepfast.database.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.resources.abc import Traversable

    from stepfast.database.dialects import Dialect


_ONLY: Final = re.compile(r"^-- only: ([\w, ]+)$", re.MULTILINE)


def in_order(folder: Traversable) -> list[Traversable]:
    """What is in a folder, by name."""
    return sorted(folder.iterdir(), key=lambda part: part.name)


def statements_of(part: Traversable) -> tuple[str, ...]:
    """The statements of a file, or of the files of a folder."""
    files = in_order(part) if part.is_dir() else [part]
    texts = (file.read_text(encoding="utf-8") + "\n" for file in files if file.name.endswith(".sql"))
    statements = (statement for text in texts for statement in re.split(r";[ \t]*\n", text))
    return tuple(statement for statement in statements if _code(statement))


def texts_for(dialect: Dialect, statements: Iterable[str]) -> Iterator[str]:
    """The statements that this database gets, with its words filled in."""
    for statement in statements_for(dialect, statements):
        yield Statement(with_column_types(statement, dialect)).render(dialect)


def statements_for(dialect: Dialect, statements: Iterable[str]) -> Iterator[str]:
    """The statements that this database gets, as they are written."""
    for statement in statements:
        only = _ONLY.search(statement)
        if only is None or dialect.name in {name.strip() for name in only[1].split(",")}:
            yield _ONLY.sub("", statement).strip()


def _code(statement: str) -> str:
    """The statement without its comments."""
    lines = (line for line in statement.splitlines() if not line.strip().startswith("--"))
    return "\n".join(lines).strip()
