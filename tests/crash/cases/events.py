"""Cases of events: waits that begin, events that are sent, and forgetting both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Wait
from stepfast.jobs.events import SendEvent, deliver_kept, forget_old_events
from tests.crash.cases.case import Cases
from tests.crash.recovery import effect_of
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.kill_points import Action
    from tests.crash.setup import Setup

NAME = "payment:42"
WAIT = Wait(NAME, timeout="1h", cursor=1)
CASES = Cases()


@CASES.once
def begin_to_wait(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    return lambda: setup.end(lease, WAIT)


@CASES.once
def begin_to_wait_for_what_is_there(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    setup.app.events.send(NAME, "early")
    return lambda: setup.end(lease, WAIT)


@CASES.once
def begin_to_wait_after_a_cancel(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    setup.change("UPDATE stepfast_job SET cancel_at = 1")
    return lambda: setup.end(lease, WAIT)


@CASES.repeated
def send_to_one_that_waits(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    setup.end(lease, WAIT)
    return lambda: setup.app.events.send(NAME, "now", id="bank-1")


@CASES.repeated
def send_to_nobody(setup: Setup) -> Action:
    setup.enqueue()
    return lambda: setup.app.events.send(NAME, "early", id="bank-1")


@CASES.once
def send_with_a_step(setup: Setup) -> Action:
    first, second = setup.leased(2, steps=2)
    setup.end(first, WAIT)
    effects = [effect_of(second), SendEvent.of(NAME, "from a step", "1d")]
    setup.change(
        "UPDATE stepfast_job SET payload = :payload WHERE id = :id", payload='{"n": 2}', id=second.job_id
    )
    return lambda: setup.end(second, effects=effects)


@CASES.once
def bring_an_event_and_a_wait_together(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    setup.end(lease, WAIT)
    setup.change(
        "INSERT INTO stepfast_event (name, event_id, sent_at, until_at, payload) VALUES (:name, 'e', 1, :until, '1')",
        name=NAME,
        until=rows.now(setup.app) + rows.HOUR,
    )
    return lambda: setup.do(lambda tx: deliver_kept(tx, NAME))


@CASES.once
def forget_what_is_over(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    setup.app.events.send("old", 1)
    setup.end(lease, WAIT)
    setup.change("UPDATE stepfast_event SET until_at = 1")
    setup.change("UPDATE stepfast_wait SET until_at = 1")
    setup.change("UPDATE stepfast_event_name SET at = 1")
    return lambda: setup.do(lambda tx: forget_old_events(tx, 10))
