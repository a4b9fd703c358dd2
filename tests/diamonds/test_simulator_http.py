"""The server itself: keep-alive, several requests at once, strange requests, and the oracle's own endpoints."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator import Simulator
from stepfast_diamonds.simulator.graphql import INPUTS
from stepfast_diamonds.simulator.service import Request
from stepfast_diamonds.simulator.session import PASSWORD, USERNAME
from tests.diamonds.nivoda import SEARCH, Client


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulator]:
    with Simulator("1k", seed=7, faults="none", speed=0) as it:
        yield it


def address(sim: Simulator) -> tuple[str, int]:
    return "127.0.0.1", httpx.URL(sim.url).port or 0


def raw(sim: Simulator, *sent: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    with socket.create_connection(address(sim), timeout=10) as connection:
        for it in sent:
            connection.sendall(it)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def request(body: bytes, *headers: str) -> bytes:
    head = ["POST /api/diamonds HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


SERVICE = Simulator("1k", faults="none", speed=0)._service
TOKEN = SERVICE.world.sessions.login(USERNAME, PASSWORD, SERVICE.world.clock.now(), 0, SERVICE.world.knobs)[
    "token"
]
BODY = json.dumps({"query": "{ __typename }"}).encode()


def test_one_connection_serves_many_requests(sim: Simulator) -> None:
    answer = raw(sim, request(BODY) + request(BODY), request(BODY, "Connection: close"))

    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b'{"data":{"__typename":"Query"}}') == 3


def test_a_request_may_arrive_in_pieces(sim: Simulator) -> None:
    whole = request(BODY, "Connection: close")

    answer = raw(sim, *[whole[n : n + 7] for n in range(0, len(whole), 7)])

    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_delayed_answer_keeps_the_order_of_requests() -> None:
    with Simulator("1k", faults="none,latency_ms=30", speed=0) as sim:
        typed = [json.dumps({"query": f"{{ a{n}: __typename }}"}).encode() for n in range(3)]
        answer = raw(sim, request(typed[0]) + request(typed[1]) + request(typed[2], "Connection: close"))

    assert answer.index(b'"a0"') < answer.index(b'"a1"') < answer.index(b'"a2"')


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /api/diamonds HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /api/diamonds HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST /api/diamonds HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /api/diamonds HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /api/diamonds HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
    ],
)
def test_what_is_not_http_is_refused_and_the_connection_closed(
    sim: Simulator, sent: bytes, status: int
) -> None:
    assert raw(sim, sent).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_client_that_waits_for_permission_gets_it(sim: Simulator) -> None:
    head, _, body = request(BODY, "Connection: close", "Expect: 100-continue").partition(b"\r\n\r\n")
    with socket.create_connection(address(sim), timeout=10) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(body)
        assert connection.recv(1_000).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "non-empty `query`"),
        (b'{"query": 3}', "non-empty `query`"),
        (b'{"query": "{"}', "Syntax Error"),
        (b'{"query": "query($a: Int!) { __typename }"}', "was not provided"),
    ],
)
def test_a_body_that_is_no_operation_is_a_bad_request(sim: Simulator, body: bytes, words: str) -> None:
    answer = httpx.post(sim.url, content=body)

    assert answer.status_code == 400
    assert words in answer.json()["errors"][0]["message"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**33), 2**33) | st.floats(-1e9, 1e9) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["from", "to", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*INPUTS["DiamondQuery"], "nonsense"]), JSON_VALUES, max_size=4),
    st.dictionaries(st.sampled_from(["offset", "limit", "order", "token"]), JSON_VALUES, max_size=2),
)
def test_no_variables_make_the_simulator_fail(query: dict[str, Any], given_: dict[str, Any]) -> None:
    variables = {"token": TOKEN, "query": query} | given_
    body = json.dumps({"query": SEARCH, "variables": variables}).encode()

    reply = SERVICE.handle(Request("POST", "/api/diamonds", {}, body, "127.0.0.1"))

    assert reply.status in {200, 400}, reply.body


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([*SEARCH.split(), "{", "}", "(", ")", "[", "]", "...", "$q", '"', ":", "3", "@x"]),
        max_size=30,
    )
)
def test_no_document_makes_the_simulator_fail(words: list[str]) -> None:
    body = json.dumps({"query": " ".join(words)}).encode()

    reply = SERVICE.handle(Request("POST", "/api/diamonds", {}, body, "127.0.0.1"))

    assert reply.status in {200, 400}, reply.body


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"updated": {"to": "9999-12-31T23:59:59Z"}}, 50),
        ({"updated": {"from": "9999-12-31T23:59:59Z"}}, 0),
        ({"filter_ids": [None, "x"]}, 0),
        ({"sizes": [None]}, 50),
        ({"shapes": []}, 50),
        ({"shapes": None}, 50),
    ],
)
def test_odd_but_valid_filters_are_answered(sim: Simulator, query: dict[str, Any], found: int) -> None:
    with Client(sim) as client:
        assert len(client.ids(query)) == found


def test_a_document_that_never_ends_is_refused(sim: Simulator) -> None:
    answer = httpx.post(sim.url, json={"query": "{f(a:" + "[" * 100_000})

    assert answer.status_code == 400


def test_other_methods_and_places_are_refused(sim: Simulator) -> None:
    assert httpx.get(sim.url).status_code == 405
    assert httpx.post(sim.base_url + "/elsewhere").status_code == 404
    assert httpx.get(sim.base_url + "/oracle/nothing").status_code == 404


def test_a_port_that_is_taken_is_told(sim: Simulator) -> None:
    with pytest.raises(ConfigurationError, match="choose another with --port"):
        Simulator("1k", port=address(sim)[1]).start()


def test_a_simulator_that_was_stopped_answers_no_more() -> None:
    with Simulator("1k", faults="none") as it, httpx.Client() as keeping:
        url = it.url
        keeping.post(url, content=BODY)
    it.stop()  # twice does no harm

    with pytest.raises(httpx.ConnectError):
        httpx.post(url, content=BODY)


# The oracle over HTTP


def test_the_oracle_tells_over_http_what_it_tells_inside() -> None:
    with (
        Simulator("1k", faults="none", speed=0) as sim,
        httpx.Client(base_url=sim.base_url + "/oracle") as oracle,
    ):
        begun = oracle.get("/clock").json()["now"]
        oracle.post("/advance", json={"by": "1m"})
        made = oracle.post("/mutate", json={"kind": "price", "count": 3}).json()
        deleted = oracle.post("/mutate", json={"kind": "delete", "ids": [made[0]["id"]]}).json()
        query = json.dumps({"availability": ["AVAILABLE"]})
        lines = oracle.get("/snapshot").text.splitlines()
        then = oracle.get("/snapshot", params={"at": begun}).text.splitlines()
        changes = [json.loads(it) for it in oracle.get("/changes", params={"since": begun}).text.splitlines()]

        assert {json.loads(it)["id"] for it in lines} == set(sim.oracle())
        assert (len(lines), len(then)) == (999, 1_000)
        assert [it["id"] for it in changes] == [it["id"] for it in [*made, *deleted]]
        assert changes[-1]["truth"] is None
        assert changes[0]["truth"]["price"] == made[0]["truth"]["price"]
        assert oracle.get("/count", params={"query": query}).json() == {
            "count": len(sim.oracle(query={"availability": ["AVAILABLE"]}))
        }


def test_a_long_snapshot_is_told_in_parts_while_life_goes_on() -> None:
    with Simulator("20k", faults="none", speed=0) as sim, Client(sim) as client:
        truth = sim.oracle()
        with client.http.stream("GET", sim.base_url + "/oracle/snapshot") as answer:
            lines = answer.iter_lines()
            found = [json.loads(next(lines))["id"]]
            sim.mutate("delete", count=500)
            found += [json.loads(it)["id"] for it in lines]

        assert client.count() == 19_500
    assert len(found) == len(set(found)) == 20_000
    assert set(found) == set(truth)


def test_knobs_are_turned_and_tokens_revoked_over_http(sim: Simulator) -> None:
    with Client(sim) as client:
        turned = client.http.post(sim.base_url + "/oracle/knobs", json={"count_skew": 1}).json()
        doubled = client.count()
        client.http.post(sim.base_url + "/oracle/knobs", json={"count_skew": 0})
        client.http.post(sim.base_url + "/oracle/revoke")
        refused = client.post(
            "{ diamonds_by_query_count }", {"Authorization": f"Bearer {client.token}"}
        ).json()

    assert (turned["count_skew"], doubled) == (1, 2_000)
    assert client.http.is_closed
    assert httpx.get(sim.base_url + "/oracle/knobs").json()["count_skew"] == 0
    assert refused["errors"][0]["message"] == "Invalid token"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/mutate", {"kind": "melt"}, "there is no kind"),
        ("/mutate", {}, "kind"),
        ("/mutate", {"kind": "price", "often": 3}, "often"),
        ("/advance", {"by": "soon"}, "not a duration"),
        ("/knobs", {"x": 1}, "there is no knob"),
    ],
)
def test_the_oracle_says_what_it_does_not_understand(
    sim: Simulator, path: str, body: dict[str, object], words: str
) -> None:
    answer = httpx.post(f"{sim.base_url}/oracle{path}", json=body)

    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_query_of_the_oracle_is_checked_like_any_other(sim: Simulator) -> None:
    answer = httpx.get(sim.base_url + "/oracle/count", params={"query": '{"colour": ["D"]}'})

    assert answer.status_code == 400
    assert 'Field "colour" is not defined' in answer.json()["error"]


def test_the_oracle_is_neither_limited_nor_spoilt() -> None:
    with Simulator("1k", faults="none,requests_per_s=1,burst=1,gateway_prob=1", speed=0) as sim:
        answers = {httpx.get(sim.base_url + "/oracle/statistics").status_code for _ in range(5)}

    assert answers == {200}
