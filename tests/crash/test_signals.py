"""A worker stops in good order on a signal: it claims no more, finishes or gives back its steps, and charges no attempt."""

from __future__ import annotations

import os
import pty
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from devtools.processes import wait_until_gone
from tests.crash.feeds import hanging
from tests.crash.workers import PATIENCE
from tests.support import rows
from tests.support.feeds import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.crash.workers import Fleet

STUCK = BROKEN = 70
UNWIND = {"stepfast.worker.leases.UNWIND": 0.3}  # seconds after the timeout, instead of 5

both = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
on_sqlite = pytest.mark.only_on("sqlite")  # what happens inside the process is the same everywhere


@both
def test_it_stops_taking_and_finishes_what_it_has(fleet: Fleet, number: signal.Signals) -> None:
    """It first takes nothing more, then ends its steps, and closes its connections last. (F42)"""
    fleet.enqueue("hold", 2, gate="open")
    worker = fleet.worker(concurrency=1)
    running = fleet.wait_for("started")["job"]

    worker.signal(number)
    worker.says("worker.stopping")
    fleet.open("open")

    assert worker.ended() == 0
    assert fleet.effects() == {(running, 0): 1}
    assert len(fleet.journal("started")) == 1
    assert rows.count(fleet.app, "stepfast_job", "state = 'ready' AND leased_at IS NULL") == 1
    assert not fleet.journal("told")


@both
def test_what_does_not_finish_within_the_grace_is_given_back(fleet: Fleet, number: signal.Signals) -> None:
    fleet.enqueue("hold", gate="never")
    worker = fleet.worker(grace=0.1)
    fleet.wait_for("started")

    worker.signal(number)

    assert worker.ended() == 0
    assert fleet.journal("told")[0]["why"] == "shutdown"
    _was_given_back(fleet, "hold-1")


def test_a_second_signal_gives_everything_back_at_once(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="never")
    worker = fleet.worker(grace=60)
    fleet.wait_for("started")

    worker.signal(signal.SIGTERM)
    worker.says("worker.stopping")
    worker.signal(signal.SIGTERM)

    assert worker.ended(10) == 0
    _was_given_back(fleet, "hold-1")


@on_sqlite
def test_a_handler_that_ignores_the_end_is_left_behind(fleet: Fleet) -> None:
    """It goes on as a coroutine of a process that ends: its job runs elsewhere, and its answer is refused."""
    fleet.enqueue("hold", gate="never", stubborn=True)
    worker = fleet.worker(grace=0.1)
    fleet.wait_for("started")

    worker.signal(signal.SIGTERM)

    assert worker.ended(10) == 0
    _was_given_back(fleet, "hold-1")


@on_sqlite
def test_a_supervisor_passes_the_signal_on(fleet: Fleet) -> None:
    fleet.enqueue("hold", 4, gate="open")
    supervisor = fleet.worker(processes=2, concurrency=2)
    fleet.wait_for("started", 4)
    children = supervisor.children()

    supervisor.signal(signal.SIGTERM)
    supervisor.says("worker.stopping", times=2)
    fleet.open("open")

    assert supervisor.ended() == 0
    assert len(children) == 2
    assert wait_until_gone(children, 0)
    assert fleet.effects() == {(f"hold-{n}", 0): 1 for n in range(1, 5)}


@on_sqlite
def test_a_supervisor_passes_the_second_signal_on_as_well(fleet: Fleet) -> None:
    fleet.enqueue("hold", 4, gate="never")
    supervisor = fleet.worker(processes=2, concurrency=2, grace=60)
    fleet.wait_for("started", 4)

    supervisor.signal(signal.SIGINT)
    supervisor.says("worker.stopping", times=2)
    supervisor.signal(signal.SIGINT)

    assert supervisor.ended(10) == 0
    for n in range(1, 5):
        _was_given_back(fleet, f"hold-{n}")


@on_sqlite
def test_children_do_not_outlive_a_killed_supervisor(fleet: Fleet) -> None:
    fleet.enqueue("hold", 4, gate="never")
    supervisor = fleet.worker(processes=2, concurrency=2, grace=0.1)
    fleet.wait_for("started", 4)
    children = supervisor.children()

    supervisor.kill_guardian()

    assert wait_until_gone(children, 10)
    for n in range(1, 5):
        _was_given_back(fleet, f"hold-{n}")


@on_sqlite
def test_a_supervisor_starts_a_killed_child_again(fleet: Fleet) -> None:
    supervisor = fleet.worker(processes=2)
    supervisor.says("worker.started", times=2)

    os.kill(supervisor.children()[0], signal.SIGKILL)

    supervisor.says("worker.started", times=3)
    assert "worker.ended number=1 code=-9" in supervisor.words()


def test_the_process_that_runs_a_suspect_alone_ends_with_its_parent(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="never")
    victim = fleet.worker()
    fleet.wait_for("started")
    victim.kill()
    parent = fleet.worker(grace=0.1)
    alone = fleet.wait_for("started", 2)["pid"]

    assert alone in parent.children()

    parent.kill_guardian()

    assert wait_until_gone([alone], 10)
    rows.eventually(lambda: rows.state(fleet.app, "hold-1") != "leased")


def test_a_handler_that_blocks_the_event_loop_costs_the_process_and_not_its_neighbours(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="never")
    worker = fleet.worker(lease=1, concurrency=2, constants=UNWIND)
    fleet.wait_for("started")
    fleet.enqueue("block", gate="never")

    worker.says(f"worker.ended number=1 code={STUCK}")
    fleet.wait_for("started", 2, job="hold-1")  # in the process that its guardian has started
    (held,) = rows.query(fleet.app, "SELECT failures, crashes FROM stepfast_job WHERE id = 'hold-1'")
    assert held == {"failures": 0, "crashes": 0}
    letter = fleet.archived()["block-1"]
    assert (letter["state"], letter["failures"], letter["crashes"]) == ("dead", 1, 0)
    assert letter["last_error"] == "StepTimeout: did not finish within 0.2 s"


@on_sqlite
def test_a_thread_that_ignores_its_timeout_is_abandoned_and_the_process_starts_anew(fleet: Fleet) -> None:
    """Twice, because the second life must be like the first. The neighbour finishes in peace."""
    worker = fleet.worker(lease=1, concurrency=2, constants=UNWIND)
    for life in (1, 2):
        worker.says("worker.started", times=life)
        fleet.enqueue("ignore_timeout", gate="never")
        fleet.wait_for("started", life, job="ignore_timeout-1")
        fleet.enqueue("brief")
        began = time.monotonic()
        worker.says("worker.recycled", times=life)
        took = time.monotonic() - began

        assert took < 10  # nobody waits for a thread that was given up
        rows.eventually(lambda: len(fleet.archived()) == 2)
        letter = fleet.archived()["ignore_timeout-1"]
        assert (letter["state"], letter["failures"], letter["crashes"]) == ("dead", 1, 0)
        assert fleet.effects() == {("brief-1", 0): 1}
        rows.change(fleet.app, "DELETE FROM stepfast_archive")
        rows.change(fleet.app, "DELETE FROM effect")
    worker.says("worker.started", times=3)
    fleet.enqueue("brief")
    fleet.wait_until_done()
    assert fleet.effects() == {("brief-1", 0): 1}


@on_sqlite
def test_a_signal_ends_a_process_that_was_about_to_start_anew(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="never")
    worker = fleet.worker(lease=1, concurrency=2, constants=UNWIND)
    fleet.wait_for("started")
    fleet.enqueue("ignore_timeout", gate="never")
    worker.says("worker.stopping")  # it lost a slot, and waits for its neighbour to finish

    worker.signal(signal.SIGTERM)

    assert worker.ended(10) == 0
    assert "worker.recycled" not in worker.words()
    _was_given_back(fleet, "hold-1")
    assert fleet.archived()["ignore_timeout-1"]["state"] == "dead"


@on_sqlite
def test_a_thread_that_a_handler_left_hanging_does_not_keep_the_process(fleet: Fleet) -> None:
    """Python itself would wait for it at the end, for ever."""
    worker = fleet.worker(grace=0.1)
    worker.says("worker.started")
    fleet.enqueue("hang_elsewhere", 8)  # more than asyncio has threads on two cores
    rows.eventually(lambda: len(fleet.archived()) == 8)

    worker.signal(signal.SIGTERM)

    assert worker.ended(10) == 0


@on_sqlite
def test_a_source_that_hangs_does_not_keep_the_process(fleet: Fleet) -> None:
    fleet.target = "tests.crash.feeds:app"
    prepare(fleet.app)
    fleet.app.feed(hanging())
    run = fleet.app.runs.start("hanging")
    worker = fleet.worker(grace=0.1)
    worker.says("source.troubled feed=hanging trouble=outage")

    worker.signal(signal.SIGTERM)

    assert worker.ended(10) == 0
    assert (fleet.folder / "hangs").exists()
    assert rows.count(fleet.app, "stepfast_job", "failures > 0") == 0
    assert rows.count(fleet.app, "stepfast_run", f"id = '{run.id}' AND state = 'fetching'") == 1


@both
@on_sqlite
def test_a_coroutine_that_computes_does_not_keep_the_process(fleet: Fleet, number: signal.Signals) -> None:
    fleet.enqueue("compute", gate="never")
    worker = fleet.worker(grace=0.1)
    fleet.wait_for("started")

    worker.signal(number)

    assert worker.ended() == 0
    _was_given_back(fleet, "compute-1")


@on_sqlite
def test_a_second_signal_ends_a_process_whose_coroutine_computes(fleet: Fleet) -> None:
    fleet.enqueue("compute", gate="never")
    worker = fleet.worker(grace=600)
    fleet.wait_for("started")

    worker.signal(signal.SIGTERM)
    worker.says("worker.stopping")
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    _was_given_back(fleet, "compute-1")


@on_sqlite
def test_a_supervised_process_whose_coroutine_computes_ends_as_well(fleet: Fleet) -> None:
    fleet.enqueue("compute", gate="never")
    supervisor = fleet.worker(processes=2, grace=0.1)
    fleet.wait_for("started")

    supervisor.signal(signal.SIGTERM)

    assert supervisor.ended() == 0
    _was_given_back(fleet, "compute-1")


@on_sqlite
def test_a_closed_terminal_is_a_polite_stop(fleet: Fleet) -> None:
    """Its SIGHUP comes from the shell and from the system: the second one does not end the grace."""
    fleet.enqueue("hold", gate="open")
    worker = fleet.worker(grace=600)
    fleet.wait_for("started")

    worker.signal(signal.SIGHUP)
    worker.says("worker.stopping")
    worker.signal(signal.SIGHUP)
    fleet.open("open")

    assert worker.ended() == 0
    assert fleet.effects() == {("hold-1", 0): 1}
    assert not fleet.journal("told")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: the end at which a person sits, and the end of the program."""
    person, program = pty.openpty()
    yield person, program
    for end in (person, program):
        with suppress(OSError):
            os.close(end)


@on_sqlite
def test_ctrl_c_in_a_terminal_is_one_signal(fleet: Fleet, terminal: tuple[int, int]) -> None:
    """The terminal sends it to the guardian and to all workers."""
    person, program = terminal
    fleet.enqueue("hold", 4, gate="open")
    worker = fleet.worker(processes=2, concurrency=2, grace=600, terminal=program)
    fleet.wait_for("started", 4)

    os.write(person, b"\x03")
    worker.says("worker.stopping", times=2)
    fleet.open("open")

    assert worker.ended() == 0
    assert set(fleet.effects().values()) == {1}
    assert not fleet.journal("told")


@on_sqlite
def test_a_second_ctrl_c_in_a_terminal_gives_everything_back(fleet: Fleet, terminal: tuple[int, int]) -> None:
    person, program = terminal
    fleet.enqueue("hold", gate="open")
    worker = fleet.worker(grace=600, terminal=program)
    fleet.wait_for("started")

    os.write(person, b"\x03")
    worker.says("worker.stopping")
    os.write(person, b"\x03")

    assert worker.ended() == 0
    _was_given_back(fleet, "hold-1")


@on_sqlite
def test_the_end_of_a_terminal_is_a_polite_stop(fleet: Fleet, terminal: tuple[int, int]) -> None:
    person, program = terminal
    fleet.enqueue("hold", 2, gate="open")
    worker = fleet.worker(processes=2, concurrency=1, grace=600, terminal=program)
    fleet.wait_for("started", 2)
    os.close(program)

    os.close(person)
    worker.says("worker.stopping", times=2)
    fleet.open("open")

    assert worker.ended() == 0
    assert set(fleet.effects().values()) == {1}
    assert not fleet.journal("told")


@on_sqlite
def test_ctrl_z_stops_all_processes_and_fg_continues_them(fleet: Fleet, terminal: tuple[int, int]) -> None:
    fleet.enqueue("hold", gate="open")
    worker = fleet.worker(lease=600, terminal=terminal[1])
    fleet.wait_for("started")
    everyone = [worker.pid, *worker.children()]

    worker.signal(signal.SIGTSTP)
    rows.eventually(lambda: all(_is_stopped(pid) for pid in everyone), PATIENCE)
    fleet.open("open")
    os.kill(worker.pid, signal.SIGCONT)
    fleet.wait_until_done()

    assert fleet.effects() == {("hold-1", 0): 1}


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@on_sqlite
def test_signals_of_the_application_are_passed_on_and_do_not_end_a_worker_that_starts(fleet: Fleet) -> None:
    fleet.target = "tests.crash.slow_app:app"
    worker = fleet.worker()
    rows.eventually((fleet.folder / "importing").exists, PATIENCE)

    worker.signal(signal.SIGUSR1)
    fleet.open("import")
    worker.says("worker.started")
    early = (fleet.folder / "SIGUSR1").exists()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        worker.signal(number)
        rows.eventually((fleet.folder / number.name).exists, PATIENCE)
    worker.signal(signal.SIGTERM)

    assert not early
    assert worker.ended() == 0


@on_sqlite
def test_a_guardian_as_the_first_process_of_a_container(fleet: Fleet) -> None:
    """It cannot be stopped by Ctrl-Z, and reaps the processes that others have left; a dead worker is replaced."""
    fleet.enqueue("leave_an_orphan", gate="leave")
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    container = fleet.worker(prefix=["unshare", *as_root, "--pid", "--fork", "--mount-proc", "--kill-child"])
    fleet.wait_until_done()
    guardian, worker, orphan = container.children()
    fleet.enqueue("hold", gate="open")
    fleet.wait_for("started")

    os.kill(guardian, signal.SIGTSTP)
    fleet.open("leave")
    rows.eventually(lambda: not Path(f"/proc/{orphan}").exists(), PATIENCE)
    fleet.enqueue("brief")
    fleet.wait_for("started", job="brief-1")
    os.kill(worker, signal.SIGKILL)
    container.says("worker.ended number=1 code=-9")
    fleet.open("open")
    fleet.wait_until_done()
    os.kill(guardian, signal.SIGTERM)

    assert container.ended() == 0
    assert fleet.effects() == {("hold-1", 0): 1, ("brief-1", 0): 1}


@on_sqlite
def test_nohup_is_heeded(fleet: Fleet) -> None:
    worker = fleet.worker(ignoring=[signal.SIGHUP])
    worker.says("worker.started")

    worker.signal(signal.SIGHUP)
    fleet.enqueue("brief")
    fleet.wait_until_done()
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0


@on_sqlite
def test_children_that_a_handler_forks_and_ends_do_not_stop_the_worker(fleet: Fleet) -> None:
    """They inherit the worker's signal handlers, and the socket that these write to."""
    fleet.enqueue("pool", 3)
    worker = fleet.worker(concurrency=1)

    fleet.wait_until_done()

    assert {it["code"] for it in fleet.journal("answered")} == {-signal.SIGTERM}
    assert {row["state"] for row in fleet.archived().values()} == {"done"}
    assert len(fleet.journal("started")) == 3
    assert worker.runs()
    assert "worker.stopping" not in worker.words()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


@on_sqlite
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_without_standard_streams_works(fleet: Fleet, processes: int) -> None:
    fleet.enqueue("brief")
    worker = fleet.worker(streams=False, processes=processes)

    fleet.wait_until_done()
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    assert fleet.effects() == {("brief-1", 0): 1}


@on_sqlite
def test_a_worker_whose_log_nobody_reads_ends_well(fleet: Fleet) -> None:
    """As `stepfast worker … 2>&1 | head`."""
    fleet.enqueue("brief")
    reader, writer = os.pipe()
    worker = fleet.worker(stderr=writer)
    os.close(writer)
    os.close(reader)

    fleet.wait_until_done()
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0


# A part of the worker breaks. Constants that are none make them: each is used by one thread.
BREAKS = {
    "claimer": {"stepfast.worker.claimer.STUCK_AFTER": "no number"},
    "heartbeat": {"stepfast.worker.heartbeat.TICK": "no number"},
    "event loop": {"stepfast.worker.execution.BREATH": "no number"},
    "commit-batches": {"stepfast.worker.committer.LARGEST_BATCH": "no number"},
    "wakeups": {"stepfast.worker.wakeups.FILE_LOOK": "no number"},
}


@on_sqlite
@pytest.mark.parametrize("part", BREAKS)
def test_a_worker_of_which_a_part_breaks_ends_with_70_and_a_sentence(fleet: Fleet, part: str) -> None:
    fleet.enqueue("hold", gate="never")
    fleet.enqueue("plain", 3)

    worker = fleet.worker(constants=BREAKS[part], grace=600, guardian=False)

    assert worker.ended() == BROKEN
    words = worker.words()
    assert f"stepfast: the worker's {part} broke, so it gave its jobs back and stopped: TypeError: " in words
    assert words.count("the worker's") == 1
    assert "Traceback" not in words
    assert rows.count(fleet.app, "stepfast_job", "state = 'leased'") == 0
    assert rows.count(fleet.app, "stepfast_job", "failures > 0 OR crashes > 0") == 0
    fleet.open("never")
    fleet.worker()
    fleet.wait_until_done()
    assert fleet.effects() == {("hold-1", 0): 1}


@on_sqlite
def test_a_guardian_starts_another_process_where_a_part_of_the_worker_broke(fleet: Fleet) -> None:
    fleet.enqueue("hold", gate="never")
    worker = fleet.worker(constants=BREAKS["heartbeat"], grace=600)

    worker.says(f"worker.ended number=1 code={BROKEN}")
    worker.says("the worker's heartbeat broke", times=2)
    worker.signal(signal.SIGTERM)
    worker.ended()

    _was_given_back(fleet, "hold-1")


@on_sqlite
def test_a_handler_that_stops_the_event_loop_stops_nothing_else(fleet: Fleet) -> None:
    fleet.enqueue("stop_loop")
    worker = fleet.worker()

    fleet.wait_until_done()
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    assert fleet.effects() == {("stop_loop-1", 0): 1}


def _was_given_back(fleet: Fleet, job_id: str) -> None:
    row = rows.live(fleet.app, job_id)
    assert row is not None
    assert (row["state"], row["owner"], row["failures"], row["crashes"]) == ("ready", None, 0, 0)
    (shown,) = rows.query(
        fleet.app, "SELECT locked_by, attempts FROM processing_jobs WHERE id = :id", id=job_id
    )
    assert (shown["locked_by"], shown["attempts"]) == (None, 0)
