"""How many processes are started for suspects, and when."""

from __future__ import annotations

import pytest

from stepfast.jobs.rescue import process_age
from stepfast.worker.children import BURST, additional_processes, patience


def test_one_process_is_enough_while_it_gets_through_them() -> None:
    assert additional_processes(waiting=20, waited=0, running=0, most=10) == 1
    assert additional_processes(waiting=9, waited=20, running=1, most=10) == 0


def test_slow_suspects_get_a_process_each_but_no_more_than_allowed() -> None:
    assert additional_processes(waiting=3, waited=4, running=1, most=10) == 3
    assert additional_processes(waiting=50, waited=50, running=1, most=32) == BURST
    assert additional_processes(waiting=50, waited=50, running=9, most=10) == 1
    assert additional_processes(waiting=0, waited=50, running=1, most=10) == 0


@pytest.mark.parametrize(("own_start", "waits"), [(0.0, 0.8), (0.3, 0.8), (1.5, 3.0), (3_600.0, 5.0)])
def test_a_process_that_is_only_starting_is_given_as_long_as_we_took_ourselves(
    own_start: float, waits: float
) -> None:
    assert patience(own_start) == waits


def test_a_process_knows_its_age() -> None:
    before = process_age()

    assert 0 < before <= process_age() < 24 * 3600
