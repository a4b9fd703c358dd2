"""MariaDB as an engine for `devtools.server`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pymysql

from devtools.server import USER, ServerError, ServerMissingError, StopMode

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

    from devtools.site import Site

SETTINGS = {
    "character-set-server": "utf8mb4",  # as Debian configures it; the program's own default is latin1
    "collation-server": "utf8mb4_general_ci",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "16M",
    "max-connections": "200",
    "performance-schema": "off",
}
# A killed *process* loses nothing by these: 2 hands each commit to the kernel, which 0 would not.
CARELESS = {
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-flush-method": "nosync",
    "innodb-doublewrite": "0",
    "debug-no-sync": "1",
}


@dataclass(frozen=True, kw_only=True)
class MariaDB:
    """`durable` keeps what a power cut must keep, as production does; tests are faster without."""

    durable: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    tls: tuple[str, str] | None = None  # certificate and key, as PEM texts; None: plain text only

    name: ClassVar[str] = "mariadb"
    scheme: ClassVar[str] = "mysql"
    account: ClassVar[str] = "mysql"
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }
    connect_errors: ClassVar[tuple[type[Exception], ...]] = (pymysql.err.OperationalError, OSError)

    def find(self) -> None:
        _program("mariadbd")
        _program("mariadb-install-db")

    def install(self, site: Site) -> list[str]:
        return [
            _program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={site.data}",
            f"--tmpdir={site.folder}",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            "--skip-test-db",
            *self._options(),
        ]

    def serve(self, site: Site) -> list[str]:
        # One statement per line, run before the first client is let in. The accounts that came with the data
        # have no password, and other users of this machine can reach the port.
        accounts = site.write(
            "accounts.sql",
            f"DELETE FROM mysql.global_priv WHERE User NOT IN ('{USER}', 'mariadb.sys');\n"
            "FLUSH PRIVILEGES;\n"
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{site.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n",
        )
        return [
            _program("mariadbd"),
            "--no-defaults",
            f"--datadir={site.data}",
            f"--tmpdir={site.folder}",
            f"--port={site.port}",
            "--bind-address=127.0.0.1",
            "--skip-networking=0",
            "--skip-name-resolve",
            f"--socket={site.folder / 'mariadb.sock'}",
            f"--pid-file={site.folder / 'mariadb.pid'}",
            f"--init-file={accounts}",
            *self._options(),
            *self._tls(site),
        ]

    def greet(self, site: Site) -> None:
        with _administrator(site):
            pass

    def create(self, site: Site, name: str, template: str | None) -> None:
        if template is not None:
            raise ServerError("MariaDB cannot copy a database")
        with _administrator(site) as cursor:
            cursor.execute(f"CREATE DATABASE `{name}`")

    def drop(self, site: Site, name: str) -> None:
        with _administrator(site) as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (client,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # left by itself
                    cursor.execute("KILL %s", (client,))
            cursor.execute("SET lock_wait_timeout = 10")  # otherwise a day, if one of them will not die
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def release(self, site: Site) -> None:
        """All it holds is in its folder."""

    def _tls(self, site: Site) -> list[str]:
        if self.tls is None:
            return ["--skip-ssl"]  # newer versions make a certificate of their own
        certificate, key = (
            site.write(name, text) for name, text in zip(("server.pem", "server.key"), self.tls, strict=True)
        )
        return [f"--ssl-cert={certificate}", f"--ssl-key={key}"]

    def _options(self) -> list[str]:
        settings = {**SETTINGS, **({} if self.durable else CARELESS), **self.settings}
        return [f"--{name}={value}" for name, value in settings.items()]


@contextmanager
def _administrator(site: Site) -> Iterator[Cursor]:
    connection = pymysql.connect(
        host="127.0.0.1",
        port=site.port,
        user=USER,
        password=site.password,
        autocommit=True,
        ssl_disabled=True,  # building a TLS context takes 20 ms, and the server has no certificate anyway
    )
    with connection, connection.cursor() as cursor:
        yield cursor


def _program(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    if found is None:
        raise ServerMissingError("MariaDB is not installed: run scripts/install-servers")
    return found
