"""Cases of limits: admission, handing a slot over, releasing held jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Concurrency, Done, Rate
from stepfast.jobs.commit import commit
from stepfast.limits.limit_rows import LimitedStep, admit, pass_on_slots, release_due
from tests.crash.cases.case import Cases
from tests.crash.recovery import effect_of

if TYPE_CHECKING:
    from stepfast import Transaction
    from stepfast.jobs.lease import Lease
    from stepfast.limits.limit import Limit
    from tests.crash.kill_points import Action
    from tests.crash.setup import Setup

CASES = Cases()
TWO: tuple[tuple[str, Limit], ...] = (
    ("slots:two", Concurrency(2)),
    ("rate:ten", Rate(10, per="1h", burst=3)),
)


def ask(tx: Transaction, leases: list[Lease]) -> None:
    admit(tx, [LimitedStep(lease.job_id, TWO) for lease in leases], leases[0].fence)


@CASES.once
def ask_for_three_where_two_may_start(setup: Setup) -> Action:
    leases = setup.leased(3)
    return lambda: setup.do(lambda tx: ask(tx, leases))


@CASES.once
def end_a_step_and_hand_its_slot_over(setup: Setup) -> Action:
    leases = setup.leased(3)
    setup.do(lambda tx: ask(tx, leases))

    def end(tx: Transaction) -> None:
        commit(tx, leases[0], Done(), [effect_of(leases[0])])
        pass_on_slots(tx, [leases[0].job_id], leases[0].fence, {"slots:two": 1})

    return lambda: setup.do(end)


@CASES.once
def let_go_what_a_rate_held(setup: Setup) -> Action:
    leases = setup.leased(5)
    setup.do(lambda tx: admit(tx, [LimitedStep(it.job_id, TWO[1:]) for it in leases], leases[0].fence))
    setup.change("UPDATE stepfast_limit SET due_at = 1, arrival_at = 1 WHERE due_at IS NOT NULL")
    return lambda: setup.do(release_due)
