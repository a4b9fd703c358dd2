"""PgBouncer in front of a PostgreSQL server, as an engine for `devtools.server`.

    with Server(PostgreSQL()) as behind, Server(PgBouncer(behind)) as pooler:
        behind.create_database("catalogue")
        psycopg.connect(pooler.url("catalogue"))

It hands out its server connections in turn, so that whoever relies on a session meets another one at once.
"""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import psycopg

from devtools.server import USER, Server, ServerMissingError, StopMode

if TYPE_CHECKING:
    from devtools.site import Site

PoolMode = Literal["session", "transaction", "statement"]


@dataclass(frozen=True)
class PgBouncer:
    behind: Server
    mode: PoolMode = "transaction"
    pool_size: int = 10  # server connections for each database

    name: ClassVar[str] = "pgbouncer"
    scheme: ClassVar[str] = "postgresql"
    account: ClassVar[str] = "postgres"
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGTERM,
    }
    connect_errors: ClassVar[tuple[type[Exception], ...]] = (psycopg.OperationalError,)

    def find(self) -> None:
        program()

    def install(self, site: Site) -> list[str]:
        """Its settings are written with each start; there are no data."""
        return [shutil.which("true") or "true", str(site.folder)]

    def serve(self, site: Site) -> list[str]:
        users = site.write("users.txt", f'"{USER}" "{site.password}"\n')
        server = self.behind.site
        options = {
            "listen_addr": "127.0.0.1",
            "listen_port": site.port,
            "unix_socket_dir": "",
            "auth_type": "md5",
            "auth_file": users,
            "admin_users": USER,
            "pool_mode": self.mode,
            "default_pool_size": self.pool_size,
            "min_pool_size": min(3, self.pool_size),
            "max_client_conn": 1_000,
            "server_round_robin": 1,
            "server_login_retry": 1,  # seconds; a server that was restarted is asked again soon
        }
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={server.port} user={USER} password={server.password}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in options.items()),
        ]
        return [program(), "--quiet", str(site.write("pgbouncer.ini", "\n".join([*lines, ""])))]

    def greet(self, site: Site) -> None:
        psycopg.connect(
            host="127.0.0.1", port=site.port, user=USER, password=site.password, dbname="pgbouncer"
        ).close()

    def create(self, site: Site, name: str, template: str | None) -> None:  # noqa: ARG002 - it has no databases
        self.behind.create_database(name, template)

    def drop(self, site: Site, name: str) -> None:  # noqa: ARG002 - as above
        self.behind.drop_database(name)

    def release(self, site: Site) -> None:
        """It holds nothing outside its folder."""


def program() -> str:
    found = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if not Path(found).exists():
        raise ServerMissingError("PgBouncer is not installed: run scripts/install-servers")
    return found
