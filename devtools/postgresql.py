"""PostgreSQL as an engine for `devtools.server`."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psycopg

from devtools.server import USER, ServerMissingError, StopMode

if TYPE_CHECKING:
    from devtools.site import Site

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # inside the data folder, so that a killed server leaves nothing
}
# A killed *process* loses nothing by these, since commits still reach the kernel; a power cut would.
CARELESS = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, kw_only=True)
class PostgreSQL:
    """`durable` keeps what a power cut must keep, as production does; tests are faster without."""

    durable: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    tls: tuple[str, str] | None = None  # certificate and key, as PEM texts; None: plain text only

    name: ClassVar[str] = "postgresql"
    scheme: ClassVar[str] = "postgresql"
    account: ClassVar[str] = "postgres"
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
    }
    connect_errors: ClassVar[tuple[type[Exception], ...]] = (psycopg.OperationalError,)

    def find(self) -> None:
        _program("initdb")

    def install(self, site: Site) -> list[str]:
        password = site.write("password", site.password)
        return [
            _program("initdb"),
            f"--pgdata={site.data}",
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth=md5",  # scram takes 3 ms of a client for each connection
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]

    def serve(self, site: Site) -> list[str]:
        settings = {
            **SETTINGS,
            **({} if self.durable else CARELESS),
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(site.port),
            "unix_socket_directories": str(site.folder),
        }
        if self.tls is not None:
            certificate, key = self.tls
            settings |= {
                "ssl": "on",
                "ssl_cert_file": str(site.write("server.pem", certificate)),
                "ssl_key_file": str(site.write("server.key", key)),
            }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [_program("postgres"), "-D", str(site.data), *options]

    def greet(self, site: Site) -> None:
        self._execute(site, "SELECT 1")

    def create(self, site: Site, name: str, template: str | None) -> None:
        # copying files costs two checkpoints, which cost nothing without fsync: 20 ms against 30
        strategy = "WAL_LOG" if self.durable else "FILE_COPY"
        origin = template or "template1"
        self._execute(site, f'CREATE DATABASE "{name}" TEMPLATE "{origin}" STRATEGY {strategy}')

    def drop(self, site: Site, name: str) -> None:
        self._execute(site, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def release(self, site: Site) -> None:
        """A killed postmaster leaves a small System V segment, named in its lock file (line 7: key and id)."""
        lock_file = site.data / "postmaster.pid"
        if lock_file.exists():
            segment = lock_file.read_text().splitlines()[6].split()[-1]
            subprocess.run(
                [shutil.which("ipcrm") or "ipcrm", "-m", segment], check=False, capture_output=True
            )

    def _execute(self, site: Site, statement: str) -> None:
        with psycopg.connect(
            host="127.0.0.1",
            port=site.port,
            user=USER,
            password=site.password,
            dbname="postgres",
            autocommit=True,
        ) as connection:
            connection.execute(statement.encode())


def _program(name: str) -> str:
    """Of the installation that the PATH names, or else of the newest that Debian keeps beside it."""
    on_path = shutil.which("initdb")
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda it: float(it.parts[-3]))
    candidates = [Path(on_path).resolve()] if on_path else versions[::-1]
    if not candidates:
        raise ServerMissingError("PostgreSQL is not installed: run scripts/install-servers")
    return str(candidates[0].with_name(name))
