"""Check whether the connection to a server is encrypted."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor.finding import Finding, ok, warn
from stepfast.database.tls import Link, link_of

if TYPE_CHECKING:
    from stepfast.database.database import Database


CURES: Final = {
    "postgresql": "write sslmode=verify-full into the URL (and sslrootcert=… for an authority of your own)",
    "mariadb": "write ssl_mode=VERIFY_IDENTITY into the URL (and ssl_ca=… for an authority of your own)",
}


def check_tls(database: Database) -> list[Finding]:
    """Whether a connection as this program opens it is encrypted."""
    with closing(database.connect()) as connection:
        return [judge_link(link_of(connection), CURES[database.dialect.name])]


def judge_link(link: Link, cure: str) -> Finding:
    """Pure: what to say about such a connection."""
    if link.encrypted and link.checked:
        return ok("tls", "the connection is encrypted, and the server's certificate is checked")
    if link.encrypted:
        found = "the connection is encrypted, but nobody checks whose certificate the server has"
        return ok("tls", found) if link.local else warn("tls", found, cure)
    if link.local:
        return ok("tls", "the connection is not encrypted; it does not leave this machine")
    return warn("tls", "the connection is not encrypted: passwords and payloads can be read on the way", cure)
