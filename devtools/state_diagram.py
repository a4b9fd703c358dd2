"""The states of a job as a diagram and a table, from the one table of arrows in `steps/job.py`.

`docs/reference/states.md` includes both through cog; `make golden` rewrites it, and a test says when it is old.
"""

from __future__ import annotations

import inspect
import re

from holdfast.steps import job
from holdfast.steps.job import ENDED, LIVE, TRANSITIONS, JobState

BEGINNINGS = {JobState.READY: "enqueue", JobState.SCHEDULED: "enqueue for later"}
_MEMBER = re.compile(r'^    [A-Z]+ = "(\w+)"  # (.+)$', re.MULTILINE)


def mermaid() -> str:
    """Every arrow, with the verb that is its reason."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}: {verb}" for state, verb in BEGINNINGS.items()]
    lines += [
        f"    {state} --> {following}: {verb}"
        for state, arrows in TRANSITIONS.items()
        for following, verb in arrows.items()
    ]
    lines += [f"    {state} --> [*]" for state, arrows in TRANSITIONS.items() if not arrows]
    return "\n".join([*lines, "```", ""])


def table() -> str:
    """Every state, what it means, and which table its rows are in."""
    meanings = dict(_MEMBER.findall(inspect.getsource(job)))
    homes = dict.fromkeys(LIVE, "`holdfast_job`") | dict.fromkeys(ENDED, "`holdfast_archive`")
    rows = [f"| `{state}` | {meanings[state]} | {homes[state]} |" for state in JobState]
    return "\n".join(["| state | meaning | row in |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    import sys

    sys.stdout.write(mermaid() + "\n" + table())
