"""Creating and counting queues of Service Bus: with the right to do it, without it, and during an outage."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
)

from stepfast.transports import service_bus_administration
from stepfast.transports.contract import Depth, TransportRefusedError, TransportUnavailableError
from stepfast.transports.service_bus_administration import Administration

AZURE = "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=a2V5"


class Service:
    """What stands at the other end of the administration's HTTP."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def from_connection_string(self, connection_string: str) -> Service:
        assert connection_string == AZURE
        return self

    async def create_queue(self, name: str, **settings: Any) -> None:
        self._answer(name, settings)

    async def get_queue_runtime_properties(self, name: str) -> Any:
        self._answer(name, {})
        return SimpleNamespace(active_message_count=7, scheduled_message_count=2, dead_letter_message_count=1)

    async def close(self) -> None:
        pass

    def _answer(self, name: str, settings: dict[str, Any]) -> None:
        self.asked.append((name, settings))
        if self.problem is not None:
            raise self.problem


def administration(monkeypatch: pytest.MonkeyPatch, service: Service) -> Administration:
    monkeypatch.setattr(service_bus_administration, "ServiceBusAdministrationClient", service)
    return Administration(AZURE, "", None)


def said(status: int) -> HttpResponseError:
    response: Any = SimpleNamespace(status_code=status, reason="", headers={}, text=lambda: "", request=None)
    return HttpResponseError(f"status {status}", response=response)


def test_a_queue_is_made_with_what_we_need(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()

    assert asyncio.run(administration(monkeypatch, service).create("work-items"))

    minutes = timedelta(minutes=1)
    assert service.asked == [
        (
            "work-items",
            {
                "lock_duration": 2 * minutes,
                "max_delivery_count": 5,
                "requires_duplicate_detection": True,
                "duplicate_detection_history_time_window": 10 * minutes,
            },
        )
    ]


def test_one_that_is_there_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(administration(monkeypatch, Service(ResourceExistsError("there"))).create("work"))


def test_it_is_counted_by_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(administration(monkeypatch, Service()).count("work")) == Depth(
        ready=7, scheduled=2, dead=1
    )


@pytest.mark.parametrize("problem", [said(401), said(403), ClientAuthenticationError("no")])
def test_whoever_may_not_asks_once(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    service = Service(problem)
    found = administration(monkeypatch, service)

    async def ask() -> tuple[bool, Depth | None]:
        return await found.create("work"), await found.count("work")

    assert asyncio.run(ask()) == (False, None)
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (said(400), TransportRefusedError),
        (said(404), TransportRefusedError),
        (said(503), TransportUnavailableError),
        (ServiceRequestError("no route"), TransportUnavailableError),
    ],
)
def test_other_problems_are_told(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected, match="queue work"):
        asyncio.run(administration(monkeypatch, Service(problem)).count("work"))


@pytest.mark.parametrize(
    ("connection_string", "namespace"),
    [
        ("Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;", ""),
        ("", "127.0.0.1:5672"),
        ("", "localhost"),
    ],
)
def test_an_emulator_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, connection_string: str, namespace: str
) -> None:
    service = Service()
    monkeypatch.setattr(service_bus_administration, "ServiceBusAdministrationClient", service)

    found = Administration(connection_string, namespace, None)

    assert asyncio.run(found.create("work")) is False
    assert service.asked == []
