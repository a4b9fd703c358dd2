"""One token is shared by all requests, and one login runs at a time: in a process, and between processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import AuthError, OutageError, ThrottledError
from stepfast_diamonds import token as tokens
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.settings import NivodaSettings
from stepfast_diamonds.simulator import Simulator
from stepfast_diamonds.token import (
    LoginFailed,
    LoginSession,
    LoginUnderWay,
    TokenFound,
    TokenRows,
    Tokens,
    TokenSeal,
    TurnFree,
    life_of,
)
from tests.diamonds.asking import KEY, Asking
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast

HOUR = timedelta(hours=1)
ME = NivodaSettings(username="me", password="secret", secret_key=KEY)


class Door:
    """Logins, counted, each with a token of its own."""

    def __init__(self, *, life: timedelta = HOUR, takes: float = 0.05) -> None:
        self.life = life
        self.takes = takes
        self.logins = 0
        self.error: Exception | None = None
        self._lock = threading.Lock()

    async def login(self) -> LoginSession:
        with self._lock:
            self.logins += 1
            number = self.logins
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return LoginSession(f"token {number}", self.life)


def shared_rows(app: Stepfast) -> TokenRows:
    prepare(app)
    seal = TokenSeal(KEY)
    return TokenRows(app, seal, seal.name(ME))


def found(shared: TokenRows) -> str:
    it = shared.look(None)
    assert isinstance(it, TokenFound)
    assert it.seconds == pytest.approx(3_600, abs=60)
    return it.token


def at_once(count: int, work: Callable[[], Any]) -> list[Any]:
    """So many threads, each with an event loop of its own; what each returned or raised."""

    def one(_: int) -> Any:
        try:
            return asyncio.run(work())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_t17_twenty_workers_make_one_login() -> None:
    with Simulator("1k", seed=7, faults="none,latency_ms=20", speed=0) as sim:
        asking = Asking(sim)

        found = at_once(20, lambda: asking.source.now(lab_grown=False))

        assert len([it for it in found if isinstance(it, datetime)]) == 20
        assert sim.statistics()["logins"] == 1

        sim.revoke_tokens()
        found = at_once(20, lambda: asking.source.now(lab_grown=False))

        assert len([it for it in found if isinstance(it, datetime)]) == 20
        assert sim.statistics()["logins"] == 2, "one for all whose token was refused"


def test_t17_twenty_processes_make_one_login(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    """Each with its own connections and nothing else in common but the database and the key."""
    prepare(app)
    with Simulator("1k", seed=7, faults="none,latency_ms=20", speed=0) as sim:
        everybody = [Asking(sim, another_app(), secret_key=KEY).source for _ in range(20)]
        left = iter(everybody)
        lock = threading.Lock()

        async def ask() -> Any:
            with lock:
                mine = next(left)
            return await mine.now(lab_grown=False)

        found = at_once(20, ask)

        assert [it for it in found if not isinstance(it, datetime)] == []
        assert sim.statistics()["logins"] == 1

        sim.revoke_tokens()
        left = iter(everybody)
        found = at_once(20, ask)

        assert [it for it in found if not isinstance(it, datetime)] == []
        assert sim.statistics()["logins"] == 2


ASK = """
import asyncio, os
from stepfast import Stepfast, Range
from stepfast_diamonds.settings import from_environment
from stepfast_diamonds.source import open_source

source = open_source(from_environment(), Stepfast(os.environ["STEPFAST_DATABASE_URL"]))
print(asyncio.run(source.count(Range(), None, lab_grown=False)))
"""


def test_t17_processes_that_have_only_the_database_in_common_make_one_login(
    app: Stepfast, database_url: str
) -> None:
    prepare(app)
    with Simulator("1k", seed=7, faults="none,latency_ms=50", speed=0) as sim:
        surroundings = os.environ | {
            "STEPFAST_DATABASE_URL": database_url,
            "STEPFAST_SECRET_KEY": KEY,
            "NIVODA_URL": sim.url,
            "NIVODA_USERNAME": sim.username,
            "NIVODA_PASSWORD": sim.password,
        }
        started = [
            subprocess.Popen([sys.executable, "-c", ASK], env=surroundings, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]

        assert [it.communicate(timeout=30)[0].strip() for it in started] == ["821"] * 3
        assert sim.statistics()["logins"] == 1


def test_without_a_key_nothing_is_kept_in_the_database(app: Stepfast) -> None:
    prepare(app)
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        Asking(sim, app).count()

    assert rows.count(app, "nivoda_tokens") == 0


def test_what_is_kept_is_sealed(app: Stepfast) -> None:
    shared = shared_rows(app)
    assert shared.take_turn(0)
    shared.keep("eyJ.a-token.xyz", 3_600)

    kept = str(rows.query(app, "SELECT * FROM nivoda_tokens"))
    stranger = TokenRows(app, TokenSeal("another key that nobody can guess: 40+"), shared._id)

    assert not [it for it in ("a-token", "secret", "me@", KEY) if it in kept]
    assert found(shared) == "eyJ.a-token.xyz"
    assert isinstance(stranger.look(None), TurnFree), "who has another key logs in for himself"


def test_another_password_or_key_is_another_row() -> None:
    names = {
        TokenSeal(KEY).name(ME),
        TokenSeal(KEY).name(NivodaSettings(username="me", password="other", secret_key=KEY)),
        TokenSeal(KEY + "!").name(ME),
    }

    assert len(names) == 3


def test_a_turn_is_one_processs_until_it_ends(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    mine, theirs = shared_rows(app), shared_rows(another_app())

    assert mine.take_turn(0)
    assert not theirs.take_turn(0)
    rows.change(app, "UPDATE nivoda_tokens SET turn_until = 1")
    assert theirs.take_turn(0), "who has it has died"

    mine.keep("late", 3_600)
    assert theirs.look(None) == LoginUnderWay(), "his turn is over, and what he brings is his own"
    theirs.keep("good", 3_600)
    mine.keep("later still", 3_600)
    assert found(theirs) == "good"


def test_a_token_that_was_refused_is_not_given_again(app: Stepfast) -> None:
    shared = shared_rows(app)
    assert shared.take_turn(0)
    shared.keep("old", 3_600)

    assert isinstance(shared.look("old"), TurnFree)
    assert isinstance(shared.look("another"), TokenFound)


def test_a_login_that_failed_is_not_tried_by_the_next(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    door = Door(takes=0)
    door.error = AuthError("Nivoda does not let us in")

    found = at_once(1, Tokens(door.login, shared_rows(app)).get)
    found += at_once(3, Tokens(door.login, shared_rows(another_app())).get)

    assert [type(it) for it in found] == [AuthError] * 4
    assert door.logins == 1
    assert 0 < found[-1].delay.total_seconds() <= 30
    assert isinstance(shared_rows(app).look(None), LoginFailed)


def test_a_storm_against_a_closed_door_is_one_login() -> None:
    door = Door()
    door.error = ThrottledError("too many", retry_after="1m")
    everybody = Tokens(door.login)

    found = at_once(20, everybody.get) + at_once(20, everybody.get)

    assert {type(it) for it in found} == {ThrottledError}
    assert door.logins == 1


def test_after_an_outage_the_next_login_is_tried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tokens.REST_AFTER, OutageError, timedelta(milliseconds=1))
    door = Door(takes=0)
    door.error = OutageError("away")
    everybody = Tokens(door.login)
    assert isinstance(at_once(1, everybody.get)[0], OutageError)

    door.error = None
    time.sleep(0.002)

    assert at_once(1, everybody.get) == ["token 2"]


def test_whoever_leads_may_give_up_without_taking_the_others_along() -> None:
    door = Door(takes=0.1)
    everybody = Tokens(door.login)

    async def scene() -> list[str]:
        leader = asyncio.create_task(everybody.get())
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(everybody.get()) for _ in range(3)]
        await asyncio.sleep(0.01)
        others.pop().cancel()  # who waits
        leader.cancel()
        return await asyncio.gather(*others)

    assert asyncio.run(scene()) == ["token 2", "token 2"]


def test_who_is_cancelled_while_logging_in_gives_the_turn_back(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    door = Door(takes=30)
    shared = shared_rows(app)

    async def scene() -> None:
        task = asyncio.create_task(Tokens(door.login, shared).get())
        while door.logins == 0:  # noqa: ASYNC110 - counted by a thread of its own
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())
    door.takes = 0

    assert at_once(1, Tokens(door.login, shared_rows(another_app())).get) == ["token 2"]


def test_a_login_that_was_answered_with_nonsense_gives_the_turn_back(app: Stepfast) -> None:
    door = Door(takes=0)
    door.error = ValueError("half an answer")
    shared = shared_rows(app)

    found = at_once(1, Tokens(door.login, shared).get)

    assert str(found[0]) == "half an answer"
    assert isinstance(shared.look(None), LoginFailed)
    rows.change(app, "UPDATE nivoda_tokens SET turn_until = 1")
    assert isinstance(shared.look(None), TurnFree)


def test_a_token_is_renewed_five_minutes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(life=HOUR, takes=0)
    everybody = Tokens(door.login)
    now = time.monotonic()

    def at(minutes: float) -> str:
        monkeypatch.setattr(time, "monotonic", lambda: now + 60 * minutes)
        return str(asyncio.run(everybody.get()))

    assert (at(0), at(54.9)) == ("token 1", "token 1")
    assert at(55.1) == "token 2"


def test_an_expired_token_is_replaced_within_the_question() -> None:
    for answer in ("errors", "401"):
        with Simulator("1k", seed=7, faults=f"none,expired_answer={answer}", speed=0) as sim:
            asking = Asking(sim)
            asking.count()
            sim.advance("7h")  # its clock, not ours: we believe that the token is good

            assert asking.count() == 821
            assert sim.statistics()["logins"] == 2


def jwt(**claims: Any) -> str:
    import json

    return "e30." + urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".x"


NOW = datetime(2026, 5, 1, tzinfo=UTC)
SOON = NOW.timestamp() + 3_600


@pytest.mark.parametrize(
    ("token", "expires", "life"),
    [
        ("x", SOON, HOUR),
        ("x", SOON * 1_000, HOUR),
        ("x", 3_600, HOUR),
        (jwt(exp=SOON), None, HOUR),
        (jwt(exp=SOON), "tomorrow", HOUR),
        ("no jwt", None, 6 * HOUR),
        (jwt(exp=NOW.timestamp() - 1), NOW.timestamp() - 1, 6 * HOUR),
        ("x", NOW.timestamp() * 1_000_000, 6 * HOUR),
    ],
)
def test_the_life_of_a_token_is_read_however_it_is_told(token: str, expires: Any, life: timedelta) -> None:
    assert life_of(token, expires, NOW) == pytest.approx(life, abs=timedelta(seconds=1))


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_the_simulator_tells_it_in_both_units_and_with_another_clock(unit: str) -> None:
    with Simulator("1k", faults=f"none,expires_unit={unit},clock_skew_s=7200", speed=0) as sim:
        asking = Asking(sim)
        asking.count()
        known = asking.source._client._tokens._known

        assert known is not None
        assert known.until - time.monotonic() == pytest.approx(6 * 3_600 - 300, abs=5)
