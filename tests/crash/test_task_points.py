"""kill -9 between receive, commit, webhook and acknowledge, in each mode: nothing is lost, no effect is doubled."""

from __future__ import annotations

import random
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.cases.tasks import BAD, GOOD, NONSENSE, Place, Trail, do_one, live, poll
from tests.crash.daily_sample import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.http_receiver import HttpReceiver

MOST = 4  # points of a mode that are tried every day
ALWAYS = {"after receive", "after complete", "inside the handler"}
EXPECTED = {GOOD: "completed", BAD: "failed", NONSENSE: "failed"}


def chosen(name: str, points: list[str], *, chaos: bool) -> list[str]:
    if chaos:
        return points
    return sorted({*random.Random(f"{SEED} {name}").sample(points, MOST), *(ALWAYS & set(points))})


def deadly(point: str, place: Place, *, whole_group: bool = False) -> Trail:
    return Trail(place.folder / "points", point, whole_group=whole_group)


def check(place: Place, receiver: HttpReceiver, where: str, tasks: tuple[str, ...]) -> None:
    """Each end was reported under one id, each effect is there once, and no work remains."""
    ends: dict[str, set[tuple[str, str]]] = {}
    for it in receiver.received:
        ends.setdefault(it.json["task_id"], set()).add((it.id, it.json["status"]))
    assert {task: [status for _, status in told] for task, told in ends.items()} == {
        task: [EXPECTED[task]] for task in tasks
    }, where
    assert place.query("work", "SELECT id FROM effects") == [("good",)] * (GOOD in tasks), where
    assert place.over, f"{where}: {place.left()}"
    dead = place.query("work", "SELECT kind FROM stepfast_archive WHERE state = 'dead' ORDER BY kind")
    expected = [("refused-task",)] * (NONSENSE in tasks) + [("task.bad",)] * (BAD in tasks)
    assert dead == expected, where


@pytest.mark.parametrize("acknowledge", ["stored", "ended"])
def test_a_polling_worker_that_is_killed_anywhere_loses_nothing_and_doubles_nothing(
    tmp_path: Path, receiver: HttpReceiver, acknowledge: Any, *, chaos: bool
) -> None:
    def story(name: str, trail: Callable[[Place], Trail]) -> Place:
        receiver.received.clear()
        place = Place(tmp_path / name, receiver.url())
        place.send(GOOD, BAD, NONSENSE)
        first = trail(place)
        code = live(partial(poll, place, first, acknowledge))
        assert code == (0 if first.deadly is None else -signal.SIGKILL), f"{name}: {first.deadly}: {code}"
        return place

    whole = story("whole", lambda place: Trail(place.folder / "points"))
    check(whole, receiver, "nobody was killed", tuple(EXPECTED))
    points = Trail(whole.folder / "points").points()
    assert set(points) > ALWAYS

    for number, point in enumerate(chosen(acknowledge, points, chaos=chaos)):
        place = story(str(number), partial(deadly, point))
        place.let_time_pass()
        assert live(partial(poll, place, Trail(place.folder / "after"), acknowledge)) == 0
        check(place, receiver, f"{acknowledge}: killed {point}", tuple(EXPECTED))
        put_aside = place.query("broker", "SELECT message_id FROM stepfast_message WHERE state = 'dead'")
        assert {it[0] for it in put_aside} == ({BAD, NONSENSE} if acknowledge == "ended" else {NONSENSE}), (
            point
        )


@pytest.mark.parametrize(("task", "code"), [(GOOD, 0), (BAD, 1)])
def test_a_single_task_that_is_killed_anywhere_is_finished_by_the_next_try(
    tmp_path: Path, receiver: HttpReceiver, task: str, code: int, *, chaos: bool
) -> None:
    def story(name: str, trail: Callable[[Place], Trail]) -> Place:
        receiver.received.clear()
        place = Place(tmp_path / name, receiver.url())
        first = trail(place)
        ended = live(partial(do_one, place, first, task))
        assert ended == (code if first.deadly is None else -signal.SIGKILL), (
            f"{name}: {first.deadly}: {ended}"
        )
        return place

    whole = story("whole", lambda place: Trail(place.folder / "points"))
    whole.send()
    check(whole, receiver, "nobody was killed", (task,))
    points = Trail(whole.folder / "points").points()

    for number, point in enumerate(chosen(f"single {task}", points, chaos=chaos)):
        place = story(str(number), partial(deadly, point, whole_group=True))
        place.let_time_pass()
        assert live(partial(do_one, place, Trail(place.folder / "after"), task)) == code, point
        check(place, receiver, f"single: killed {point}", (task,))


def test_a_child_that_is_killed_is_followed_by_another(tmp_path: Path, receiver: HttpReceiver) -> None:
    """Only the process that does the work dies: its parent lets it go on."""
    place = Place(tmp_path / "work", receiver.url())
    trail = Trail(place.folder / "points", "inside the handler")

    # Each child begins with what its parent has seen, so each of them dies: the third time is once too often.
    assert live(partial(do_one, place, trail, GOOD)) == 1

    assert [(it["status"], it["error"]["type"]) for it in receiver.bodies] == [("failed", "WorkerCrashed")]
    assert place.query("work", "SELECT id FROM effects") == []
