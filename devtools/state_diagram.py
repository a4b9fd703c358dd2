"""States as diagrams and tables, from the tables of arrows in `jobs/state.py`, `runs/run.py`,
`runs/partition.py` and `runs/quarantine.py`.

`docs/reference/states.md` and `docs/reference/run-states.md` include them through cog; `make golden` rewrites both, and
a test says when one is old.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TypeVar

from stepfast.jobs.state import ENDED, LIVE, TRANSITIONS, JobState
from stepfast.runs.partition import ENDED_PARTITION, PARTITION_TRANSITIONS, PartitionState
from stepfast.runs.quarantine import QUARANTINE_TRANSITIONS, QuarantineState
from stepfast.runs.run import ENDED_RUN, RUN_TRANSITIONS, RunState

BEGINNINGS = {
    JobState.READY: "enqueue",
    JobState.SCHEDULED: "enqueue for later",
    JobState.WAITING: "enqueue after others",
}
S = TypeVar("S", bound=StrEnum)
_MEMBER = re.compile(r'^    [A-Z_]+ = "(\w+)"  # (.+)$', re.MULTILINE)


def mermaid() -> str:
    """The states of a job."""
    return _diagram(BEGINNINGS, TRANSITIONS)


def table() -> str:
    """Every state of a job, what it means, and which table its rows are in."""
    homes = dict.fromkeys(LIVE, "`stepfast_job`") | dict.fromkeys(ENDED, "`stepfast_archive`")
    rows = [f"| `{state}` | {meaning} | {homes[JobState(state)]} |" for state, meaning in _meanings(JobState)]
    return "\n".join(["| state | meaning | row in |", "|---|---|---|", *rows, ""])


def of_runs() -> str:
    """The states of a run: the diagram, and what each means."""
    return _with_meanings({RunState.PLANNING: "start"}, RUN_TRANSITIONS, RunState, ENDED_RUN)


def of_partitions() -> str:
    """The states of a partition: the diagram, and what each means."""
    planned = {PartitionState.READY: "planned"}
    return _with_meanings(planned, PARTITION_TRANSITIONS, PartitionState, ENDED_PARTITION)


def of_quarantine() -> str:
    """The states of an entry in quarantine: the diagram, and what each means."""
    refused = {QuarantineState.OPEN: "row refused"}
    settled = [it for it in QuarantineState if it not in (QuarantineState.OPEN, QuarantineState.REPLAYING)]
    return _with_meanings(refused, QUARANTINE_TRANSITIONS, QuarantineState, settled)


def _with_meanings(
    beginnings: Mapping[S, str],
    arrows: Mapping[S, Mapping[S, str]],
    members: type[S],
    ended: Collection[S],
) -> str:
    rows = [
        f"| `{state}` | {meaning} | {'yes' if members(state) in ended else ''} |"
        for state, meaning in _meanings(members)
    ]
    return "\n".join(
        [_diagram(beginnings, arrows), "| state | meaning | ended |", "|---|---|---|", *rows, ""]
    )


def _diagram(beginnings: Mapping[S, str], transitions: Mapping[S, Mapping[S, str]]) -> str:
    """Every arrow, with the verb that is its reason."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}: {verb}" for state, verb in beginnings.items()]
    lines += [
        f"    {state} --> {following}: {verb}"
        for state, arrows in transitions.items()
        for following, verb in arrows.items()
    ]
    lines += [f"    {state} --> [*]" for state, arrows in transitions.items() if not arrows]
    return "\n".join([*lines, "```", ""])


def _meanings(members: type[StrEnum]) -> list[tuple[str, str]]:
    """Every member with the comment that stands beside it."""
    found = dict(_MEMBER.findall(inspect.getsource(members)))
    return [(state.value, found[state.value]) for state in members]


if __name__ == "__main__":
    import sys

    sys.stdout.write(mermaid() + "\n" + table())
