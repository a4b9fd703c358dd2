"""Real worker processes, as `stepfast worker` starts them, and the journal of their handlers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devtools.processes import family, kill_family, send, wait_until_gone
from stepfast.applications import worker_command
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast import Stepfast

ROOT = Path(__file__).parents[2]
TARGET = "tests.crash.jobs:app"
PATIENCE = 30.0  # seconds; only a test that fails waits so long

Entry = dict[str, Any]


class WorkerProcess:
    """`stepfast worker`, with its words in a file."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        log: Path,
        stderr: int | None = None,
        terminal: int | None = None,
    ) -> None:
        self.log = log
        at_terminal = (
            [] if terminal is None else ["setsid", "--ctty"]
        )  # it is the terminal of all its processes
        with log.open("wb") as words:
            self._process = subprocess.Popen(
                [*at_terminal, *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=words,
                stderr=words if stderr is None else stderr,
                start_new_session=terminal is None,
            )
        self.pid = self._process.pid

    def signal(self, what: signal.Signals) -> None:
        """To the guardian, as a user sends it; a machine that freezes stops all of them."""
        frozen = what in (signal.SIGSTOP, signal.SIGCONT)
        send(family(self.pid) if frozen else [self.pid], what)

    def kill(self) -> None:
        """SIGKILL to the guardian and its workers at once, as when a machine dies; returns when they are gone."""
        everyone = self._stopped()
        for pid in everyone:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        assert wait_until_gone(everyone, PATIENCE)

    def _stopped(self) -> list[int]:
        """All processes of this command; none of them can start another one or say a word any more."""
        found: list[int] = []
        while (everyone := family(self.pid)) != found:
            found = everyone
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        return found

    def kill_guardian(self) -> None:
        """SIGKILL to the process that the user sees; its workers live, and notice."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def kill_worker(self, number: int = 0) -> int:
        """SIGKILL to one worker process; its guardian lives. Returns its process id."""
        pid = self.workers()[number]
        os.kill(pid, signal.SIGKILL)
        return pid

    def workers(self) -> list[int]:
        """The worker processes, once there are any; the guardian is this process."""
        return rows.eventually(lambda: [it for it in self.children() if not _is_deputy(it)], PATIENCE)

    def ended(self, patience: float = PATIENCE) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {patience} s:\n{self.words()}") from None

    def runs(self) -> bool:
        return self._process.poll() is None

    def children(self) -> list[int]:
        return family(self.pid)[1:]

    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, event: str, times: int = 1) -> None:
        """Wait until the log has this event."""
        rows.eventually(lambda: self.words().count(event) >= times or not self.runs(), PATIENCE)
        assert self.words().count(event) >= times, f"ended without {event!r}:\n{self.words()}"

    def remove(self) -> None:
        """Whatever is left of it goes."""
        if self._process.poll() is None:
            kill_family(self.pid)
        self._process.wait(PATIENCE)


def _is_deputy(pid: int) -> bool:
    """Whether the process speaks for a guardian. With short leases it is always there."""
    with suppress(OSError):
        return b"stepfast.worker.deputy" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True  # it has ended


@dataclass
class Fleet:
    """The workers of one test on one database, and a folder in which they meet."""

    app: Stepfast
    folder: Path
    url: str
    workers: list[WorkerProcess] = field(default_factory=list)
    target: str = TARGET  # the application that its workers run

    def worker(
        self,
        *,
        processes: int = 1,
        constants: Mapping[str, float | str] | None = None,
        url: str | None = None,
        streams: bool = True,
        stderr: int | None = None,
        terminal: int | None = None,
        ignoring: Sequence[signal.Signals] = (),
        guardian: bool = True,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> WorkerProcess:
        """Start one. `constants` are set in the process, for what a test cannot wait for.

        Without `streams`, its stdin, stdout and stderr are closed. It starts with the signals of `ignoring` ignored.
        Without a `guardian` it is one process, whose exit code is its own. `terminal` is where its user sits, and `prefix`
        a command that starts it.
        """
        environment = self.environment(url, constants)
        if not guardian:
            environment["STEPFAST_GUARDIAN"] = "off"
        command = worker_command(self.target, options | {"processes": processes})
        if not streams or ignoring:
            words = "".join(f"trap '' {number.name[3:]}; " for number in ignoring)
            closed = "" if streams else "<&- >&- 2>&-"
            command = ["sh", "-c", f'{words}exec "$@" {closed}', "sh", *command]
        log = self.folder / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess([*prefix, *command], environment, log, stderr, terminal)
        self.workers.append(worker)
        return worker

    def environment(
        self, url: str | None = None, constants: Mapping[str, float | str] | None = None
    ) -> dict[str, str]:
        """For a process that works on the jobs of this test."""
        return {
            **os.environ,
            "STEPFAST_DATABASE_URL": url or self.url,
            "STEPFAST_TEST_FOLDER": str(self.folder),
            "STEPFAST_TEST_CONSTANTS": json.dumps(dict(constants or {})),
        }

    def open(self, gate: str) -> None:
        """Let the handlers that wait for this file go on."""
        (self.folder / gate).touch()

    def enqueue(self, kind: str, jobs: int = 1, first: int = 1, /, **arguments: Any) -> list[str]:
        """Jobs of a kind that only the workers know, numbered from `first`; a plain INSERT is a valid enqueue."""
        ids = [f"{kind}-{number}" for number in range(first, first + jobs)]
        payload = json.dumps(arguments)
        with self.app.transaction() as tx:
            tx.execute_many(
                "INSERT INTO stepfast_job (id, kind, payload) VALUES (:id, :kind, :payload)",
                [{"id": job_id, "kind": kind, "payload": payload} for job_id in ids],
            )
        return ids

    def journal(self, event: str | None = None, job: str | None = None) -> list[Entry]:
        """What the handlers wrote down, in the order of writing."""
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        return [it for it in entries if event in (None, it["event"]) and job in (None, it["job"])]

    def wait_for(
        self, event: str, times: int = 1, *, job: str | None = None, patience: float = PATIENCE
    ) -> Entry:
        """The `times`-th entry of this kind, as soon as it is there."""

        def look() -> list[Entry]:
            found = self.journal(event, job)
            return found if len(found) >= times else []

        return rows.eventually(look, patience)[times - 1]

    def wait_until_done(self, patience: float = PATIENCE) -> None:
        """Until no job is unfinished."""
        rows.eventually(lambda: not rows.count(self.app, "stepfast_job"), patience)

    def effects(self) -> Counter[tuple[str, int]]:
        found = rows.query(self.app, "SELECT job_id, step FROM effect")
        return Counter((row["job_id"], row["step"]) for row in found)

    def archived(self) -> dict[str, rows.Row]:
        return {row["id"]: row for row in rows.query(self.app, "SELECT * FROM stepfast_archive")}

    def close(self) -> None:
        for worker in self.workers:
            children = worker.children() if worker.runs() else []
            worker.remove()
            assert wait_until_gone(children, PATIENCE), "children outlived their worker"
