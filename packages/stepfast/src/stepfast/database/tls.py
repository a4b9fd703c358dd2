"""TLS between a program and its database: what a MariaDB URL asks for, and what a connection got.

A URL says it in the words of PostgreSQL (`sslmode=verify-full`), of MySQL (`ssl_mode=VERIFY_IDENTITY`) or by switches
(`ssl_verify_identity=1`). An option that nothing reads is refused: whoever wrote it believes to be protected.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from stepfast.config import switch
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.connection import Connection


class TlsMode(StrEnum):
    """How much a client insists on, in MySQL's words."""

    DISABLED = "DISABLED"  # plain text
    PREFERRED = "PREFERRED"  # TLS where the server offers it; nothing protects from a server that does not
    REQUIRED = "REQUIRED"  # TLS or no connection; any certificate is good enough
    VERIFY_CA = "VERIFY_CA"  # ... and an authority that we know has signed the server's certificate
    VERIFY_IDENTITY = "VERIFY_IDENTITY"  # ... and the certificate is that of the host in the URL


MODES: Final[Mapping[str, TlsMode]] = {
    **{mode.lower(): mode for mode in TlsMode},
    "disable": TlsMode.DISABLED,
    "allow": TlsMode.PREFERRED,
    "prefer": TlsMode.PREFERRED,
    "require": TlsMode.REQUIRED,
    "verify_full": TlsMode.VERIFY_IDENTITY,
}
SPELLINGS: Final[Mapping[str, str]] = {
    "sslmode": "ssl_mode",
    "sslrootcert": "ssl_ca",
    "sslcert": "ssl_cert",
    "sslkey": "ssl_key",
}
FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
SWITCHES: Final = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
KNOWN: Final = ("ssl_mode", *FILES, *SWITCHES, "unix_socket", "connect_timeout", "charset")
CHARSET: Final = "utf8mb4"
LONGEST_TIMEOUT: Final = 3_600  # seconds


@dataclass(frozen=True)
class MariadbOptions:
    """The options of a MariaDB URL."""

    mode: TlsMode
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    unix_socket: str | None = None
    connect_timeout: int | None = None

    def for_driver(self) -> dict[str, Any]:
        """TLS as PyMySQL is told about it. Files are read for each connection, so that a renewed certificate is used."""
        match self.mode:
            case TlsMode.DISABLED:
                return {"ssl_disabled": True}
            case TlsMode.PREFERRED:
                return {}
            case TlsMode.REQUIRED | TlsMode.VERIFY_CA | TlsMode.VERIFY_IDENTITY:
                return {"ssl": self._context()}

    def _context(self) -> ssl.SSLContext:
        # Made here and not by the driver, which does not compare the host's name where no `ssl_ca` is given.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.mode is TlsMode.VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_NONE if self.mode is TlsMode.REQUIRED else ssl.CERT_REQUIRED
        try:
            if self.mode is not TlsMode.REQUIRED and self.ca is None:
                context.load_default_certs()
            elif self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:  # ssl's errors are
            files = {name: getattr(self, name.removeprefix("ssl_")) for name in FILES}
            named = ", ".join(f"{name}={path!r}" for name, path in files.items() if path is not None)
            raise ConfigurationError(
                f"{named}: cannot be read ({error.strerror or error}); each must be a PEM file that this user may read"
            ) from error
        return context


def read_options(query: str, host: str | None) -> MariadbOptions:
    """The options of a MariaDB URL; each that is unknown, doubled or contradictory is refused in words."""
    given = _named(query)
    mode = _mode(given)
    if mode is None:
        # Nothing is said: encrypt where the server can, but not on this very machine.
        here = "unix_socket" in given or host in {None, "localhost", "127.0.0.1", "::1"}
        mode = TlsMode.DISABLED if here else TlsMode.PREFERRED
    if "ssl_key" in given and "ssl_cert" not in given:
        raise ConfigurationError("ssl_key: the key belongs to a certificate; name that too (ssl_cert=…)")
    if (charset := given.get("charset", CHARSET)).lower() != CHARSET:
        raise ConfigurationError(f"charset={charset!r}: Stepfast always uses {CHARSET}; leave it out")
    return MariadbOptions(
        mode,
        ca=given.get("ssl_ca"),
        cert=given.get("ssl_cert"),
        key=given.get("ssl_key"),
        unix_socket=given.get("unix_socket"),
        connect_timeout=_seconds(given.get("connect_timeout")),
    )


def _named(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for written, value in parse_qsl(query, keep_blank_values=True):
        name = written.lower().replace("-", "_")
        name = SPELLINGS.get(name, name)
        if name not in KNOWN:
            # The value is not shown: it may be a secret.
            raise ConfigurationError(
                f"the database URL has the option {written!r}, which MariaDB URLs do not have; there are {', '.join(KNOWN)}"
            )
        if name in given:
            raise ConfigurationError(f"the database URL has the option {name} twice; leave one of them out")
        if not value:
            raise ConfigurationError(f"the database URL has the option {name} without a value")
        given[name] = value
    return given


def _mode(given: Mapping[str, str]) -> TlsMode | None:
    """The mode that these options ask for; None where they say nothing about it."""
    switches = {name: switch(name, given[name]) for name in SWITCHES if name in given}
    files = [name for name in FILES if name in given]
    if (written := given.get("ssl_mode")) is not None:
        mode = MODES.get(written.lower().replace("-", "_"))
        if mode is None:
            raise ConfigurationError(
                f"ssl_mode={written!r}: write {', '.join(TlsMode)}, or as PostgreSQL does disable, prefer, require, "
                "verify-ca, verify-full"
            )
        if switches:
            raise ConfigurationError(
                f"ssl_mode and {min(switches)} say the same thing in two ways; leave {min(switches)} out"
            )
        if files and mode in {TlsMode.DISABLED, TlsMode.PREFERRED}:
            raise ConfigurationError(
                f"ssl_mode={written} does not insist on TLS, so {files[0]} would protect nothing; write ssl_mode=VERIFY_CA or "
                "VERIFY_IDENTITY"
            )
        # As libpq does: with a list of authorities at hand, `require` checks it.
        return TlsMode.VERIFY_CA if mode is TlsMode.REQUIRED and "ssl_ca" in given else mode
    if switches.get("ssl_disabled"):
        if files or len(switches) > 1:
            raise ConfigurationError(
                f"ssl_disabled=1 and {(files or sorted(switches))[-1]} contradict each other; leave one of them out"
            )
        return TlsMode.DISABLED
    if switches.get("ssl_verify_identity"):
        return TlsMode.VERIFY_IDENTITY
    if switches.get("ssl_verify_cert", "ssl_ca" in given):
        return TlsMode.VERIFY_CA
    if files:
        return TlsMode.REQUIRED
    return TlsMode.PREFERRED if switches else None


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text[:9]) <= LONGEST_TIMEOUT:
        raise ConfigurationError(f"connect_timeout={text[:20]!r}: whole seconds, from 1 to {LONGEST_TIMEOUT}")
    return int(text)


# --- What a connection got, as the doctor reports it.


@dataclass(frozen=True)
class Link:
    """The way between this program and the database, or the proxy that stands before it."""

    encrypted: bool
    checked: bool  # the server had to show a certificate of the host in the URL
    local: bool  # it does not leave this machine


def link_of(connection: Connection) -> Link:
    """How this connection is protected; by what our end of it knows, since a server behind a proxy knows another one."""
    raw: Any = connection.raw
    if connection.dialect.name == "postgresql":
        parameters = raw.info.get_parameters()
        local = raw.info.host.startswith("/") or _loops_back(raw.info.hostaddr)
        return Link(bool(raw.pgconn.ssl_in_use), parameters.get("sslmode") == "verify-full", local)
    sock = raw._sock  # noqa: SLF001 - PyMySQL has no name for it
    encrypted = isinstance(sock, ssl.SSLSocket)
    checked = encrypted and sock.context.check_hostname
    return Link(encrypted, checked, sock.family == socket.AF_UNIX or _loops_back(sock.getpeername()[0]))


def _loops_back(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
