"""What is cut short, third part: asking the limits, and letting go what they held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Concurrency, Done, Rate
from stepfast.jobs.commit import commit
from stepfast.limits.slots import LimitedStep, admit, pass_on_slots, release_due
from tests.crash.cases.case import Operations
from tests.crash.recovery import effect_of

if TYPE_CHECKING:
    from stepfast import Transaction
    from stepfast.jobs.lease import Lease
    from stepfast.limits.limit import Limit
    from tests.crash.kill_points import Act
    from tests.crash.setup import Scene

OPERATIONS = Operations()
TWO: tuple[tuple[str, Limit], ...] = (
    ("slots:two", Concurrency(2)),
    ("rate:ten", Rate(10, per="1h", burst=3)),
)


def ask(tx: Transaction, leases: list[Lease]) -> None:
    admit(tx, [LimitedStep(lease.job_id, TWO) for lease in leases], leases[0].fence)


@OPERATIONS.once
def ask_for_three_where_two_may_start(scene: Scene) -> Act:
    leases = scene.leased(3)
    return lambda: scene.do(lambda tx: ask(tx, leases))


@OPERATIONS.once
def end_a_step_and_hand_its_slot_over(scene: Scene) -> Act:
    leases = scene.leased(3)
    scene.do(lambda tx: ask(tx, leases))

    def end(tx: Transaction) -> None:
        commit(tx, leases[0], Done(), [effect_of(leases[0])])
        pass_on_slots(tx, [leases[0].job_id], leases[0].fence, {"slots:two": 1})

    return lambda: scene.do(end)


@OPERATIONS.once
def let_go_what_a_rate_held(scene: Scene) -> Act:
    leases = scene.leased(5)
    scene.do(lambda tx: admit(tx, [LimitedStep(it.job_id, TWO[1:]) for it in leases], leases[0].fence))
    scene.change("UPDATE stepfast_limit SET due_at = 1, arrival_at = 1 WHERE due_at IS NOT NULL")
    return lambda: scene.do(release_due)
