"""The token that all processes share, in one row of the database. Whoever has the turn logs in; the others wait for it.

A turn ends by itself after a minute, in case its owner has died. A login that failed leaves its reason for a while:
whoever comes meanwhile gets that instead of asking again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.clock import micros
from stepfast.database.statement import sql
from stepfast.diamonds.schema import saying_so
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.diamonds.token_seal import Seal

TURN: Final = timedelta(seconds=60)  # longer than a login may take
LONGEST_PROBLEM: Final = 400

LOOK = sql("""
    SELECT sealed, renew_at - {now}, version, turn_until - {now}, problem, trouble
      FROM nivoda_tokens WHERE id = :id
""")
BEGIN = sql("INSERT INTO nivoda_tokens (id, version, changed_at) VALUES (:id, 0, {now}) {keep_existing}")
TAKE_TURN = sql("""
    UPDATE nivoda_tokens
       SET turn_of = :me, turn_until = {now} + :turn, problem = NULL, trouble = NULL, changed_at = {now}
     WHERE id = :id AND version = :version AND (turn_until IS NULL OR turn_until <= {now})
""")
KEEP = sql("""
    UPDATE nivoda_tokens
       SET sealed = :sealed, renew_at = {now} + :lasts, version = version + 1, turn_of = NULL, turn_until = NULL,
           problem = NULL, trouble = NULL, changed_at = {now}
     WHERE id = :id AND turn_of = :me
""")
GIVE_UP = sql("""
    UPDATE nivoda_tokens
       SET version = version + 1, turn_of = NULL, turn_until = {now} + :rest, problem = :problem, trouble = :trouble,
           changed_at = {now}
     WHERE id = :id AND turn_of = :me
""")


@dataclass(frozen=True)
class Found:
    """A token that is good for so many seconds more."""

    token: str
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A login failed; for so many seconds nobody tries another."""

    trouble: str
    problem: str
    seconds: float


@dataclass(frozen=True)
class Busy:
    """Somebody is logging in."""


@dataclass(frozen=True)
class Free:
    """Nobody is: whoever takes the turn at this version may."""

    version: int


class _Row(NamedTuple):
    sealed: str | None
    left: int | None
    version: int
    turn_left: int | None
    problem: str | None
    trouble: str | None


class TokenRows:
    """The row of one account. Each method is a short transaction of its own. `tells`: whether a failure is everybody's."""

    def __init__(self, app: Stepfast, seal: Seal, id_: str, *, tells: bool = True) -> None:
        self._app = app
        self._tells = tells
        self._seal = seal
        self._id = id_
        self._me = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._begun = False

    def look(self, refused: str | None) -> Found | Failed | Busy | Free:
        """What there is to do for somebody who needs a token other than `refused`."""
        with self._app.reading() as tx:
            row = _saying_so(lambda: tx.all(LOOK, _Row, id=self._id))
        if not row:
            return Free(0)
        return self._judged(row[0], refused)

    def take_turn(self, version: int) -> bool:
        """Whether it is ours to log in."""
        with self._app.transaction() as tx:
            if not self._begun:
                _saying_so(lambda: tx.run(BEGIN, id=self._id))
            taken = tx.run(TAKE_TURN, id=self._id, me=self._me, version=version, turn=micros(TURN)) == 1
        self._begun = True
        return taken

    def keep(self, token: str, seconds: float) -> None:
        """The login succeeded. Who took too long for it finds the turn with somebody else, and keeps the token to himself."""
        self._end(KEEP, sealed=self._seal.close(token), lasts=int(seconds * 1_000_000))

    def give_up(self, trouble: str, problem: str, rest: timedelta) -> None:
        rest = rest if self._tells else timedelta(0)
        self._end(GIVE_UP, trouble=trouble, problem=problem[:LONGEST_PROBLEM], rest=micros(rest))

    def _end(self, statement: Any, **given: Any) -> None:
        with self._app.transaction() as tx:
            tx.run(statement, id=self._id, me=self._me, **given)

    def _judged(self, row: _Row, refused: str | None) -> Found | Failed | Busy | Free:
        if row.sealed is not None and row.left is not None and row.left > 0:
            token = self._seal.open(row.sealed)
            if token is not None and token != refused:
                return Found(token, row.left / 1e6)
        if row.turn_left is None or row.turn_left <= 0:
            return Free(row.version)
        if row.problem is None:
            return Busy()
        return Failed(row.trouble or "outage", row.problem, row.turn_left / 1e6)


def _saying_so(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except DatabaseError as error:
        raise saying_so(error) from error
