"""Couriers are shared between hosts: none gets more than two, and hosts in trouble get half of them."""

from __future__ import annotations

from datetime import timedelta

from stepfast.outbox.hosts import (
    COURIERS,
    LATELY,
    LONGEST_WAIT,
    OF_A_HOST,
    OF_TROUBLED,
    OF_UNPROVEN,
    DueDestination,
    Hosts,
    Standing,
    host_of,
)
from stepfast.outbox.messages import WEBHOOK, destination_of


def due(host: str, path: int = 0, *, failed: bool = False) -> DueDestination:
    return DueDestination(destination_of(WEBHOOK, host, f"https://{host}/{path}"), failed)


def hosts_of(chosen: list[tuple[str, Standing]]) -> list[str]:
    return [host_of(destination).partition(":")[2] for destination, _ in chosen]


def test_a_host_gets_two_couriers_however_many_urls_it_has() -> None:
    hosts = Hosts()
    many = [due("slow.example", n) for n in range(40)]

    chosen = hosts.choose([*many, due("good.example")], [], now=0.0)

    assert hosts_of(chosen) == ["slow.example"] * OF_A_HOST + ["good.example"]
    assert hosts_of(hosts.choose(many, chosen, now=0.0)) == []


def test_hosts_in_trouble_get_half_of_the_couriers() -> None:
    hosts = Hosts()
    hosts.answered("webhook:good.example", now=0.0)
    failing = [due(f"h{n}.example", failed=True) for n in range(40)]

    chosen = hosts.choose(failing, [], now=0.0)
    more = hosts.choose([due("new.example"), due("good.example")], chosen, now=0.0)

    assert len(chosen) == OF_TROUBLED
    assert hosts_of(more) == ["new.example", "good.example"]


def test_two_couriers_are_kept_for_hosts_that_answered() -> None:
    hosts = Hosts()
    hosts.answered("webhook:good.example", now=0.0)
    strangers = [due(f"h{n}.example") for n in range(40)]

    chosen = hosts.choose([*strangers, *(due("good.example", n) for n in range(5))], [], now=0.0)

    assert len(chosen) == COURIERS
    assert hosts_of(chosen)[OF_UNPROVEN:] == ["good.example"] * (COURIERS - OF_UNPROVEN)


def test_a_host_that_did_not_answer_is_in_trouble_until_it_answers_or_time_has_passed() -> None:
    hosts = Hosts()
    hosts.timed_out("webhook:a.example", now=0.0)

    assert hosts.standing_of(due("a.example"), now=1.0) is Standing.TROUBLED
    assert hosts.standing_of(due("a.example"), now=LATELY + 1) is Standing.UNPROVEN
    hosts.answered("webhook:a.example", now=2.0)
    assert hosts.standing_of(due("a.example"), now=3.0) is Standing.PROVEN


def test_a_host_waits_longer_each_time_that_it_does_not_answer() -> None:
    hosts = Hosts()

    waits = [hosts.timed_out("webhook:a.example", now=0.0) for _ in range(7)]

    assert waits[:3] == [timedelta(seconds=15), timedelta(seconds=30), timedelta(seconds=60)]
    assert waits[-1] == LONGEST_WAIT


def test_exports_alerts_and_brokers_have_no_host() -> None:
    assert host_of("export:watermark.json:" + 24 * "a") == "export:watermark.json:" + 24 * "a"
    assert host_of("webhook:x") == "webhook:x"
    assert Hosts().standing_of(DueDestination("alert:a", failed=False), now=0.0) is Standing.PROVEN
