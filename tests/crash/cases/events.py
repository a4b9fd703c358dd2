"""What is cut short: waits that begin, events that are sent, and what is forgotten of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Wait
from stepfast.jobs.events import SendEvent, deliver_kept, forget_old_events
from tests.crash.cases.case import Operations
from tests.crash.recovery import effect_of
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.kill_points import Act
    from tests.crash.setup import Scene

NAME = "payment:42"
WAIT = Wait(NAME, timeout="1h", cursor=1)
OPERATIONS = Operations()


@OPERATIONS.once
def begin_to_wait(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    return lambda: scene.end(lease, WAIT)


@OPERATIONS.once
def begin_to_wait_for_what_is_there(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    scene.app.events.send(NAME, "early")
    return lambda: scene.end(lease, WAIT)


@OPERATIONS.once
def begin_to_wait_after_a_cancel(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    scene.change("UPDATE stepfast_job SET cancel_at = 1")
    return lambda: scene.end(lease, WAIT)


@OPERATIONS.repeated
def send_to_one_that_waits(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    scene.end(lease, WAIT)
    return lambda: scene.app.events.send(NAME, "now", id="bank-1")


@OPERATIONS.repeated
def send_to_nobody(scene: Scene) -> Act:
    scene.enqueue()
    return lambda: scene.app.events.send(NAME, "early", id="bank-1")


@OPERATIONS.once
def send_with_a_step(scene: Scene) -> Act:
    first, second = scene.leased(2, steps=2)
    scene.end(first, WAIT)
    effects = [effect_of(second), SendEvent.of(NAME, "from a step", "1d")]
    scene.change(
        "UPDATE stepfast_job SET payload = :payload WHERE id = :id", payload='{"n": 2}', id=second.job_id
    )
    return lambda: scene.end(second, effects=effects)


@OPERATIONS.once
def bring_an_event_and_a_wait_together(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    scene.end(lease, WAIT)
    scene.change(
        "INSERT INTO stepfast_event (name, event_id, sent_at, until_at, payload) VALUES (:name, 'e', 1, :until, '1')",
        name=NAME,
        until=rows.now(scene.app) + rows.HOUR,
    )
    return lambda: scene.do(lambda tx: deliver_kept(tx, NAME))


@OPERATIONS.once
def forget_what_is_over(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    scene.app.events.send("old", 1)
    scene.end(lease, WAIT)
    scene.change("UPDATE stepfast_event SET until_at = 1")
    scene.change("UPDATE stepfast_wait SET until_at = 1")
    scene.change("UPDATE stepfast_event_name SET at = 1")
    return lambda: scene.do(lambda tx: forget_old_events(tx, 10))
