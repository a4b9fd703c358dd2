"""Signals for a worker process, heard even while a handler blocks the event loop.

The C-level handler writes a byte to a socket; a thread reads it. So no Python code runs inside the
signal handler, where it could meet a lock that its own thread holds.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` for each SIGTERM or SIGINT; must be called from the main thread."""
    receiver, sender = socket.socketpair()
    sender.settimeout(0)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        _ = sender  # kept alive with this thread
        while data := receiver.recv(16):
            for byte in data:
                if byte in STOP_SIGNALS:
                    stop()

    threading.Thread(target=listen, name="stepfast-signals", daemon=True).start()


def on_parent_gone(stop: Callable[[], None]) -> None:
    """Call `stop` when the process that started us ends: its end of our standard input closes."""

    def listen() -> None:
        while os.read(0, 1):  # not sys.stdin: a thread inside its lock would abort the interpreter's end
            pass
        stop()

    threading.Thread(target=listen, name="stepfast-parent", daemon=True).start()
