"""Where one server lives: its folder, its port, and the account it runs as."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Site:
    """Everything is inside `folder`; `account` is None where the server runs as ourselves."""

    folder: Path
    port: int
    password: str
    account: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def last_words(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def write(self, name: str, text: str) -> Path:
        """A file that only the server's account may read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path

    def spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Run a program as the server's account; what it says goes to the log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                user=self.account.pw_uid if self.account else None,
                group=self.account.pw_gid if self.account else None,
                extra_groups=[] if self.account else None,
                start_new_session=True,  # Ctrl-C at the terminal is for the tests, which then stop us
            )


def settle(folder: Path, account_for_root: str) -> Site:
    """Prepare an existing empty folder for a server."""
    account = _unprivileged(account_for_root) if os.geteuid() == 0 else None
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return Site(folder, _free_port(), secrets.token_hex(16), account)


def _unprivileged(account: str) -> pwd.struct_passwd:
    """PostgreSQL refuses to run as root, and MariaDB should not. The package's account may not exist."""
    try:
        return pwd.getpwnam(account)
    except KeyError:
        return pwd.getpwnam("nobody")


def _free_port() -> int:
    """Below the range from which the kernel serves outgoing connections: while a server is down between two
    starts, none of its clients can be given its port by accident."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
