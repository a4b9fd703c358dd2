"""The guardian: the page of memory that it shares with a worker, what it does about a silent one, and processes for suspects."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from stepfast import process_identity
from stepfast.errors import ConfigurationError
from stepfast.jobs.lease import Lease
from stepfast.process_identity import process_age
from stepfast.worker import guardian_link
from stepfast.worker.guardian import (
    REGION,
    VARIABLE,
    Board,
    DeputyProcess,
    Guardian,
    Restart,
    Ward,
    additional_processes,
    boot_time,
    new_board,
)
from stepfast.worker.leases import Waiting
from stepfast.worker.process import patience


def test_one_process_is_enough_while_it_gets_through_them() -> None:
    assert additional_processes(waiting=20, waited=0, running=0, most=10) == 1
    assert additional_processes(waiting=9, waited=20, running=1, most=10) == 0


def test_slow_suspects_get_a_process_each_but_no_more_than_allowed() -> None:
    assert additional_processes(waiting=3, waited=4, running=1, most=10) == 2
    assert additional_processes(waiting=50, waited=50, running=1, most=32) == 2
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


# The page of memory.


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board(new_board())
    yield board
    board.close()


def waiting(*ids: str) -> deque[Waiting]:
    return deque(
        Waiting(Lease(it, "work", "default", 0, 0, 0, 0, 0, None, None, "{}", 1), 0, 0.0, 0.0) for it in ids
    )


def start_all(board: Board, queue: deque[Waiting], count: int) -> None:
    for _ in range(count):
        following = queue.popleft()
        board.start(following.lease.job_id, queue)


def seen(board: Board) -> list[str] | None:
    """What a guardian reads, from its own mapping of the page."""
    return Board(os.dup(board.descriptor)).started()


def test_a_board_tells_which_steps_have_started_in_their_order(board: Board) -> None:
    queue = waiting(*"abcdef")

    start_all(board, queue, 4)

    assert seen(board) == ["a", "b", "c", "d"]


def test_jobs_that_were_given_back_before_they_started_are_not_told(board: Board) -> None:
    queue = waiting("a", "b", "c", "d")
    start_all(board, queue, 2)
    queue.clear()  # given back
    queue.extend(waiting("é", "f"))

    start_all(board, queue, 1)

    assert seen(board) == ["a", "b", "é"]


def test_a_board_that_is_full_goes_on_with_what_is_not_committed(board: Board) -> None:
    many = REGION // 37 + 5_000
    board.uncommitted = lambda: ["long-running"]
    queue = waiting(*(f"{number:036}" for number in range(many)))

    start_all(board, queue, many)

    told = seen(board)
    assert told is not None
    assert told[0] == "long-running"
    assert told[-1] == f"{many - 1:036}"
    assert len(told) < many


def test_a_board_that_cannot_hold_what_is_not_committed_says_that_it_does_not_know(board: Board) -> None:
    many = REGION // 37 + 5_000
    board.uncommitted = lambda: ["x" * 100] * (REGION // 100)
    queue = waiting(*(f"{number:036}" for number in range(many)))

    start_all(board, queue, many)

    assert seen(board) is None


def test_deadlines_are_told_until_their_steps_have_ended(board: Board) -> None:
    first, second = board.expect("a", 5.0), board.expect("b", 7.0)
    assert first is not None
    board.release(first)
    third = board.expect("c", 9.0)

    told = sorted(Board(os.dup(board.descriptor)).deadlines())

    assert third == first != second
    assert told == [(7.0, "b"), (9.0, "c")]


# What it does about a worker.


class Said:
    """A deputy that only remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def do(self, _: dict[str, Any], what: dict[str, Any]) -> None:
        self.said.append(what["do"])

    def look(self) -> None: ...


@pytest.fixture
def watch() -> Iterator[tuple[Guardian, Ward, socket.socket, Said]]:
    """A guardian of a worker that is this very process, and the worker's end of the link."""
    guardian, deputy = Guardian(), Said()
    guardian._deputy = deputy  # type: ignore[assignment]
    theirs, ours = socket.socketpair()
    ward = Ward(os.getpid(), theirs, Board(new_board()), "worker", 1)
    guardian._add(ward)
    ward.hello, ward.incarnation, ward.lease = {"grace": 30.0}, 7, 10.0
    ward.board.renewed(boot_time())
    yield guardian, ward, ours, deputy
    ours.close()
    theirs.close()
    ward.board.close()


Watch = tuple[Guardian, Ward, socket.socket, Said]


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that the guardian sends."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    return sent


def look(guardian: Guardian, ward: Ward, *, later: float = 0.0) -> None:
    """A look at the worker, as if this time had passed."""
    ward.asked_at = ward.asked_at and ward.asked_at - later
    guardian._hear(ward)
    guardian._look()


def test_a_worker_that_renews_is_left_alone(watch: Watch) -> None:
    guardian, ward, _, deputy = watch

    look(guardian, ward)

    assert (ward.asked_at, deputy.said) == (0.0, [])


def test_a_worker_that_answers_is_not_vouched_for_whatever_keeps_it_from_renewing(watch: Watch) -> None:
    """It may be cut off from the database: then others take its jobs."""
    guardian, ward, link, deputy = watch
    ward.board.renewed(boot_time() - 7)
    look(guardian, ward)
    asked = link.recv(100)

    link.send(b'{"answer": 1}\n')
    look(guardian, ward, later=1.0)

    assert asked == b'{"ask": 1}\n'
    assert (ward.asked_at, deputy.said) == (0.0, [])


def test_a_worker_that_does_not_answer_is_vouched_for_again_and_again(watch: Watch) -> None:
    guardian, ward, _, deputy = watch
    ward.board.renewed(boot_time() - 7)
    look(guardian, ward)

    look(guardian, ward, later=1.0)
    once = list(deputy.said)
    ward.vouched_at -= 7
    look(guardian, ward, later=1.0)

    assert (once, deputy.said) == (["renew"], ["renew", "renew"])


def test_a_worker_past_a_deadline_that_answers_is_not_killed(watch: Watch, kills: list[int]) -> None:
    guardian, ward, link, _ = watch
    ward.board.expect("late", time.monotonic() - 60)
    look(guardian, ward)

    link.send(b'{"answer": 1}\n')
    look(guardian, ward, later=3.0)

    assert kills == []


LISTENING = """
import os, signal
from stepfast.worker.guardian import Guardian

listen = signal.signal

def listened(number, handler):
    listen(number, handler)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), number)

signal.signal = listened
guardian = Guardian()
guardian._heard = lambda number: print(signal.Signals(number).name)
guardian._listen_to_signals()
guardian._wait(5.0)
"""


def test_a_signal_that_comes_while_the_guardian_begins_to_listen_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENING], check=True, capture_output=True, text=True)

    assert done.stdout == "SIGTERM\n"


def test_a_renewal_is_an_answer(watch: Watch) -> None:
    """The question, or its answer, may have been lost."""
    guardian, ward, _, deputy = watch
    ward.board.renewed(boot_time() - 7)
    look(guardian, ward)

    ward.board.renewed(boot_time() + 0.001)
    look(guardian, ward)

    assert (ward.asked_at, deputy.said) == (0.0, [])


def test_a_worker_that_is_stopped_is_asked_nothing_so_that_it_is_not_late_when_it_goes_on(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    guardian, ward, link, _ = watch
    ward.board.expect("late", time.monotonic() - 60)
    monkeypatch.setattr(ward, "state", lambda: "T")

    look(guardian, ward)

    assert ward.asked_at == 0.0
    link.setblocking(False)  # noqa: FBT003 - its only form
    with pytest.raises(BlockingIOError):
        link.recv(1)


def test_a_worker_that_a_stop_had_to_kill_charges_nobody(watch: Watch, kills: list[int]) -> None:
    guardian, ward, _, _ = watch
    start_all(ward.board, waiting("innocent"), 1)
    ward.board.renewed(boot_time() - 60)
    guardian._stopping = 2
    look(guardian, ward)

    look(guardian, ward, later=3.0)

    assert kills == [signal.SIGKILL]
    assert (ward.death()["started"], ward.death()["guilty"]) == ([], None)


def test_a_worker_that_is_killed_for_a_step_names_it_also_if_the_id_is_long(
    watch: Watch, kills: list[int]
) -> None:
    guardian, ward, _, _ = watch
    guilty = "é" * 128
    start_all(ward.board, waiting(guilty), 1)
    ward.board.expect(guilty, time.monotonic() - 60)
    ward.board.renewed(boot_time() - 60)
    look(guardian, ward)

    look(guardian, ward, later=3.0)

    assert kills == [signal.SIGKILL]
    assert (ward.death()["started"], ward.death()["guilty"]) == ([guilty], guilty)


def test_a_job_whose_next_step_waits_is_not_told_as_started(board: Board) -> None:
    queue = waiting("a", "b", "a")

    start_all(board, queue, 2)

    assert seen(board) == ["b"]


@pytest.mark.parametrize(
    ("code", "goodbye", "again"),
    [(0, 1, 0), (0, 0, 1), (1, 0, 1), (-9, 0, 1), (78, 0, 0)],
)
def test_which_ends_of_a_worker_are_followed_by_another(
    watch: Watch, code: int, goodbye: int, again: int
) -> None:
    guardian, ward, _, _ = watch
    guardian._hello = {"restart": True}
    guardian._restarts[1] = Restart(1)
    ward.hello, ward.said_goodbye = None, bool(goodbye)  # it may have died before it could say hello

    guardian._plan_restart(ward, code)

    assert (guardian._restarts[1].at is not None) == bool(again)


def test_a_process_for_suspects_that_dies_at_its_start_is_started_ever_more_rarely(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    guardian, _, _, _ = watch
    started: list[str] = []
    monkeypatch.setattr(guardian, "_start", lambda _, role, __: started.append(role))
    guardian._hello = {"suspects": {"together": []}, "patience": 0.0, "most_alone": 2}
    guardian._start_for_suspects(3, 0)
    theirs, ours = socket.socketpair()
    ward = Ward(999_999_999, theirs, Board(new_board()), "together", 0)
    guardian._add(ward)

    guardian._ended(ward, 1)
    guardian._start_for_suspects(3, 0)

    assert started == ["together"]
    ours.close()


def test_a_guardian_does_not_wait_for_a_deputy_that_reads_nothing() -> None:
    """A report may be longer than a pipe takes, and a deputy needs a while to start."""
    lost: list[dict[str, Any]] = []
    deputy = DeputyProcess(lambda _: None, lambda _: None, lost.append)
    deputy._process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; sys.stdin.buffer.read(500_000); print('{\"failed\": 1}', flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert deputy._process.stdin is not None
    os.set_blocking(deputy._process.stdin.fileno(), False)
    hello = {"url": ""}
    report = {"do": "bury", "started": ["x" * 100] * 6_000}

    deputy.do(hello, report)
    at_first = deputy.is_sending
    deadline = time.monotonic() + 20
    while deputy.is_sending and time.monotonic() < deadline:
        deputy.look()
    deputy.hear()

    assert (at_first, deputy.is_sending, lost) == (True, False, [report])
    process = deputy._process
    deputy.end()
    process.returncode = None
    process.wait()


@pytest.mark.parametrize(
    ("given", "means"),
    [("", ""), ("on", ""), ("1", ""), ("OFF", "off"), ("off ", "off"), ("0", "off"), ("3,4", "3,4")],
)
def test_what_the_variable_says(given: str, means: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, given)

    assert guardian_link._given() == means


@pytest.mark.parametrize("given", ["perhaps", "3,", "3,4,5", "-1,2"])
def test_a_variable_that_says_nothing_is_refused_in_words(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, given)

    with pytest.raises(ConfigurationError, match="write off for a worker without a guardian"):
        guardian_link.can_hire()


def test_descriptors_that_are_none_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "998,999")

    with pytest.raises(ConfigurationError, match="names no descriptors of a guardian"):
        guardian_link.link_of_this_process()


def test_a_process_that_the_system_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    here = process_identity.this_process()

    monkeypatch.setattr(process_identity, "_fields", lambda _: [])

    assert not process_identity.process_is_gone(here)


def test_nonsense_from_a_worker_does_no_harm(watch: Watch) -> None:
    guardian, ward, link, _ = watch

    link.send(b'nonsense\n{"answer": 1}\nhalf a line')
    look(guardian, ward)

    assert ward.answered_at > 0


def test_a_worker_that_keeps_dying_is_started_ever_more_rarely() -> None:
    restart = Restart(1)

    waits = [restart.plan(-9, lived=1.0) for _ in range(8)]
    after_a_long_life = restart.plan(-9, lived=3_600.0)
    to_begin_anew = restart.plan(75, lived=1.0)

    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert (after_a_long_life, to_begin_anew) == (0.0, 0.0)


def test_a_process_that_cannot_be_started_is_not_tried_again_at_once() -> None:
    restart = Restart(1)

    assert [restart.plan(1, lived=0.0) for _ in range(3)] == [1.0, 2.0, 4.0]
