"""A job that kills its worker is convicted; the two hundred on board with it are not."""

from __future__ import annotations

from tests.crash.workers import Fleet


def test_one_poison_among_two_hundred_ends_in_the_dead_letters_alone(fleet: Fleet) -> None:
    innocent = fleet.enqueue("brief", 100)
    (poison,) = fleet.enqueue("abort")
    innocent += fleet.enqueue("plain", 100)
    supervisor = fleet.worker(processes=2, lease=2)

    fleet.wait_until_done(60)

    ended = fleet.archived()
    letter = ended.pop(poison)
    assert (letter["state"], letter["crashes"]) == ("dead", 3)
    assert letter["last_error"].endswith("killed its worker 3 times")
    assert {(row["state"], row["crashes"], row["failures"]) for row in ended.values()} == {("done", 0, 0)}
    assert sorted(ended) == sorted(innocent)
    assert fleet.effects() == dict.fromkeys([(f"brief-{n}", 0) for n in range(1, 101)], 1)
    assert len(fleet.journal("started", poison)) == 3 + _uncharged(fleet, poison)
    assert supervisor.runs()


def _uncharged(fleet: Fleet, poison: str) -> int:
    """Whether it was alone when it killed for the first time is chance; later it is."""
    return len(fleet.journal("started", poison)) - 3
