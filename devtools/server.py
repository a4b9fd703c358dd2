"""A database server of one's own: a temporary folder, a free port, and nothing left behind.

`Server` is the life of the process; what differs between the products is an `Engine`.

    with Server(PostgreSQL()) as server:
        server.create_database("catalogue")
        psycopg.connect(server.url("catalogue"))

A server keeps its port and its data through `stop`, `kill` and `start`; `remove` ends it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Literal, Protocol, Self

from devtools import guardian
from devtools.processes import family, kill_family, send
from devtools.site import Site, settle

USER = "stepfast"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.02

StopMode = Literal["fast", "immediate"]


class ServerError(Exception):
    """The server did not do as told; the message ends with the last lines of its log."""


class ServerMissingError(ServerError):
    """Its programs are not on this machine: run scripts/install-servers."""


class Engine(Protocol):
    """What one product does in its own way."""

    name: ClassVar[str]
    scheme: ClassVar[str]
    account: ClassVar[str]  # made by the product's package; used when we are root
    stop_signals: ClassVar[dict[StopMode, signal.Signals]]
    connect_errors: ClassVar[tuple[type[Exception], ...]]

    def find(self) -> None:
        """Raise `ServerMissingError` unless the programs are here."""

    def install(self, site: Site) -> list[str]:
        """The command that fills `site.data`."""

    def serve(self, site: Site) -> list[str]:
        """The command that runs the server in the foreground."""

    def greet(self, site: Site) -> None:
        """Connect and leave; one of `connect_errors` while nobody answers."""

    def create(self, site: Site, name: str, template: str | None) -> None: ...

    def drop(self, site: Site, name: str) -> None: ...

    def release(self, site: Site) -> None:
        """Give back what a killed server holds outside its folder."""


class Server:
    """One server process and its data."""

    def __init__(self, engine: Engine, parent: Path | None = None) -> None:
        engine.find()
        self.engine = engine
        self._parent = parent
        self._site: Site | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._paused = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Ctrl-C while starting is no excuse either
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def site(self) -> Site:
        if self._site is None:
            raise ServerError(f"{self.engine.name} was never started, or was removed")
        return self._site

    def url(self, database: str) -> str:
        return f"{self.engine.scheme}://{USER}:{self.site.password}@127.0.0.1:{self.site.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> None:
        """An empty database, or a copy of `template` where the product can copy."""
        self.engine.create(self.site, name, template)

    def drop_database(self, name: str) -> None:
        """Whoever is still connected to it is thrown out."""
        self.engine.drop(self.site, name)

    def start(self) -> None:
        """Returns when the server answers. The first time makes its folder and data; twice is harmless."""
        if self._site is None:
            folder = Path(tempfile.mkdtemp(prefix=f"stepfast-{self.engine.name}-", dir=self._parent))
            self._guardian = guardian.hire(folder)
            self._site = settle(folder, self.engine.account)
            if status := self._wait_for(self.site.spawn(self.engine.install(self.site)), START_SECONDS):
                raise self._error(f"could not make its data folder, status {status}")
        if self._process is None or self._process.poll() is not None:
            self._process = self.site.spawn(self.engine.serve(self.site))
            (self.site.folder / guardian.PID_FILE).write_text(str(self._process.pid))
            self._await_answer(self._process)

    def stop(self, mode: StopMode = "fast") -> None:
        """`fast` cuts clients off and shuts down in order; `immediate` leaves recovery to the next start."""
        self.cont()
        if self._process is not None:
            self._process.send_signal(self.engine.stop_signals[mode])
            self._wait_for(self._process, STOP_SECONDS)
            self._forget_process()

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL to the server and all its processes; `start` brings it back by recovery."""
        if self._process is not None and self._family():
            kill_family(self._process.pid)
            self._process.wait()
        self._forget_process()

    def pause(self) -> None:
        """Connections stay open and nobody answers, until `cont`."""
        self._paused = True
        send(self._family(), signal.SIGSTOP)

    def cont(self) -> None:
        if self._paused:
            send(self._family(), signal.SIGCONT)
            self._paused = False

    def remove(self) -> None:
        """Stop for good, without a trace, whatever state the server is in."""
        if self._site is not None:
            self.stop("immediate")
            self.engine.release(self._site)
            shutil.rmtree(self._site.folder)
            self._site = None
        if self._guardian is not None:
            self._guardian.communicate()  # closes its pipe: it may go
            self._guardian = None

    def _family(self) -> list[int]:
        """The server's processes, none if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return []
        return family(self._process.pid)

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.engine.greet(self.site)
            except self.engine.connect_errors as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise self._error(f"does not answer: {error}") from error
            time.sleep(POLL_SECONDS)

    def _wait_for(self, process: subprocess.Popen[bytes], patience: float) -> int:
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired as error:
            kill_family(process.pid)
            raise self._error(f"did not end within {patience:.0f} s and was killed") from error

    def _forget_process(self) -> None:
        self._process = None
        self._paused = False
        (self.site.folder / guardian.PID_FILE).unlink(missing_ok=True)

    def _error(self, complaint: str) -> ServerError:
        return ServerError(f"{self.engine.name} {complaint}\n{self.site.last_words()}")
