"""What may stand between us and PostgreSQL, and what it takes away.

A pooler tells each of its clients a process id of its own making, so the server's answer differs from what the
client was told when it connected: no setting and no privilege is needed to see that somebody stands between.
In transaction mode each transaction may meet another session of the server. So nothing is prepared, set or
listened for that would have to outlive its transaction; limits travel with each BEGIN, and locks end with it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

PREPARE_AFTER: Final = 5  # executions of a statement, where the session is ours
OWN_OPTIONS: Final = ("pooler=",)  # of the URL's query: not for libpq


class Pooler(StrEnum):
    """What `?pooler=` says of the way to the server; without it each connection finds out."""

    NONE = "none"  # the server itself answers
    SESSION = "session"  # a session of the server is ours for as long as we are connected
    TRANSACTION = "transaction"  # ... for as long as a transaction lasts


def declared_pooler(parts: SplitResult) -> Pooler | None:
    """What the URL says, None if it leaves it to us to find out."""
    said = parse_qs(parts.query).get("pooler")
    if said is None:
        return None
    try:
        return Pooler(said[-1])
    except ValueError:
        raise ConfigurationError(
            f"pooler={said[-1]!r}: write 'transaction' or 'session', as the pooler's own settings say, 'none' "
            "where there is none, or leave it out; poolers that work by statement have no transactions"
        ) from None


def without_own_options(url: str) -> str:
    """The URL as libpq understands it."""
    base, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if part and not part.startswith(OWN_OPTIONS))
    return f"{base}?{kept}" if kept else base


def begin_session(raw: Any, said: Pooler | None, place: str) -> bool:
    """Set what the session may keep; returns whether it is ours for one transaction at a time only."""
    try:
        between = said in {Pooler.SESSION, Pooler.TRANSACTION} or (said is None and stands_between(raw))
        if between:
            refuse_statements(raw, place)
        if between and said is not Pooler.SESSION:
            return True
        raw.prepare_threshold = PREPARE_AFTER
        # A plan that was made for an empty queue is no plan for a full one.
        raw.execute("SET plan_cache_mode = force_custom_plan")
    except BaseException:
        raw.close()
        raise
    return False


def stands_between(raw: Any) -> bool:
    """Whether somebody else than the server itself answers."""
    return backend(raw) != int(raw.info.backend_pid)


def backend(raw: Any) -> int:
    """The process of the server that answers just now."""
    return int(raw.execute("SELECT pg_backend_pid()").fetchone()[0])


def refused_option(message: str, place: str) -> ConfigurationError | None:
    """A pooler takes few parameters at the start, and says which one it does not know."""
    _, found, name = message.partition("unsupported startup parameter: ")
    if not found:
        return None
    return ConfigurationError(
        f"the pooler at {place} does not take {name.split()[0]!r} from the URL: leave it out and set it for the role "
        "(ALTER ROLE … SET …), or go to the server itself"
    )


def refuse_statements(raw: Any, place: str) -> None:
    """Refuse a pooler that works by statement: it says so when a transaction stays open."""
    import psycopg

    try:
        raw.execute("BEGIN")
        raw.execute("ROLLBACK")
    except psycopg.Error as error:
        if "statement pooling" not in str(error):
            raise
        raise ConfigurationError(
            f"the pooler at {place} works by statement, so nobody can have a transaction there: let it work by "
            "transaction (PgBouncer: pool_mode = transaction), or go to the server itself"
        ) from error
