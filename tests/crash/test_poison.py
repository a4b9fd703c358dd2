"""A job that kills its worker becomes a dead letter; the two hundred jobs beside it are not charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.crash.workers import Fleet


def test_one_poison_among_two_hundred_ends_in_the_dead_letters_alone(fleet: Fleet) -> None:
    innocent = fleet.enqueue("hold", 38, gate="open")
    supervisor = fleet.worker(processes=2, concurrency=20, lease=2)
    fleet.wait_for("started", 38)  # each process has at least 18 on board, and room for two more at most
    (poison,) = fleet.enqueue("abort")
    fleet.wait_for("started", job=poison)
    innocent += [*fleet.enqueue("brief", 100), *fleet.enqueue("plain", 62)]
    fleet.open("open")
    fleet.wait_until_done(60)

    ended = fleet.archived()
    letter = ended.pop(poison)
    assert (letter["state"], letter["crashes"]) == ("dead", 3)
    assert letter["last_error"].endswith("killed its worker 3 times")
    # At first, three times alone, and in between once among other suspects, if these were not done before it.
    assert len(fleet.journal("started", poison)) in {4, 5}
    assert sorted(ended) == sorted(innocent)
    assert {(row["state"], row["crashes"], row["failures"]) for row in ended.values()} == {("done", 0, 0)}
    assert fleet.effects() == {(job_id, 0): 1 for job_id in innocent if not job_id.startswith("plain")}
    assert supervisor.runs()
