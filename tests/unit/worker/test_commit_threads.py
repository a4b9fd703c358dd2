"""Threads that commit: several work off one line, and take together what may share a transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import Continue, Done, Snooze
from stepfast.jobs.lease import Lease
from stepfast.jobs.outcome import Call, GiveBack
from stepfast.jobs.retry import Retry
from stepfast.runs.page import PageCommit
from stepfast.worker.committer import LARGEST_GROUP, Line, may_share
from stepfast.worker.running import Ended

PATIENCE = 10  # seconds; only a test that fails waits so long
LEASE = Lease("id", "kind", "queue", 0, 0, 0, 0, 0, None, None, "{}", 1)


def even(number: int) -> bool:
    return number % 2 == 0


class Threads:
    """Take groups from a line until it is closed, as the threads of a committer do."""

    def __init__(
        self, count: int, work: Callable[[list[int]], None], may_share: Callable[[int], bool]
    ) -> None:
        self.line: Line[int] = Line(count)
        self.put, self.put_first = self.line.put, self.line.put_first
        self._work, self._may_share = work, may_share
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.line.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self) -> None:
        while group := self.line.take(self._may_share):
            self._work(group)


class Work:
    """Notes the groups; what is worked off first waits until it is let go."""

    def __init__(self, count: int, may_share: Callable[[int], bool] = even) -> None:
        self.groups: list[list[int]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        self.lanes = Threads(count, self._do, may_share)

    def _do(self, group: list[int]) -> None:
        self.began.release()
        assert self.go.wait(PATIENCE)
        self.groups.append(group)

    @contextmanager
    def busy(self, count: int) -> Iterator[None]:
        """So many lanes have something to do until the block has ended; then all is worked off."""
        self.lanes.start()
        for number in range(count):
            self.lanes.put(-1 - 2 * number)  # odd: each alone
            assert self.began.acquire(timeout=PATIENCE)
        yield
        self.go.set()
        self.lanes.stop()


def done(lanes: int, *items: int) -> list[list[int]]:
    """In which groups these are worked off, if they have waited for all lanes."""
    work = Work(lanes)
    with work.busy(lanes):
        for item in items:
            work.lanes.put(item)
    return [group for group in work.groups if group[0] >= 0]


def test_what_waits_together_is_worked_off_together() -> None:
    assert done(1, 0, 2, 4, 6) == [[0, 2, 4, 6]]


def test_a_group_has_its_largest_size() -> None:
    items = [2 * it for it in range(LARGEST_GROUP + 3)]

    assert done(1, *items) == [items[:LARGEST_GROUP], items[LARGEST_GROUP:]]


def test_one_that_does_not_join_is_worked_off_alone_in_its_turn() -> None:
    assert done(1, 0, 2, 3, 5, 4, 6, 7) == [[0, 2], [3], [5], [4, 6], [7]]


def test_a_lane_takes_its_share_of_the_line_and_leaves_the_rest_to_the_others() -> None:
    groups = done(4, *range(0, 32, 2))

    assert sorted(it for group in groups for it in group) == list(range(0, 32, 2))
    assert max(len(group) for group in groups) <= 1 + (16 + 4) // 4  # a stop waits in the line, too


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("last", [[], [0], [1], [0, 2, 4], [0, 1], [0, 2, 1, 3]], ids=str)
def test_a_stop_waits_for_everything_that_was_put_before(lanes: int, last: list[int]) -> None:
    assert sorted(it for group in done(lanes, *last) for it in group) == sorted(last)


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_a_group_leaves_to_be_done_is_done_first_and_before_the_end(lanes: int) -> None:
    groups: list[list[int]] = []
    apart: set[int] = set()

    def work(group: list[int]) -> None:
        if len(group) > 1:
            apart.update(group)
            line.put_first(group)
        else:
            groups.append(group)

    line = Threads(lanes, work, lambda it: it not in apart)
    for item in range(3 * lanes):
        line.put(item)
    line.start()
    line.stop()

    assert sorted(groups) == [[it] for it in range(3 * lanes)]
    assert lanes > 1 or groups == [[0], [1], [2]]


def test_one_that_cannot_say_whether_it_joins_is_worked_off_alone() -> None:
    def picky(item: int) -> bool:
        if item == 4:
            raise ValueError
        return even(item)

    work = Work(1, picky)
    with work.busy(1):
        for item in (0, 2, 4, 6):
            work.lanes.put(item)

    assert work.groups[1:] == [[0, 2], [4], [6]]


# Which steps share a transaction


@dataclass
class Alone:
    """Says that it has what its class does not have, as a mock does."""

    def apply(self, _: Any, /) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return name


def page() -> PageCommit:
    return PageCommit.__new__(PageCommit)


def ended(ending: Any, *effects: Any) -> Ended:
    return Ended(LEASE, ending, effects, Retry())


def test_continuations_with_one_page_or_nothing_to_write_share_a_transaction() -> None:
    assert may_share(ended(Continue(1)))
    assert may_share(ended(Continue(1), page()))


@pytest.mark.parametrize(
    "step",
    [
        ended(Done(), page()),
        ended(Snooze("1s")),
        ended(GiveBack()),
        ended(Continue(1, delay="1s")),
        ended(Continue(1), page(), page()),
        ended(Continue(1), Call(print)),
        ended(Continue(1), Alone()),
    ],
    ids=["done", "snoozed", "given back", "later", "two pages", "a function", "a mock"],
)
def test_every_other_step_has_a_transaction_of_its_own(step: Ended) -> None:
    assert not may_share(step)


@pytest.mark.parametrize("delay", [None, "", False, 0j, []], ids=repr)
def test_a_delay_that_is_no_duration_is_refused_alone(delay: Any) -> None:
    assert not may_share(ended(Continue(1, delay=delay)))
