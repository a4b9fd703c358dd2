"""What the simulator honours, point by point, asked over HTTP as any client would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from stepfast.clock import instant
from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator import Simulator
from stepfast_diamonds.simulator.faults import DEFAULT, PRESETS, Knobs, parse_knobs
from stepfast_diamonds.simulator.session import RefusedError, Sessions
from tests.diamonds.nivoda import LOGIN, SEARCH, Client
from tests.support.markdown import ROOT

COUNT = "{ diamonds_by_query_count }"
FEW = "none,requests_per_s=5,burst=5,limit_answer=429"


@pytest.fixture(scope="module")
def polite() -> Iterator[Simulator]:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        yield sim


@pytest.fixture
def client(polite: Simulator) -> Iterator[Client]:
    with Client(polite) as it:
        yield it


def bearer(client: Client) -> dict[str, str]:
    return {"Authorization": f"Bearer {client.token}"}


def first_error(body: Any) -> str:
    return str(body["errors"][0]["message"])


# Limits of a page


def test_a_limit_that_is_too_large_may_be_an_error() -> None:
    with Simulator("1k", faults="none,over_limit=error", speed=0) as sim, Client(sim) as client:
        body = client.ask(SEARCH, token=client.token, limit=51)

    assert first_error(body) == "limit cannot be more than 50"
    assert body["data"] is None


def test_negative_places_are_refused(client: Client) -> None:
    assert "cannot be negative" in first_error(client.ask(SEARCH, token=client.token, offset=-1))
    assert client.search(limit=0) == {"items": [], "total_count": 0}


# Counts


def test_a_count_may_be_too_high_or_too_low() -> None:
    with Simulator("1k", faults="none,count_skew=0.05", speed=0) as sim, Client(sim) as client:
        high = client.count()
        sim.turn(count_skew=-0.05)

        assert (high, client.count()) == (1_050, 950)


def test_a_count_may_be_old() -> None:
    with Simulator("1k", faults="none,count_lag_s=60", speed=0) as sim, Client(sim) as client:
        sim.mutate("delete", count=10)
        sim.mutate("insert", count=3)
        at_once = client.count()
        pages = len(client.walk())
        sim.advance("61s")

        assert (at_once, pages, client.count()) == (1_000, 993, 993)


# Short and empty pages


def test_a_truncated_page_is_followed_by_what_it_lacks() -> None:
    with Simulator("1k", faults="none,short_page_prob=0.5", speed=0) as sim, Client(sim) as client:
        by_returned, by_limit = client.walk(), client.walk(by="limit")

    assert len(by_returned) == len(set(by_returned)) == 1_000
    assert len(by_limit) < 1_000


def test_a_page_after_the_filter_lacks_what_does_not_exist() -> None:
    faults = "none,short_page_mode=postfilter,short_page_prob=0.5,empty_page_prob=0.1"
    with Simulator("1k", faults=faults, speed=0) as sim, Client(sim) as client:
        pages = [client.ids(offset=offset) for offset in range(0, 1_400, 50)]
        again = [client.ids(offset=offset) for offset in range(0, 1_400, 50)]

    found = [it for page in pages for it in page]
    assert pages == again, "the same places lack the same rows"
    assert len(found) == len(set(found)) == 1_000
    last = max(n for n, page in enumerate(pages) if page)
    assert [] in pages[:last], "an empty page is not the end"
    assert any(0 < len(page) < 50 for page in pages[:last])


# Ranges


@pytest.mark.parametrize(
    "text", ["{from: 1}", "{from: 1.5, to: 2}", '{from: "1", to: 2}', "{from: null, to: 2}"]
)
def test_bounds_must_be_two_whole_numbers(client: Client, text: str) -> None:
    answer = client.post(f"{{ diamonds_by_query_count(query: {{dollar_per_carat: {text}}}) }}")

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["extensions"]["code"] == "GRAPHQL_VALIDATION_FAILED"


# The life of the catalogue


def test_a_change_is_found_later_than_its_stamp_says() -> None:
    with Simulator("1k", faults="none,index_lag_s=2", speed=0) as sim, Client(sim) as client:
        sim.advance("1m")
        (new,) = sim.mutate("insert")
        window = {"updated": {"from": sim.now.isoformat()}}
        at_once = client.ids(window)
        sim.advance("2s")

        assert (at_once, client.ids(window)) == ([], [new.id])
        assert new.id in sim.oracle(at=new.at)
        assert DEFAULT.index_lag_s == 2


def test_the_driver_changes_stones_as_time_passes() -> None:
    with Simulator("1k", faults="none,churn_per_minute=60", speed=0) as sim, Client(sim) as client:
        begun = sim.now
        sim.advance("10m")
        kinds = {it.kind for it in sim.changes(since=begun)}

        assert kinds >= {"insert", "price", "delete", "hold"}
        assert client.count() == len(sim.oracle())


def test_time_runs_by_itself_unless_it_is_stopped() -> None:
    with Simulator("1k", faults="none", speed=100_000) as sim:
        assert sim.now < sim.now
    with Simulator("1k", faults="none", speed=0) as sim:
        assert sim.now == sim.now


def test_five_thousand_prices_with_one_stamp_are_all_found() -> None:
    with Simulator("6k", faults="none", speed=0) as sim, Client(sim) as client:
        client.count({"dollar_per_carat": {"from": 0, "to": 999}})
        sim.advance("1m")
        changed = sim.mutate("burst", count=5_000)
        stamp = sim.now.isoformat()

        assert client.count({"updated": {"from": stamp, "to": stamp}}) == 5_000
        assert {it.id for it in changed} == set(sim.oracle(query={"updated": {"from": stamp}}))


# Windows


def test_a_window_includes_both_its_ends_or_not() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.advance("1m")
        sim.mutate("price")
        stamp = sim.now.isoformat()
        window = {"updated": {"from": stamp, "to": stamp}}
        inclusive = client.count(window)
        sim.turn(updated_inclusive=False)

        assert (inclusive, client.count(window)) == (1, 0)


def test_a_window_may_be_open_on_either_side(client: Client) -> None:
    middle = sorted(it.updated_at for it in client.sim.oracle().values())[500]
    stamp = (client.sim.now + timedelta(microseconds=middle - instant(client.sim.now))).isoformat()

    early, late = client.count({"updated": {"to": stamp}}), client.count({"updated": {"from": stamp}})

    assert early + late == 1_000 + client.count({"updated": {"from": stamp, "to": stamp}})
    assert client.count({"updated": {}}) == 1_000


# Who asks


def test_both_ways_to_show_a_token_work(client: Client) -> None:
    wrapped = client.ask(f"query($t: String!) {{ as(token: $t) {COUNT} }}", t=client.token)
    header = client.post(COUNT, headers=bearer(client)).json()

    assert wrapped == {"data": {"as": {"diamonds_by_query_count": 1_000}}}
    assert header == {"data": {"diamonds_by_query_count": 1_000}}


def test_a_wrong_password_is_unauthorized(client: Client) -> None:
    body = client.ask(LOGIN, u=client.sim.username, p="guess")

    assert "unauthorized" in first_error(body).lower()
    assert body["data"] is None


def test_a_token_expires_when_its_session_says() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        expires = client.login()["expires"] / 1_000
        lifetime = expires - sim.now.timestamp()
        sim.advance(timedelta(seconds=lifetime - 1))
        before = client.post(COUNT, headers=bearer(client))
        sim.advance("2s")
        after = client.post(COUNT, headers=bearer(client))
        sim.turn(expired_answer="401")
        refused = client.post(COUNT, headers=bearer(client))

    assert lifetime == pytest.approx(6 * 3_600, abs=1)
    assert "data" in before.json()
    assert "errors" not in before.json()
    assert (after.status_code, first_error(after.json())) == (200, "Token expired")
    assert refused.status_code == 401


def test_a_refresh_token_opens_a_new_session(client: Client) -> None:
    text = "query($t: String!) { authenticate { refresh_token(token: $t) { token } } }"
    session = client.login()

    new = client.ask(text, t=session["refresh_token"])["data"]["authenticate"]["refresh_token"]["token"]

    client.token = new
    assert client.count() == 1_000
    assert first_error(client.ask(text, t=session["token"])) == "Invalid token"


def test_tokens_can_be_revoked_in_the_middle() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.revoke_tokens()
        refused = client.post(COUNT, headers=bearer(client)).json()
        client.token = client.login()["token"]

        assert first_error(refused) == "Invalid token"
        assert client.count() == 1_000


def test_a_forged_token_is_refused(client: Client) -> None:
    head, body, signature = client.token.split(".")
    forged = f"{head}.{body[:-4]}AAAA.{signature}"

    assert first_error(client.ask(SEARCH, token=forged)) == "Invalid token"


@pytest.mark.parametrize("password", ["\0", "", "guess"])
def test_nobody_is_let_in_whom_nobody_knows(password: str) -> None:
    sessions = Sessions(7)

    with pytest.raises(RefusedError, match="invalid username or password"):
        sessions.login("stranger@example.com", password, 0, 0.0, Knobs())


def test_logins_have_a_limit_of_their_own() -> None:
    with Simulator("1k", faults="none,logins_per_minute=2", speed=0) as sim, Client(sim) as client:
        client.login()
        third = client.ask(LOGIN, u=sim.username, p=sim.password)
        sim.advance("61s")

        assert "Too many login attempts" in first_error(third)
        assert client.login()["token"]


# How often


def test_too_many_requests_may_be_answered_with_429_and_how_long_to_wait() -> None:
    with Simulator("1k", faults=FEW, speed=0) as sim, Client(sim) as client:
        answers = [client.post(COUNT, headers=bearer(client)) for _ in range(6)]
        sim.advance(timedelta(seconds=int(answers[-1].headers["Retry-After"])))
        again = client.post(COUNT, headers=bearer(client))

    assert [it.status_code for it in answers] == [200] * 4 + [429] * 2
    assert again.status_code == 200


def test_the_limit_of_an_account_holds_for_all_its_addresses() -> None:
    with Simulator("1k", faults=FEW, speed=0) as sim, Client(sim) as client:
        answers = [
            client.post(COUNT, headers=bearer(client) | {"X-Forwarded-For": f"10.0.0.{n}"}).status_code
            for n in range(7)
        ]

    assert answers == [200] * 5 + [429] * 2


# Single stones


def test_a_stone_is_found_by_its_id_and_a_vanished_one_is_an_error() -> None:
    text = "query($id: ID!) { get_diamond_by_id(diamond_id: $id) { id price } }"
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        stone = next(iter(sim.oracle().values()))
        found = client.post(text, headers=bearer(client), id=stone.id).json()
        sim.mutate("delete", ids=[stone.id])
        gone = client.post(text, headers=bearer(client), id=f"DIAMOND/{stone.id}").json()

    assert found["data"]["get_diamond_by_id"] == {"id": f"DIAMOND/{stone.id}", "price": stone.price}
    assert gone["data"] is None
    assert "not found" in first_error(gone)


def test_a_hold_may_be_denied_and_that_is_no_error() -> None:
    text = """mutation($t: String!, $id: ID!) {
        as(token: $t) { create_hold(ProductId: $id, ProductType: Diamond) { id denied until } } }"""
    cancel = "mutation($t: String!, $id: ID!) { as(token: $t) { cancel_hold(hold_id: $id) { denied } } }"
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        stone = next(it for it in sim.oracle().values() if it.availability == "AVAILABLE")
        held, denied = (
            client.ask(text, t=client.token, id=stone.id)["data"]["as"]["create_hold"] for _ in range(2)
        )
        during = sim.oracle()[stone.id].availability
        client.ask(cancel, t=client.token, id=held["id"])
        sim.turn(hold_denied_prob=1)
        unlucky = client.ask(text, t=client.token, id=stone.id)["data"]["as"]["create_hold"]

        assert (held["denied"], during, sim.oracle()[stone.id].availability) == (False, "HOLD", "AVAILABLE")
    assert denied == unlucky == {"id": None, "denied": True, "until": None}


# Time


def test_the_date_header_shows_the_clock_of_the_source_which_is_ahead() -> None:
    with Simulator("1k", speed=1) as sim, Client(sim) as client:
        date = parsedate_to_datetime(client.post(COUNT).headers["Date"])
        ours = client.http.get(sim.base_url + "/oracle/clock").json()["now"] / 1_000_000 - 90

    assert abs(date.timestamp() - 90 - ours) < 3
    assert DEFAULT.clock_skew_s == 90


# The same number


def test_the_same_number_gives_the_same_answers_to_the_same_questions() -> None:
    answers = []
    faults = "none,short_page_prob=0.4,unstable_ties=true"
    for _ in range(2):
        with Simulator("1k", seed=11, faults=faults, speed=0) as sim, Client(sim) as client:
            answers.append([client.ids(offset=n * 50) for n in range(20)])

    assert answers[0] == answers[1]


# The knobs


def test_knobs_are_read_as_people_type_them() -> None:
    assert parse_knobs(None) == parse_knobs("default") == Knobs()
    assert parse_knobs("none,short_page_prob=0.5").short_page_prob == 0.5
    assert parse_knobs("rough").overrun_pages == 3
    assert parse_knobs("unstable_ties=false").unstable_ties is False
    assert parse_knobs(Knobs(burst=3)).burst == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gentle", "neither a setting"),
        ("no_such=1", "there is no knob 'no_such'"),
        ("hang_prob=2", "between 0 and 1"),
        ("hang_prob=often", "is a number"),
        ("burst=-1", "cannot be negative"),
        ("dirty=perhaps", "true or false"),
        ("compare=loosely", "decimal, rounded"),
    ],
)
def test_a_knob_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_knobs(text)


def test_every_knob_and_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "howto" / "simulate-nivoda.md").read_text()

    assert [it.name for it in fields(Knobs) if f"`{it.name}`" not in page] == []
    assert [it for it in PRESETS if f"| `{it}` |" not in page] == []


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ConfigurationError, match="backwards"):
        Simulator("1k", speed=-1)
