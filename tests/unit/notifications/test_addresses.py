"""Which addresses belong to the world."""

from __future__ import annotations

import ipaddress

import pytest

from stepfast.errors import ConfigurationError
from stepfast.notifications.addresses import Allowed, is_public, permitted, shown

NOBODY = Allowed.read([])


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2001:4860:4860::8888", "64:ff9b::808:808"],
)
def test_the_world_may_be_reached(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",  # noqa: S104 - refused
        "0.1.2.3",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.0.1",
        "169.254.169.254",  # where clouds hand out credentials
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "fd00:ec2::254",
        "198.18.0.1",
        "192.0.2.1",
        "203.0.113.5",
        "192.88.99.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)
def test_what_is_behind_our_walls_or_nowhere_may_not(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_of_many_addresses_those_that_may_be_reached_are_left() -> None:
    assert permitted("a.example", ["10.0.0.1", "8.8.8.8", "::1", "fe80::1%eth0", "nonsense"], NOBODY) == [
        "8.8.8.8"
    ]


def test_networks_addresses_and_hosts_may_be_allowed() -> None:
    allowed = Allowed.read(["10.1.0.0/16", "192.168.7.7", "[fd00::1]", "Hooks.Internal", "*.corp.example"])

    assert permitted("a.example", ["10.1.2.3", "10.2.0.1", "192.168.7.7", "192.168.7.8"], allowed) == [
        "10.1.2.3",
        "192.168.7.7",
    ]
    assert permitted("a.example", ["fd00::1", "fd00::2"], allowed) == ["fd00::1"]
    assert permitted("hooks.internal.", ["10.9.9.9"], allowed) == ["10.9.9.9"]
    assert permitted("deep.in.corp.example", ["10.9.9.9"], allowed) == ["10.9.9.9"]
    assert permitted("corp.example", ["10.9.9.9"], allowed) == []
    assert permitted("evilcorp.example", ["10.9.9.9"], allowed) == []
    assert permitted("hooks.internal.evil.example", ["10.9.9.9"], allowed) == []


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "10.0.0.0/33", "http://hooks.internal", "hooks.internal:8080"]
)
def test_what_is_neither_host_nor_network_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write hooks\.internal"):
        Allowed.read([text])


@pytest.mark.parametrize(
    "text",
    [
        "http://me:hunter2@hooks.internal/",
        "me:hunter2@hooks.internal",
        "https://hooks.internal/?token=hunter2",
    ],
)
def test_a_password_in_the_wrong_place_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"hooks\.internal") as refused:
        Allowed.read([text])

    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None  # it quotes the text
    assert "hunter2" not in shown(f"10.0.0.0/8,{text}")


def test_a_name_that_no_host_can_have_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="an entry has 5,000 characters; the name of a host has at most 253"
    ):
        Allowed.read(["1" * 5_000])


def test_a_network_that_is_none_says_why() -> None:
    with pytest.raises(ConfigurationError, match="host bits set"):
        Allowed.read(["10.0.0.1/8"])
