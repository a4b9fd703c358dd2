"""The pages /metrics and /healthz of a worker."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.telemetry.metrics import Metrics
from stepfast.worker.metrics import MetricsServer
from tests.support.events import hearing, named


class Health:
    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def problems(self) -> list[str]:
        return self._problems


@contextmanager
def serving(problems: list[str], host: str = "127.0.0.1") -> Iterator[str]:
    server = MetricsServer(host, 0, Metrics())
    server.start(Health(problems))
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.port}"
    finally:
        server.stop()


def get(url: str, **headers: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:  # noqa: S310 - ours
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_are_served_as_prometheus_asks_for_them() -> None:
    with serving([]) as url:
        plain = get(f"{url}/metrics")
        open_metrics = get(f"{url}/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")

    assert plain[0] == open_metrics[0] == 200
    assert plain[1].startswith("text/plain")
    assert "stepfast_rescued_jobs_total 0.0" in plain[2]
    assert open_metrics[1].startswith("application/openmetrics-text")
    assert open_metrics[2].endswith("# EOF\n")


def test_a_look_at_the_head_is_answered_like_the_page_without_its_body() -> None:
    with serving(["the pool is full"]) as url:
        answers = {}
        for path in ("/metrics", "/healthz", "/jobs"):
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
            connection.request("HEAD", path)
            answer = connection.getresponse()
            answers[path] = (answer.status, answer.headers["Content-Type"], answer.read())
            connection.close()
        pages = {path: get(f"{url}{path}")[:2] for path in answers}

    assert {path: answer[:2] for path, answer in answers.items()} == pages
    assert pages["/healthz"][0] == 503
    assert {answer[2] for answer in answers.values()} == {b""}


def test_a_healthy_worker_answers_200_and_another_one_503_with_the_reason() -> None:
    problems: list[str] = []
    with serving(problems) as url:
        healthy = get(f"{url}/healthz")
        problems.append("the heartbeat has not reached the database for 12 s")
        ill = get(f"{url}/healthz")

    assert (healthy[0], json.loads(healthy[2])) == (200, {"healthy": True, "problems": []})
    assert (ill[0], json.loads(ill[2])) == (503, {"healthy": False, "problems": problems})


def test_whatever_else_is_asked_for_is_not_found() -> None:
    with serving([]) as url:
        assert get(f"{url}/jobs") == (404, "text/plain", "ask for /metrics or /healthz\n")


def test_an_address_of_the_newer_kind_is_served_too() -> None:
    if not socket.has_ipv6:
        return
    with serving([], host="::1") as url:
        assert get(f"{url}/healthz")[0] == 200


def test_a_port_that_is_taken_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: .*; choose another --metrics-port"):
            MetricsServer("127.0.0.1", port, Metrics())


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_does_not_exist_is_refused_in_words(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"metrics port {port}: use 1 to 65535"):
        MetricsServer("127.0.0.1", port, Metrics())


def test_a_client_that_says_nothing_holds_nobody_up() -> None:
    with serving([]) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))):
            assert get(f"{url}/healthz")[0] == 200


def test_a_client_that_leaves_early_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    with serving([]) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(f"{url}/healthz")[0] == 200

    assert capsys.readouterr().err == ""


def test_a_page_that_cannot_be_made_is_told_of() -> None:
    class Stumbling(Health):
        def problems(self) -> list[str]:
            raise RuntimeError("oops")

    server = MetricsServer("127.0.0.1", 0, Metrics())
    server.start(Stumbling([]))
    with hearing() as told, pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
        get(f"http://127.0.0.1:{server.port}/healthz")
    server.stop()

    (failed,) = named(told, "worker.failed")
    assert failed["note"] == "metrics"
