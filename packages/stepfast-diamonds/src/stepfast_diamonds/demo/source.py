"""The source of the demo: a simulator in a process of its own, and the oracle that knows the truth about it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.applications import on_parent_gone
from stepfast.errors import ConfigurationError, StepfastError
from stepfast_diamonds.demo.processes import end_processes
from stepfast_diamonds.query import BASE
from stepfast_diamonds.settings import NivodaSettings
from stepfast_diamonds.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx


# What has been seen of the real API, without its limits, and with a line on which answers get lost. Waits are short,
# so that a newcomer's patience is not what is tested.
FAULTS: Final = (
    "default,requests_per_s=0,concurrency=0,latency_ms=5,overrun_pages=2,reset_prob=0.001,gateway_prob=0.001,"
    "truncated_prob=0.002,partial_prob=0.002,duplicate_prob=0.01,enum_error_prob=0.0001"
)
PAGE_SIZE: Final = 50
PATIENCE: Final = 120.0  # seconds for an answer of the oracle
STONES_PER_CHANGE: Final = 1_000  # of so many, one changes in a minute
# Of the feeds: the clock of the source is moved by hours.
FEED_OPTIONS: Final[dict[str, Any]] = {"ahead_at_most": "1d"}
NATURAL_QUERY: Final = {**BASE, "labgrown": False}  # what the feed of natural stones should find


class Stone(msgspec.Struct):
    """A stone as the oracle knows it, as far as it is compared."""

    id: str
    price: int  # cents
    carats: float
    certificate: str
    shape: str
    color: str
    availability: str


class Change(msgspec.Struct):
    id: str
    kind: str


@dataclass(frozen=True)
class DemoSource:
    """The simulator: the account that a client uses, and what only its oracle can tell and change."""

    account: NivodaSettings
    pid: int
    churn: float  # changes a minute
    _oracle: httpx.Client

    def stones(self) -> Iterator[Stone]:
        """The stones that the feed should find now."""
        read = msgspec.json.Decoder(Stone)
        for line in self._lines("/snapshot", query=msgspec.json.encode(NATURAL_QUERY).decode()):
            yield read.decode(line)

    def changes(self) -> list[Change]:
        """All changes since the start."""
        read = msgspec.json.Decoder(Change)
        return [read.decode(line) for line in self._lines("/changes")]

    def statistics(self) -> dict[str, int]:
        found: dict[str, int] = self._ask("GET", "/statistics")
        return found

    def counts(self) -> int:
        """How many counts were requested so far: a plan is made of them."""
        return self.statistics().get("counts", 0)

    def live(self) -> None:
        """From now on let stones come, go and change their price."""
        self._ask("POST", "/knobs", churn_per_minute=self.churn)

    def rest(self) -> None:
        """From now on let nothing change."""
        self._ask("POST", "/knobs", churn_per_minute=0)

    def advance(self, by: str) -> None:
        """Move the clock of the source, with all changes of that time."""
        self._ask("POST", "/advance", by=by)

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        answer = self._oracle.request(method, path, json=body or None)
        answer.raise_for_status()
        return answer.json()

    def _lines(self, path: str, **given: str) -> Iterator[str]:
        with self._oracle.stream("GET", path, params=given) as answer:
            answer.raise_for_status()
            yield from answer.iter_lines()


@contextmanager
def running_source(stones: int, *, port: int, seed: int, faults: str) -> Iterator[DemoSource]:
    """Start the simulator in a process of its own, and end it in any case."""
    import httpx

    asked = {"profile": str(stones), "port": port, "seed": seed, "faults": faults}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "stepfast_diamonds.demo.source", json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C at the terminal is for us; we end it when we have ended the workers
    )
    try:
        facts = _announced(process)
        account = NivodaSettings(
            url=facts["url"],
            username=facts["username"],
            password=facts["password"],
            rate=0,
            concurrency=0,
            page_size=PAGE_SIZE,
            secret_key=secrets.token_urlsafe(32),  # so that all processes share one token
        )
        with httpx.Client(base_url=facts["oracle"], timeout=PATIENCE, trust_env=False) as oracle:
            yield DemoSource(account, process.pid, stones / STONES_PER_CHANGE, oracle)
    finally:
        end_processes([process])


def _announced(process: subprocess.Popen[str]) -> Any:
    """The line that the child prints when it is ready; if it ends instead, an error that says why."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    assert process.stderr is not None  # noqa: S101 - a pipe
    told = process.stdout.readline()
    if told:
        return json.loads(told)
    lines = process.stderr.read().strip().splitlines()
    if process.wait() == 1 and len(lines) == 1:
        raise ConfigurationError(lines[0])
    raise StepfastError(f"the simulator did not start: {lines[-1] if lines else 'it says nothing'}")


# The process in which the simulator of the demo runs. It ends when the process that started it does.

# Nothing happened for so long before the start: whatever changes, changes during the demo.
QUIET_BEFORE: Final = timedelta(days=1)


def main(arguments: Sequence[str]) -> int:
    """The child process: its argument is the parent's JSON; it prints its addresses as one line of JSON."""
    try:
        simulator = Simulator(**json.loads(arguments[0]), start=datetime.now(UTC) - QUIET_BEFORE)
        simulator.advance(QUIET_BEFORE)
        on_parent_gone(lambda: os.kill(os.getpid(), signal.SIGTERM))
        asyncio.run(simulator.serve(_announce, signals=True))
    except StepfastError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _announce(simulator: Simulator) -> None:
    facts = {
        "url": simulator.url,
        "oracle": f"{simulator.base_url}/oracle",
        "username": simulator.username,
        "password": simulator.password,
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
