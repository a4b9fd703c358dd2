"""What a user's statement may not say inside a transaction that Stepfast opened and will end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from stepfast.database.dialects import Dialect

_LEADING: Final = (
    r"(?:\s|;|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*.*?\*/)*"  # what may stand before the first word
)
_TRANSACTION_CONTROL: Final = re.compile(
    _LEADING
    + r"(BEGIN|START\s+TRANSACTION|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|END|ABORT|PREPARE\s+TRANSACTION|SET\s+AUTOCOMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_COMMITS_BY_ITSELF: Final = re.compile(
    _LEADING + r"(CREATE|ALTER|DROP|TRUNCATE|RENAME|GRANT|REVOKE|LOCK|UNLOCK|ANALYZE|OPTIMIZE)\b",
    re.IGNORECASE | re.DOTALL,
)


def refuse_control(text: str, dialect: Dialect) -> None:
    """Nothing that begins or ends a transaction, by its name or by itself."""
    statements = _QUOTED.sub("''", text).split(";") if ";" in text else [text]
    if word := next(filter(None, map(_TRANSACTION_CONTROL.match, statements)), None):
        raise DatabaseError(
            f"{word[1].upper()} is not yours to say here: Stepfast opens and ends the transaction"
        )
    if dialect.name == "mariadb" and (word := _COMMITS_BY_ITSELF.match(text)):
        raise DatabaseError(
            f"{word[1].upper()} commits by itself on MariaDB and would break the step's transaction; "
            "run it outside: app.database.connect().execute(…)"
        )
