"""The token of an account: shared by all processes, and fetched by one login at a time.

Inside a process the first task that needs a token logs in, and all others wait for its result. Between processes a row
of the database does the same, if STEPFAST_SECRET_KEY allows to keep a token there: the process that has the turn logs in.
A turn ends by itself after a minute, in case its owner has died. A token is renewed before it ends, measured with a
monotonic clock: its expiry is read as a span from the Date of the same answer. After a failed login all wait for a while,
and get its error instead of asking again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import random
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

import msgspec

from stepfast import sql
from stepfast.applications import Keyring, duration, micros
from stepfast.errors import AuthError, DatabaseError, OutageError, SealedError, ThrottledError, TransientError
from stepfast_diamonds.schema import naming_the_command

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast_diamonds.settings import NivodaSettings


RENEWED_EARLIER: Final = timedelta(minutes=5)
LOGIN_PATIENCE: Final = timedelta(
    seconds=75
)  # with another process that is logging in; its turn ends after 60
LOOK_EVERY: Final = 0.2
REST_AFTER: Final[dict[type[Exception], timedelta]] = {
    AuthError: timedelta(seconds=30), ThrottledError: timedelta(seconds=60), OutageError: timedelta(seconds=1),
}  # fmt: skip
TROUBLES: Final[dict[str, type[TransientError]]] = {
    "auth": AuthError, "throttle": ThrottledError, "outage": OutageError,
}  # fmt: skip


@dataclass(frozen=True)
class LoginSession:
    """A token, and for how long it may be used before a new one is fetched."""

    token: str
    life: timedelta

    @property
    def usable(self) -> timedelta:
        return self.life - min(RENEWED_EARLIER, self.life / 2)


@dataclass(frozen=True)
class _KnownToken:
    token: str
    until: float  # monotonic


class Tokens:
    """The token of this process. `login` asks the source for one; `rows` shares it with other processes."""

    def __init__(self, login: Callable[[], Awaitable[LoginSession]], rows: TokenRows | None = None) -> None:
        self._login = login
        self._rows = rows
        self._lock = threading.Lock()  # workers may have event loops of their own
        self._known: _KnownToken | None = None
        self._flight: Future[_KnownToken | None] | None = None
        self._failure: tuple[TransientError, float] | None = None

    async def get(self, refused: str | None = None) -> str:
        """A token; not `refused`, which the source has stopped taking."""
        while True:
            with self._lock:
                if (known := self._usable(refused)) is not None:
                    return known.token
                self._raise_failure()
                flight, leads = self._flight, self._flight is None
                if flight is None:
                    flight = self._flight = Future()
                    flight.set_running_or_notify_cancel()  # a task that stops waiting does not end the login
            if leads:
                return (await self._lead(flight, refused)).token
            found = await asyncio.shield(asyncio.wrap_future(flight))
            if found is not None and found.token != refused:
                return found.token

    def _usable(self, refused: str | None) -> _KnownToken | None:
        known = self._known
        return known if known and known.token != refused and time.monotonic() < known.until else None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            error, until = self._failure
            left = until - time.monotonic()
            if left > 0:
                raise _again(error, left)
            self._failure = None

    async def _lead(self, flight: Future[_KnownToken | None], refused: str | None) -> _KnownToken:
        try:
            found = await (self._fetched() if self._rows is None else self._shared(self._rows, refused))
        except Exception as error:
            self._land(None, error if isinstance(error, TransientError) else None)
            flight.set_exception(error)
            raise
        except BaseException:  # cancelled: another task leads
            self._land(None)
            flight.set_result(None)
            raise
        self._land(found)
        flight.set_result(found)
        return found

    def _land(self, known: _KnownToken | None, error: TransientError | None = None) -> None:
        with self._lock:
            self._flight = None
            if known is not None:
                self._known, self._failure = known, None
            elif error is not None:
                self._failure = error, time.monotonic() + rest_after(error).total_seconds()

    async def _fetched(self) -> _KnownToken:
        session = await self._login()
        return _KnownToken(session.token, time.monotonic() + session.usable.total_seconds())

    async def _shared(self, rows: TokenRows, refused: str | None) -> _KnownToken:
        """The token that another process has fetched, or our own if it is our turn."""
        deadline = time.monotonic() + LOGIN_PATIENCE.total_seconds()
        while time.monotonic() < deadline:
            match await asyncio.to_thread(rows.look, refused):
                case TokenFound(token, seconds):
                    return _KnownToken(token, time.monotonic() + seconds)
                case LoginFailed(trouble, problem, seconds):
                    raise _again(TROUBLES.get(trouble, OutageError)(problem), seconds)
                case TurnFree(version):
                    if await asyncio.to_thread(rows.take_turn, version):
                        return await self._in_turn(rows)
                case LoginUnderWay():
                    await asyncio.sleep(LOOK_EVERY * (0.75 + 0.5 * random.random()))
                case never:
                    assert_never(never)
        raise OutageError("another process is logging in to Nivoda, and does not come back")

    async def _in_turn(self, rows: TokenRows) -> _KnownToken:
        try:
            session = await self._login()
        except Exception as error:
            trouble, rest = _trouble_of(error), rest_after(error)
            await asyncio.to_thread(rows.give_up, trouble, str(error), rest)
            raise
        except BaseException:  # cancelled: the turn is the next one's, at once
            rows.give_up("outage", "the login was broken off", timedelta(0))
            raise
        with suppress(DatabaseError):  # then it is ours alone, and the others log in when our turn has ended
            await asyncio.to_thread(rows.keep, session.token, session.usable.total_seconds())
        return _KnownToken(session.token, time.monotonic() + session.usable.total_seconds())


def rest_after(error: Exception) -> timedelta:
    """How long to wait for the next login after this error."""
    if isinstance(error, TransientError) and error.delay is not None:
        return duration(error.delay)
    return REST_AFTER.get(type(error), REST_AFTER[OutageError])


def _trouble_of(error: Exception) -> str:
    return next((name for name, it in TROUBLES.items() if isinstance(error, it)), "outage")


def _again(error: TransientError, seconds: float) -> TransientError:
    """A new error of the same kind, so that each task that meets the failed login raises its own."""
    kind = TROUBLES[_trouble_of(error)]
    wait = timedelta(seconds=seconds)
    return (
        ThrottledError(str(error), retry_after=wait)
        if kind is ThrottledError
        else kind(str(error), delay=wait)
    )


DOCUMENTED_LIFE: Final = timedelta(hours=6)
LONGEST_LIFE: Final = timedelta(days=30)  # what is told to last longer is counted in another unit
MILLISECONDS: Final = 1e11  # a larger number of seconds is a year after 5000
INSTANTS: Final = 1e9  # a smaller one is no date but a span


def life_of(token: str, expires: Any, date: datetime | None) -> timedelta:
    """How long a token lasts: by what the session says, else by what is written in it, else by the documents."""
    now = datetime.now().astimezone() if date is None else date
    for told in (expires, _claimed(token)):
        if isinstance(told, bool) or not isinstance(told, int | float) or not 0 < told < 1e18:  # noqa: PLR2004 - a number
            continue
        seconds = told / 1_000 if told > MILLISECONDS else float(told)
        life = timedelta(seconds=seconds - now.timestamp() if seconds > INSTANTS else seconds)
        if timedelta(0) < life <= LONGEST_LIFE:
            return life
    return DOCUMENTED_LIFE


def _claimed(token: str) -> Any:
    """The expiry inside a JWT; its signature is the source's to check."""
    try:
        body = token.split(".")[1]
        return msgspec.json.decode(urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("exp")
    except (IndexError, ValueError, AttributeError, msgspec.DecodeError):
        return None


LONGEST_TURN: Final = timedelta(seconds=60)  # longer than a login may take
LONGEST_PROBLEM: Final = 400
READ_TOKEN = sql("""
    SELECT sealed, renew_at - {now}, version, turn_until - {now}, problem, trouble
      FROM nivoda_tokens WHERE id = :id
""")
BEGIN_TOKEN = sql(
    "INSERT INTO nivoda_tokens (id, version, changed_at) VALUES (:id, 0, {now}) {keep_existing}"
)
TAKE_TURN = sql("""
    UPDATE nivoda_tokens
       SET turn_of = :me, turn_until = {now} + :turn, problem = NULL, trouble = NULL, changed_at = {now}
     WHERE id = :id AND version = :version AND (turn_until IS NULL OR turn_until <= {now})
""")
KEEP_TOKEN = sql("""
    UPDATE nivoda_tokens
       SET sealed = :sealed, renew_at = {now} + :lasts, version = version + 1, turn_of = NULL, turn_until = NULL,
           problem = NULL, trouble = NULL, changed_at = {now}
     WHERE id = :id AND turn_of = :me
""")
GIVE_TURN_UP = sql("""
    UPDATE nivoda_tokens
       SET version = version + 1, turn_of = NULL, turn_until = {now} + :rest, problem = :problem, trouble = :trouble,
           changed_at = {now}
     WHERE id = :id AND turn_of = :me
""")


@dataclass(frozen=True)
class TokenFound:
    """A token that is good for so many seconds more."""

    token: str
    seconds: float


@dataclass(frozen=True)
class LoginFailed:
    """A login failed; for so many seconds no process tries another."""

    trouble: str
    problem: str
    seconds: float


@dataclass(frozen=True)
class LoginUnderWay:
    """Another process is logging in."""


@dataclass(frozen=True)
class TurnFree:
    """No process is logging in: the one that takes the turn at this version may."""

    version: int


class _TokenRow(NamedTuple):
    sealed: str | None
    left: int | None
    version: int
    turn_left: int | None
    problem: str | None
    trouble: str | None


class TokenRows:
    """The row of one account. Each method is a short transaction of its own. `tells`: whether a failed login holds up others."""

    def __init__(self, app: Stepfast, seal: TokenSeal, id_: str, *, tells: bool = True) -> None:
        self._app = app
        self._tells = tells
        self._seal = seal
        self._id = id_
        self._me = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._begun = False

    def look(self, refused: str | None) -> TokenFound | LoginFailed | LoginUnderWay | TurnFree:
        """How to get a token other than `refused`."""
        with self._app.reading() as tx:
            row = _or_name_the_command(lambda: tx.all(READ_TOKEN, _TokenRow, id=self._id))
        if not row:
            return TurnFree(0)
        return self._judged(row[0], refused)

    def take_turn(self, version: int) -> bool:
        """Take the turn to log in; False if another process has it."""
        with self._app.transaction() as tx:
            if not self._begun:
                _or_name_the_command(lambda: tx.run(BEGIN_TOKEN, id=self._id))
            taken = (
                tx.run(TAKE_TURN, id=self._id, me=self._me, version=version, turn=micros(LONGEST_TURN)) == 1
            )
        self._begun = True
        return taken

    def keep(self, token: str, seconds: float) -> None:
        """Share the token of a login. After too long another process has the turn, and nothing is written."""
        self._end(KEEP_TOKEN, sealed=self._seal.close(token), lasts=int(seconds * 1_000_000))

    def give_up(self, trouble: str, problem: str, rest: timedelta) -> None:
        rest = rest if self._tells else timedelta(0)
        self._end(GIVE_TURN_UP, trouble=trouble, problem=problem[:LONGEST_PROBLEM], rest=micros(rest))

    def _end(self, statement: Any, **given: Any) -> None:
        with self._app.transaction() as tx:
            tx.run(statement, id=self._id, me=self._me, **given)

    def _judged(
        self, row: _TokenRow, refused: str | None
    ) -> TokenFound | LoginFailed | LoginUnderWay | TurnFree:
        if row.sealed is not None and row.left is not None and row.left > 0:
            token = self._seal.open(row.sealed)
            if token is not None and token != refused:
                return TokenFound(token, row.left / 1e6)
        if row.turn_left is None or row.turn_left <= 0:
            return TurnFree(row.version)
        if row.problem is None:
            return LoginUnderWay()
        return LoginFailed(row.trouble or "outage", row.problem, row.turn_left / 1e6)


def _or_name_the_command(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except DatabaseError as error:
        raise naming_the_command(error) from error


SEAL_PURPOSE: Final = "token of Nivoda"


class TokenSeal:
    """Encrypts tokens for the database with STEPFAST_SECRET_KEY, and names the row in which they are."""

    def __init__(self, secret_key: str) -> None:
        self._keys = Keyring.of(secret_key)
        self._keys.require()

    def close(self, text: str) -> str:
        return self._keys.seal(text, SEAL_PURPOSE)

    def open(self, sealed: str) -> str | None:
        """The token; None if it was encrypted with another key, or changed since."""
        try:
            return self._keys.open(sealed, SEAL_PURPOSE)
        except SealedError:
            return None

    def name(self, settings: NivodaSettings) -> str:
        """The id of the row: another account, password or key has another one, and none can be read from it."""
        username, password = settings.credentials
        text = f"{settings.url}\0{username}\0{password}"
        return hmac.new(self._keys.derived("nivoda name"), text.encode(), hashlib.sha256).hexdigest()[:32]
