"""Handlers for isolation tests: another process imports them by name."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stepfast import (
    Continue,
    Done,
    PermanentError,
    Reject,
    Snooze,
    Step,
    Stepfast,
    Transaction,
    TransientError,
    Upsert,
    effect,
)

log = logging.getLogger("shop.isolated")


@effect
def book(tx: Transaction, *, name: str, amount: int) -> None:
    tx.execute("INSERT INTO ledger (id, amount) VALUES (:id, :amount)", {"id": name, "amount": amount})


def plain(step: Step, day: date, amount: int = 1) -> Done | Continue:
    """Two steps, with effects of every form that travels."""
    if step.cursor is None:
        step.upsert("ledger", [{"id": "upserted", "amount": amount}], key="id")
        return Continue(
            {"day": day, "pid": os.getpid()}, effects=[partial(book, name="called", amount=amount)]
        )
    return Done(
        [step.cursor["day"], step.cursor["pid"], os.getpid(), step.number, threading.current_thread().name]
    )


async def waiting(step: Step, text: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    step.effect(Upsert("ledger", ("id",), [{"id": text, "amount": 7}]))
    return {"text": text, "pid": os.getpid(), "attempt": step.attempt, "trace": step.trace_id}


@effect
@dataclass(frozen=True)
class Booking:
    """An effect of the application's own, with values of many types."""

    name: str
    day: date
    price: Decimal
    parts: tuple[int, ...]

    def apply(self, tx: Transaction, /) -> None:
        assert (type(self.day), type(self.price), type(self.parts)) == (date, Decimal, tuple)
        amount = int(self.price) + sum(self.parts)
        tx.execute(
            "INSERT INTO ledger (id, amount) VALUES (:id, :amount)", {"id": self.name, "amount": amount}
        )


def books() -> Done:
    return Done(effects=[Booking("booked", date(2024, 2, 29), Decimal("7.50"), (1, 2))])


class Evil:
    """What runs code where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (exec, (f"import os; open({self.path!r}, 'a').write(str(os.getpid()))",))

    def apply(self, tx: Transaction, /) -> None: ...


def attacks(how: str, path: str) -> Any:
    """Try to run code in the worker."""
    match how:
        case "effect":
            return Done(effects=[Evil(path)])
        case "function":
            return Done(effects=[partial(os.system, f"echo $PPID >> {path}")])
        case _:
            poison = pickle.dumps(Evil(path))
            send_bytes = Connection.send_bytes
            Connection.send_bytes = lambda self, _: send_bytes(self, poison)  # type: ignore[assignment,method-assign,misc]
            return None


def user() -> int:
    return os.geteuid()


def environment() -> list[str]:
    return sorted(os.environ)


def pid() -> int:
    return os.getpid()


def total(step: Step) -> int:
    answered: int = sum(step.parents.values())
    return answered


def talkative(step: Step, gate: str) -> None:
    step.annotate(parcel="p-7")
    step.progress(40, "half")
    step.log("so far")
    log.warning("careful with %s", "this", extra={"shelf": 4})
    log.debug("not wanted")
    wait_for(gate)


def wait_for(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.005)


class OddError(Exception):
    """An exception that no pickle brings back."""

    def __init__(self, number: int, *, reason: str) -> None:
        super().__init__(f"{reason}: {number}")
        self.lock = threading.Lock()


def fails(how: str) -> Any:
    def local(tx: Transaction) -> None: ...

    answers: dict[str, Callable[[], Any]] = {
        "snooze": lambda: Snooze("1h"),
        "reject": lambda: Reject("no such parcel"),
        "effect": lambda: Done(effects=[local]),
        "result": threading.Lock,
    }
    errors: dict[str, Callable[[], BaseException]] = {
        "transient": lambda: TransientError("later", delay="1h"),
        "permanent": lambda: PermanentError("never"),
        "odd": lambda: OddError(7, reason="odd"),
        "exit": lambda: SystemExit(3),
    }
    if (error := errors.get(how)) is not None:
        raise error()
    return answers[how]()


async def exits() -> None:
    raise SystemExit(4)


def crashes(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:  # dies, and leaves somebody behind who keeps its socket open
            if os.fork() == 0:
                time.sleep(60)
            os._exit(5)


def splits(gate: str, how: str) -> int:
    """Fork; the copy returns from here as well, when the gate is opened."""
    if (copy := os.fork()) == 0:
        wait_for(gate)
        match how:
            case "answers":
                return -1
            case "raises":
                raise PermanentError("of the copy")
            case _:
                sys.exit(3)
    return copy


def waits_for(step: Step, gate: str) -> int:
    step.log("waits")
    wait_for(gate)
    return os.getpid()


def pooled(numbers: list[int]) -> list[int]:
    """In copies of this process, which end with their pool."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, numbers)


def counts_copies(codes: list[int]) -> list[int]:
    """How copies end that leave as programs do."""
    ended = []
    for code in codes:
        if (copy := os.fork()) == 0:
            sys.exit(code or None)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))
    return ended


class Shade(StrEnum):
    RED = "red"


class Odd:
    def __repr__(self) -> str:
        raise ValueError


def logs_everything() -> None:
    log.warning(
        "all of it", extra={"shade": Shade.RED, "document": {"f": lambda: 1, "n": [1, Odd()]}, "o": Odd()}
    )


def tells_its_secret(step: Step, pin: str) -> Reject:
    log.warning("with %r", [pin], extra={"copy": pin})
    step.log(f"it is {pin!r}")
    return Reject(f"not {pin}")


def deaf(step: Step) -> None:
    """Start a child process, then ignore all signals and block the whole process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    step.log(f"{os.getpid()} {child.pid}")
    stubborn()


def stubborn() -> None:
    """Minutes in C, with the interpreter's lock held."""
    re.match(r"(a+)+$", "a" * 40 + "b")


def finish_late(step: Step) -> str:
    while step.halted is None:
        time.sleep(0.01)
    return "late, but whole"


def polite(step: Step) -> None:
    step.log(str(os.getpid()))
    try:
        step.wait(300)
    finally:
        log.warning("cleaned up")


async def patient(step: Step) -> None:
    step.log(str(os.getpid()))
    try:
        await asyncio.sleep(300)
    finally:
        log.warning("cleaned up")


def greedy(megabytes: int) -> int:
    return len(bytearray(megabytes * 1_000_000)) // 1_000_000


def register(app: Stepfast, handler: Callable[..., Any], **options: Any) -> Any:
    return app.job(isolation="process", **options)(handler)
