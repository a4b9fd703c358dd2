"""PostgreSQL: who stands between us and the server, what is lost by it, and whether workers are woken all the same."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stepfast.admin.doctor.finding import Finding, fail, ok, warn
from stepfast.database.listening import hears_itself
from stepfast.database.poolers import Pooler, backend, declared_pooler, stands_between

if TYPE_CHECKING:
    from stepfast.database.connection import Connection
    from stepfast.database.database import Database

POLLING: Final = "idle workers poll, every 50 ms and after a while every 250 ms, because LISTEN is lost"
UNPREPARED: Final = "statements are not prepared"


def look(database: Database) -> list[Finding]:
    """What the pooler takes away; nothing to say where there is none."""
    said = declared_pooler(urlsplit(database.url))
    woken = database.listen_elsewhere is not None
    with closing(database.connect()) as one:
        if stands_between(one.raw):
            with closing(database.connect()) as other:
                found = [judge(mode(one, other), said, woken=woken)]
        else:
            found = needless(said)
    return found + (wake_up(database) if woken else [])


def mode(one: Connection, other: Connection) -> Pooler:
    """How the pooler works: in session mode each client keeps the session it has, and shares it with nobody."""
    mine = {backend(one.raw) for _ in range(2)}  # asked twice: some poolers hand out their sessions in turn
    theirs = {backend(other.raw)}
    mine.add(backend(one.raw))
    return Pooler.SESSION if len(mine) == 1 and not mine & theirs else Pooler.TRANSACTION


def judge(works: Pooler, said: Pooler | None, *, woken: bool) -> Finding:
    """Whether what the URL says fits what the pooler does."""
    if works is Pooler.SESSION and said is Pooler.SESSION:
        return ok("pooler", "a pooler in session mode stands before the server; nothing is lost")
    if works is Pooler.SESSION:
        return warn(
            "pooler",
            "a pooler stands before the server; it seems to keep sessions, but nobody relies on that",
            "write pooler=session into the URL if its own settings say so: statements are prepared then, and workers woken",
        )
    if said in {Pooler.SESSION, Pooler.NONE}:
        return fail(
            "pooler",
            f"the URL says pooler={said}, but a pooler hands each transaction another session: "
            "prepared statements and LISTEN are lost on the way",
            "write pooler=transaction into the URL",
        )
    found = "a pooler in transaction mode stands before the server: " + UNPREPARED
    if woken:
        return ok("pooler", f"{found}; workers listen past it")
    if said is Pooler.TRANSACTION:
        return ok("pooler", f"{found}, and {POLLING}")
    return warn(
        "pooler",
        f"{found}, and {POLLING}",
        "set STEPFAST_LISTEN_URL to a URL that leads to the server itself; or write pooler=transaction into the URL "
        "to say that polling is meant",
    )


def needless(said: Pooler | None) -> list[Finding]:
    """The server itself answers."""
    if said is not Pooler.TRANSACTION:
        return []
    return [
        warn(
            "pooler",
            f"the URL says pooler=transaction, but the server itself answers: {UNPREPARED} and {POLLING}, for nothing",
            "leave pooler= out of the URL",
        )
    ]


def wake_up(database: Database) -> list[Finding]:
    """Whether STEPFAST_LISTEN_URL leads where the work is."""
    if hears_itself(database):
        return [ok("wake-up", "what is notified on the database is heard at STEPFAST_LISTEN_URL")]
    return [
        warn(
            "wake-up",
            "what is notified on the database is not heard at STEPFAST_LISTEN_URL: workers poll",
            "let it lead past the pooler, to the same server and the same database",
        )
    ]
