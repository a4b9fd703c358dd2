"""The application of the journeys: handlers that stand in for those of documents, and note what they did in a file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Any

from stepfast import Retry, Snooze, Step, Stepfast

app = Stepfast()


def note(text: str) -> None:
    """One line at once: other processes write here too."""
    descriptor = os.open(os.environ["JOURNEY_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def _notes() -> str:
    return Path(os.environ["JOURNEY_NOTES"]).read_text()


@app.task("ingest")
async def ingest(step: Step, filename: str, document_set: str) -> dict[str, Any]:
    note(f"ingest {filename}")
    step.effect(lambda tx: tx.execute("INSERT INTO chunks (id) VALUES (:id)", {"id": filename}))
    return {"filename": filename, "document_set": document_set, "chunks": 3}


@app.task("summarize")
def summarize(filename: str) -> str:
    note(f"summarize {filename}")
    return f"a summary of {filename}"


@app.job(queue="index")
def index_chunk(name: str, more: int) -> None:
    note(f"index {name} {more}")
    if more:
        index_chunk.enqueue(name=name, more=more - 1)


@app.job(queue="index")
def crash_once(name: str) -> None:
    note(f"crash {name}")
    if _notes().count("crash") == 1:
        os.abort()


@app.task("divide")
def divide(filename: str, more: int = 0, delay: str = "0s", job: str = "index") -> str:
    note(f"divide {filename}")
    if job == "crash":
        crash_once.enqueue(name=filename)
    else:
        index_chunk.enqueue(name=filename, more=more, delay=delay)
    return "divided"


@app.task("gather")
def gather(step: Step, filename: str) -> Snooze | str:
    """Goes on when its job has ended."""
    if step.number == 0 and "gather" not in _notes():
        note("gather begins")
        index_chunk.enqueue(name=filename, more=0)
    return "gathered" if f"index {filename} 0" in _notes() else Snooze("200ms")


@app.task("fail", retry=Retry(attempts=1))
def fail(message: str) -> None:
    note("fail")
    raise ValueError(message)


@app.task("flaky", retry=Retry(attempts=4, first="100ms", factor=3))
async def flaky(times: int) -> str:
    tries = _notes().count("flaky")
    note(f"flaky {time.monotonic()}")
    if tries < times:
        raise ConnectionError("connection reset by peer")
    return f"worked after {tries}"


@app.task("patient", retry=Retry(attempts=5, first="1h"))
def patient() -> None:
    note("patient")
    raise ConnectionError("try again in an hour")


@app.task("sleep")
async def sleep(seconds: float) -> str:
    note("sleep begins")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("sleep is told to stop")
        raise
    note("sleep ends")
    return "slept"


@app.task("deaf")
def deaf(seconds: float) -> None:
    note("deaf begins")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)  # whatever anybody says


@app.task("stubborn")
def stubborn(seconds: int) -> None:
    note("stubborn begins")
    ctypes.PyDLL(None).sleep(seconds)  # in C, and nobody else in this process has a turn


@app.task("abort")
def abort() -> None:
    note("abort")
    os.abort()


@app.task("start-up")
def start_up() -> float:
    """Seconds of processor time that this process and its parent took to come here."""
    ticks = os.sysconf("SC_CLK_TCK")
    stat = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / ticks + time.process_time()
