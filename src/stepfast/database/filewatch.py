"""Linux tells when a file is written to: a worker on SQLite sleeps until another process commits."""

from __future__ import annotations

import ctypes
import os
import selectors
import socket
from typing import Final, Self

IN_MODIFY: Final = 0x2


class FileWatch:
    """Waits for writes to one file. Raises `OSError` where the system cannot tell."""

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError("no inotify here")
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watched = libc.inotify_add_watch(self._descriptor, os.fsencode(path), IN_MODIFY)
        if self._descriptor < 0 or watched < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def wait(self, bell: socket.socket) -> bool:
        """Sleep until the file is written to (True), or until the bell is rung (False)."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            selector.register(bell, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select()}
        if self._descriptor in ready:
            os.read(self._descriptor, 65_536)
        return bell.fileno() not in ready
