"""The application that worker processes of the crash tests run: `tests.crash.jobs:app`.

Handlers write what happens to them into a journal that outlives them, and wait for files that a test creates.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import multiprocessing
import os
import resource
import time
from functools import partial
from pathlib import Path
from typing import Any

from stepfast import (
    Concurrency,
    Continue,
    Done,
    LeaseLostError,
    Retry,
    Step,
    StepCancelled,
    Stepfast,
    StepfastError,
    Transaction,
    effect,
)

FOLDER = Path(os.environ["STEPFAST_TEST_FOLDER"])
LOOK = 0.005  # seconds between looks for a file
PATIENCE = 20.0  # seconds; only a test that fails waits so long

# Seconds that a test cannot wait for; defaults are measured where the default is the promise.
for _name, _value in json.loads(os.environ.get("STEPFAST_TEST_CONSTANTS", "{}")).items():
    _module, _, _constant = _name.rpartition(".")
    setattr(importlib.import_module(_module), _constant, _value)

app = Stepfast()
_journal = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(event: str, step: Step, **facts: Any) -> None:
    """One write of one line: whole, or not there."""
    line = {
        "event": event,
        "job": step.job_id,
        "step": step.number,
        "attempt": step.attempt,
        "worker": step.worker_id,
        "pid": os.getpid(),
        "at": time.monotonic(),
        **facts,
    }
    os.write(_journal, (json.dumps(line) + "\n").encode())


def leave_effect(step: Step) -> None:
    """A row of the user's own in the step's commit; nothing in its table would refuse a second one."""
    step.effect(partial(write_effect, job_id=step.job_id, number=step.number))


@effect
def write_effect(tx: Transaction, *, job_id: str, number: int) -> None:
    tx.execute(
        "INSERT INTO effect (job_id, step) VALUES (:job_id, :step)", {"job_id": job_id, "step": number}
    )


@app.job()
async def brief(step: Step, n: int = 0) -> None:
    """A fast job with an effect."""
    note("started", step, n=n)
    leave_effect(step)


@app.job()
async def plain(n: int = 0) -> int:
    """A fast job without any effect: these are acknowledged together."""
    return n


@app.job()
async def hold(step: Step, gate: str, stubborn: bool = False) -> None:  # noqa: FBT001, FBT002 - a payload field
    """Work until the file `gate` exists; a stubborn one ignores its cancellation."""
    note("started", step)
    try:
        await _pass(gate, step)
    except asyncio.CancelledError:
        note("told", step, why=step.halted)
        if not stubborn:
            raise
        await _pass(gate, step)
    leave_effect(step)
    note("answered", step)


@app.job(retry=Retry(attempts=1))
async def enqueue_plain(step: Step, gate: str) -> None:
    """Enqueue a job, once the file `gate` exists."""
    note("started", step)
    await _pass(gate, step)
    try:
        await plain.enqueue_async()
    except StepfastError:
        note("outage", step)
        raise


@app.job(limits=[Concurrency(2)])
async def narrow(step: Step, gate: str) -> None:
    """Like `hold`, but two at a time."""
    note("started", step)
    await _pass(gate, step)
    leave_effect(step)


@app.job()
def hold_in_thread(step: Step, gate: str) -> None:
    """Like `hold`, as plain code that is cancelled through `step.wait`."""
    note("started", step)
    try:
        while not is_open(gate, step):
            step.wait(LOOK)
    except (LeaseLostError, StepCancelled) as told:
        note("told", step, why=type(told).__name__)
        raise
    leave_effect(step)
    note("answered", step)


@app.job()
async def pages(step: Step, count: int, seconds: float = 0.0) -> Done | Continue:
    """As many steps, each with an effect."""
    note("started", step)
    await asyncio.sleep(seconds)
    leave_effect(step)
    return Done() if step.number + 1 >= count else Continue(step.number + 1)


@app.job()
async def compute(step: Step, gate: str) -> None:
    """Computes on the event loop until the file `gate` exists: no other coroutine runs, and none is interrupted."""
    note("started", step)
    while not is_open(gate, step):
        sum(range(1_000))
    note("answered", step)


@app.job()
async def stop_loop(step: Step) -> None:
    """Stops the event loop, which is the worker's."""
    note("started", step)
    asyncio.get_running_loop().stop()
    await asyncio.sleep(LOOK)
    leave_effect(step)


@app.job()
def pool(step: Step) -> list[int]:
    """Forks children and ends them by SIGTERM, as `with Pool` does."""
    note("started", step)
    forking = multiprocessing.get_context("fork")
    with forking.Pool(2) as children:
        found = children.map(abs, [-1, -2, -3])
    one = forking.Process(target=time.sleep, args=(3_600,))
    one.start()
    one.terminate()
    one.join(PATIENCE)
    note("answered", step, code=one.exitcode)
    one.kill()
    return found


@app.job()
async def abort(step: Step) -> None:
    """The poison."""
    note("started", step)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


@app.job(timeout="200ms", retry=Retry(attempts=1))
async def hang_elsewhere(step: Step) -> None:
    """Ends in time itself, but leaves a thread that never does."""
    note("started", step)
    await asyncio.to_thread(time.sleep, 3_600)


@app.job(timeout="200ms", retry=Retry(attempts=1))
async def block(step: Step, gate: str) -> None:
    """Blocks the event loop, and all handlers on it."""
    note("started", step)
    while not is_open(gate, step):
        time.sleep(LOOK)  # noqa: ASYNC251 - the mistake that this job is about


@app.job(timeout="200ms", retry=Retry(attempts=1))
def ignore_timeout(step: Step, gate: str) -> None:
    """A thread that looks at no clock and no cancellation."""
    note("started", step)
    while not is_open(gate, step):
        time.sleep(LOOK)
    note("answered", step)


def is_open(gate: str, step: Step) -> bool:
    """The gate is open to all, or to this try of the step."""
    return (FOLDER / gate).exists() or (FOLDER / f"{gate}-{step.attempt}").exists()


async def _pass(gate: str, step: Step) -> None:
    while not is_open(gate, step):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(LOOK)


@app.job()
def keep_interpreter(step: Step, seconds: float) -> None:
    """Compute without letting any other thread have a turn, as a slow regular expression does; the first time only."""
    note("started", step)
    if step.attempt == 1:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    leave_effect(step)
    note("answered", step)


@app.job(timeout="500ms", retry=Retry(attempts=1))
def keep_interpreter_too_long(step: Step, seconds: float) -> None:
    """The same, past its timeout."""
    note("started", step)
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    note("answered", step)


@app.job(timeout="500ms", retry=Retry(attempts=1))
async def keep_event_loop_too_long(seconds: float) -> None:
    """The same on the event loop, where fast steps run before and after it."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@app.job()
def leave_an_orphan(step: Step, gate: str) -> None:
    """Leave a process behind whose parent has ended: the first process of the system gets it."""
    if not (parent := os.fork()):
        if not os.fork():
            while not is_open(gate, step):
                time.sleep(LOOK)
        os._exit(0)
    os.waitpid(parent, 0)


@app.job()
def leave_a_copy(step: Step, gate: str) -> None:
    """Fork a process that holds all our sockets, and goes on when we are gone."""
    copy = os.fork()
    if not copy:
        while not is_open(gate, step):
            time.sleep(LOOK)
        os._exit(0)
    note("started", step, copy=copy)
    while not is_open(gate, step):
        step.wait(LOOK)
    leave_effect(step)
