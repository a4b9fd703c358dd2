"""The intake acknowledges a message only after the database has its task; a message that is no task blocks no other."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import PermanentError, Retry, Step, Stepfast
from stepfast.errors import TransientError, UnreachableError
from stepfast.tasks import intake as intakes
from stepfast.tasks import store as storing
from stepfast.tasks.envelope import own_queue, queue_of
from stepfast.tasks.held_messages import HeldMessages, sent_anew
from stepfast.tasks.intake import Intake
from stepfast.tasks.store import Origin, accept_task, adopt_tasks, read_task
from stepfast.transports.contract import TransportRefusedError, TransportUnavailableError
from stepfast.transports.memory import MemoryBroker, MemoryTransport
from tests.support import rows
from tests.support.broker import CLIENT, QUEUE, polling, task_message
from tests.support.broker import TaskQueue as Broker
from tests.support.engine import take
from tests.support.events import hearing, named
from tests.support.http_receiver import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.transports.contract import Delivery
    from tests.support.http_receiver import HttpReceiver

pytestmark = (
    pytest.mark.sampled
)  # the databases differ in what test_tasks tries; here it is the broker's turn
BOTH = pytest.mark.parametrize("acknowledge", ["stored", "ended"])


@pytest.fixture
def broker() -> Broker:
    return Broker(MemoryBroker())


@pytest.fixture
def telling(database_url: str) -> Iterator[Stepfast]:
    """An application whose webhooks reach the receiver."""
    app = Stepfast(database_url, notifications=SETTINGS)
    yield app
    app.close()


class Gate:
    """A handler that waits for the test."""

    def __init__(self, app: Stepfast) -> None:
        self.entered, self.opened, self.runs = threading.Event(), threading.Event(), 0

        @app.task("gate")
        def gate(step: Step) -> str:
            self.runs += 1
            self.entered.set()
            while not self.opened.is_set():
                step.wait(0.01)
            return "through"


def jobs(app: Stepfast, state: str) -> int:
    return rows.count(app, "stepfast_archive", f"state = '{state}'")


@BOTH
def test_tasks_of_the_clients_queue_are_done_and_their_messages_go(
    app: Stepfast, broker: Broker, acknowledge: Any
) -> None:
    @app.task("add")
    async def add(n: int) -> int:
        return n + 1

    broker.send(*(task_message("add", f"t-{n}", n=n) for n in range(40)))
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: jobs(app, "done") == 40 and broker.empty)

    assert not broker.dead()


@BOTH
def test_each_type_goes_to_its_handler(app: Stepfast, broker: Broker, acknowledge: Any) -> None:
    seen: list[str] = []

    @app.task("ingest")
    def ingest(filename: str) -> None:
        seen.append(f"ingest {filename}")

    @app.task("summarize")
    def summarize(filename: str) -> None:
        seen.append(f"summarize {filename}")

    broker.send(task_message("ingest", "1", filename="a"), task_message("summarize", "2", filename="b"))
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: len(seen) == 2)

    assert sorted(seen) == ["ingest a", "summarize b"]


def test_where_others_see_the_database_a_message_goes_when_its_job_is_stored(
    app: Stepfast, broker: Broker
) -> None:
    gate = Gate(app)
    broker.task("gate")
    with polling(app, broker):
        assert gate.entered.wait(20)
        rows.eventually(lambda: broker.empty)
        gate.opened.set()
        rows.eventually(lambda: jobs(app, "done"))


def test_where_nobody_else_does_it_is_held_until_the_task_has_ended(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.task("gate")
    with polling(app, broker, "ended"):
        assert gate.entered.wait(20)
        assert (broker.depth().ready, broker.depth().held) == (0, 1)
        gate.opened.set()
        rows.eventually(lambda: broker.empty)

    assert jobs(app, "done") == 1


def test_it_is_held_until_whoever_asked_has_been_told(
    telling: Stepfast, broker: Broker, receiver: HttpReceiver
) -> None:
    @telling.task("quick")
    def quick() -> str:
        return "done"

    from tests.support.http_receiver import Answer

    answering = threading.Event()
    receiver.answer = lambda _: Answer(before=lambda: answering.wait(20))
    broker.task("quick", webhook_url=receiver.url())
    with polling(telling, broker, "ended"):
        rows.eventually(lambda: receiver.received)
        time.sleep(0.3)  # whoever lets go too early has done so by now
        assert jobs(telling, "done") == 1
        assert broker.depth().held == 1
        answering.set()
        rows.eventually(lambda: broker.empty)

    assert [it["status"] for it in receiver.bodies] == ["completed"]


def test_a_held_message_is_renewed_for_as_long_as_its_task_takes(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.task("gate")
    with polling(app, broker, "ended", hold=timedelta(seconds=1)):
        assert gate.entered.wait(20)
        time.sleep(2.5)  # longer than one hold
        (kept,) = broker.memory.queues[QUEUE].live.kept.values()
        assert kept.attempt == 1  # nobody got it a second time, not even we
        gate.opened.set()
        rows.eventually(lambda: broker.empty)

    assert gate.runs == 1


def test_a_message_that_was_lost_is_left_alone_and_the_database_decides(
    app: Stepfast, broker: Broker
) -> None:
    gate = Gate(app)
    broker.task("gate")
    with polling(app, broker, "ended", hold=timedelta(seconds=1)):
        assert gate.entered.wait(20)
        (kept,) = broker.memory.queues[QUEUE].live.kept.values()
        kept.turn += 1  # another received it
        time.sleep(0.6)  # a renewal was refused meanwhile
        gate.opened.set()
        rows.eventually(lambda: jobs(app, "done"))

    assert gate.runs == 1
    assert len(broker.memory.queues[QUEUE].live.kept) == 1  # it is the other's to end


@BOTH
def test_the_same_task_twice_is_done_once_and_both_messages_go(
    app: Stepfast, broker: Broker, acknowledge: Any
) -> None:
    gate = Gate(app)
    broker.task("gate", number=1)
    broker.task("gate", number=2)
    with polling(app, broker, acknowledge):
        assert gate.entered.wait(20)
        broker.task("gate", number=3)
        gate.opened.set()
        rows.eventually(lambda: jobs(app, "done"))
        broker.task("gate", number=4)
        rows.eventually(lambda: broker.empty)

    assert gate.runs == 1


@BOTH
def test_what_is_no_task_is_put_aside_with_the_reason_and_blocks_nobody(
    app: Stepfast, broker: Broker, acknowledge: Any
) -> None:
    @app.task("good")
    def good() -> None: ...

    broker.send("garbage", task_message("unknown", "t-2"), task_message("good", "t-3"))
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: jobs(app, "done") == 1 and broker.empty)

    reasons = sorted((it.id, it.dead_reason, it.dead_detail[:20]) for it in broker.dead())
    assert reasons == [("m-1", "refused", "it is no JSON (JSON "), ("m-2", "refused", "no handler for task ")]
    assert len(app.operator.dead_letters()) == 2


@BOTH
def test_what_a_database_does_not_take_blocks_nobody_either(
    app: Stepfast, broker: Broker, acknowledge: Any
) -> None:
    seen: list[str] = []

    @app.task("good")
    def good(name: str = "") -> None:
        seen.append(name)

    halves = '{"task_id": "t-1", "task_type": "good", "payload": {"name": "\\ud800", "n": "\\u0000"}}'
    broker.send(halves, task_message("good", "t-2", name="whole"), "\x01garbage")
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: "whole" in seen and broker.empty)

    assert len(broker.dead()) >= 1


def test_a_message_that_cannot_even_be_refused_is_left_to_the_broker(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("says a test")

    monkeypatch.setattr(storing, "store_all", broken)
    monkeypatch.setattr(storing, "refuse_message", broken)
    broker.send("one", "two")
    with polling(app, broker):
        rows.eventually(lambda: broker.empty)

    assert [it.dead_detail for it in broker.dead()] == ["it cannot be stored: ValueError: says a test"] * 2


def test_a_task_that_dies_is_put_aside_where_its_message_is_held(app: Stepfast, broker: Broker) -> None:
    @app.task("dies")
    def dies() -> None:
        raise PermanentError("no such file")

    broker.task("dies")
    with polling(app, broker, "ended"):
        rows.eventually(lambda: broker.empty)

    (dead,) = broker.dead()
    assert (dead.dead_reason, dead.dead_detail) == ("PermanentError", "PermanentError: no such file")
    assert len(app.operator.dead_letters()) == 1


def test_a_task_that_an_operator_cancels_takes_its_message_along(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.task("gate")
    with polling(app, broker, "ended"):
        assert gate.entered.wait(20)
        (row,) = rows.query(app, "SELECT id FROM stepfast_job")
        app.operator.cancel(row["id"])
        rows.eventually(lambda: broker.empty)

    assert not broker.dead()


@BOTH
def test_a_passing_error_is_tried_again_with_growing_pauses(
    telling: Stepfast, broker: Broker, receiver: HttpReceiver, acknowledge: Any
) -> None:
    tries: list[float] = []

    @telling.task("flaky", retry=Retry(attempts=3, first="50ms"))
    def flaky() -> None:
        tries.append(time.monotonic())
        raise ConnectionError("the network is away")

    broker.task("flaky", webhook_url=receiver.url())
    with polling(telling, broker, acknowledge):
        rows.eventually(lambda: receiver.received and broker.empty)

    assert len(tries) == 3
    assert [(it["status"], it["attempts"]) for it in receiver.bodies] == [("failed", 3)]
    assert len(broker.dead()) == (1 if acknowledge == "ended" else 0)


def test_an_outage_elsewhere_costs_no_try(app: Stepfast, broker: Broker) -> None:
    tries: list[int] = []

    @app.task("waits", retry=Retry(attempts=1))
    def waits() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise TransientError("busy", delay=0)

    broker.task("waits")
    with polling(app, broker):
        rows.eventually(lambda: jobs(app, "done"))

    assert len(tries) == 3


@BOTH
def test_nothing_is_let_go_while_the_database_does_not_answer(
    app: Stepfast, broker: Broker, acknowledge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, refusals = threading.Event(), []
    away.set()
    persist: Any = vars(storing)["persist"]

    def unreachable(*arguments: Any, **options: Any) -> Any:
        if away.is_set():
            refusals.append(1)
            raise UnreachableError("no connection, says a test")
        return persist(*arguments, **options)

    monkeypatch.setattr(storing, "persist", unreachable)
    monkeypatch.setattr(intakes, "OUTAGE", 0.05)
    monkeypatch.setattr(intakes, "LONGEST_OUTAGE", 0.05)

    @app.task("good")
    def good() -> None: ...

    broker.task("good")
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: len(refusals) > 3)
        assert (broker.depth().ready, broker.depth().held) == (0, 1)
        away.clear()
        rows.eventually(lambda: jobs(app, "done") and broker.empty)


@pytest.mark.only_on("postgresql")
def test_a_database_that_takes_no_writes_blames_no_message(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover, on the server that is the standby now: otherwise the whole queue would be put aside."""
    standby, refusals = threading.Event(), []
    standby.set()
    persist: Any = vars(storing)["persist"]

    def writing(database: Any, work: Any) -> Any:
        def read_only(tx: Any) -> Any:
            refusals.append(1)
            tx.execute("SET TRANSACTION READ ONLY", {})
            return work(tx)

        return persist(database, read_only if standby.is_set() else work)

    monkeypatch.setattr(storing, "persist", writing)
    monkeypatch.setattr(intakes, "OUTAGE", 0.05)
    monkeypatch.setattr(intakes, "LONGEST_OUTAGE", 0.05)

    @app.task("good")
    def good() -> None: ...

    broker.send(*(task_message("good", f"t-{n}") for n in range(5)))
    with polling(app, broker):
        rows.eventually(lambda: len(refusals) > 6)
        assert not broker.dead()
        standby.clear()
        rows.eventually(lambda: jobs(app, "done") == 5 and broker.empty)

    assert not broker.dead()


def test_a_message_is_refused_however_often_the_database_is_away_meanwhile(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def broken(*_: object, **__: object) -> None:
        raise ValueError("says a test")

    def away(*_: object) -> None:
        tries.append(1)
        raise UnreachableError("no connection") if len(tries) < 3 else ValueError("says a test")

    monkeypatch.setattr(storing, "store_all", broken)
    monkeypatch.setattr(storing, "refuse_message", away)
    monkeypatch.setattr(intakes, "OUTAGE", 0.05)
    broker.send("one")
    with polling(app, broker):
        rows.eventually(lambda: broker.empty)

    assert len(broker.dead()) == 1


@pytest.mark.parametrize(("part", "method"), [(Intake, "_end_settled"), (HeldMessages, "_renew")])
def test_what_breaks_by_surprise_goes_on(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch, part: Any, method: str
) -> None:
    honest, calls = getattr(part, method), []

    async def surprising(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("says a test")
        return await honest(*given)

    monkeypatch.setattr(part, method, surprising)
    monkeypatch.setattr(intakes, "OUTAGE", 0.05)
    gate = Gate(app)
    broker.task("gate")
    with polling(app, broker, "ended", hold=timedelta(seconds=1)):
        rows.eventually(lambda: len(calls) > 1)
        gate.opened.set()
        rows.eventually(lambda: broker.empty)

    assert jobs(app, "done") == 1


def test_a_broker_that_goes_away_comes_back(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "OUTAGE", 0.05)
    monkeypatch.setattr(intakes, "LONGEST_OUTAGE", 0.05)

    @app.task("good")
    def good() -> None: ...

    broker.memory.away = True
    with polling(app, broker):
        broker.memory.away = False
        broker.task("good")
        rows.eventually(lambda: jobs(app, "done"))


def test_the_end_of_an_outage_is_reported_of_what_was_away(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    away.set()
    persist: Any = vars(storing)["persist"]

    def unreachable(*arguments: Any, **options: Any) -> Any:
        if away.is_set():
            raise UnreachableError("no connection, says a test")
        return persist(*arguments, **options)

    monkeypatch.setattr(storing, "persist", unreachable)
    monkeypatch.setattr(intakes, "OUTAGE", 0.05)
    monkeypatch.setattr(intakes, "LONGEST_OUTAGE", 0.05)
    monkeypatch.setattr(intakes, "LONG_WAIT", timedelta(seconds=0.05))

    @app.task("good")
    def good() -> None: ...

    broker.task("good")
    with hearing() as told, polling(app, broker):
        rows.eventually(lambda: named(told, "database.lost"))
        away.clear()
        rows.eventually(lambda: jobs(app, "done") and broker.empty)
        recovered = named(told, "database.recovered")
        broker.memory.away = True
        rows.eventually(lambda: named(told, "broker.lost"))
        broker.memory.away = False
        rows.eventually(lambda: named(told, "broker.recovered"))

    assert recovered == [{"note": "tasks are taken"}]
    assert len(named(told, "database.lost")) == len(named(told, "database.recovered")) == 1
    assert len(named(told, "broker.lost")) == len(named(told, "broker.recovered")) == 1


def test_a_broker_that_refuses_us_is_told_to_whoever_starts(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TransportRefusedError("memory", "wrong key")

    monkeypatch.setattr(MemoryTransport, "ensure", refuse)

    with pytest.raises(TransportRefusedError, match="wrong key"), polling(app, broker):
        pass


def test_a_worker_that_stops_finishes_what_runs_and_gives_back_the_rest(
    app: Stepfast, broker: Broker
) -> None:
    gate = Gate(app)
    broker.send(*(task_message("gate", f"t-{n}") for n in range(3)))
    with polling(app, broker, "ended", concurrency=1) as intake:
        assert gate.entered.wait(20)
        rows.eventually(lambda: broker.depth().held)
        intake.stop_taking()
        gate.opened.set()

    assert gate.runs >= 1
    assert rows.count(app, "stepfast_archive") == gate.runs
    depth = broker.depth()
    assert (depth.ready, depth.held) == (3 - gate.runs, 0)


def test_no_more_is_taken_than_can_be_worked_on_soon(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.send(*(task_message("gate", f"t-{n}") for n in range(30)))
    with polling(app, broker, concurrency=2):
        assert gate.entered.wait(20)
        rows.eventually(lambda: rows.count(app, "stepfast_job", "state = 'ready'") >= 4)
        time.sleep(0.3)
        assert rows.count(app, "stepfast_job") <= 2 + 2 * 2 + 4
        assert broker.depth().ready >= 20
        gate.opened.set()
        rows.eventually(lambda: jobs(app, "done") == 30)


def test_what_is_held_until_its_end_is_taken_only_by_who_is_free(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.send(*(task_message("gate", f"t-{n}") for n in range(10)))
    with polling(app, broker, "ended", concurrency=2):
        rows.eventually(lambda: gate.runs == 2)
        time.sleep(0.3)  # whoever takes too many has done so by now
        assert (broker.depth().held, broker.depth().ready) == (2, 8)
        gate.opened.set()
        rows.eventually(lambda: jobs(app, "done") == 10 and broker.empty)


def waiting(
    app: Stepfast,
    broker: Broker,
    *,
    once: bool = False,
    hold: timedelta = timedelta(minutes=1),
    transport: MemoryTransport | None = None,
) -> intakes.Intake:
    """An intake that holds a message, and no worker."""
    settings = intakes.IntakeSettings(client=CLIENT, acknowledge="ended", concurrency=1, once=once, hold=hold)
    taking = transport or MemoryTransport(broker.memory)
    intake = intakes.Intake(app, taking, settings, ended=lambda: None)
    intake.start()
    rows.eventually(lambda: rows.count(app, "stepfast_job") == 1 and broker.depth().held == 1)
    return intake


class Silent(MemoryTransport):
    """Lets us in, and hands out nothing."""

    open_doors = 0

    async def open(self) -> None:
        self.open_doors += 1
        await super().open()

    async def close(self) -> None:
        self.open_doors -= 1
        await super().close()

    async def receive(self, *_: Any, **__: Any) -> list[Delivery]:
        raise TransportUnavailableError("memory", "no answer")


@pytest.mark.parametrize("lets_us_in", [True, False])
def test_whoever_wants_one_message_does_not_wait_for_a_broker_for_ever(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch, *, lets_us_in: bool
) -> None:
    monkeypatch.setattr(intakes, "MOST_PATIENT", 0.05)
    monkeypatch.setattr(intakes, "OUTAGE", 0.02)
    broker.memory.away = not lets_us_in
    settings = intakes.IntakeSettings(client=CLIENT, acknowledge="ended", concurrency=1, once=True)
    ended = threading.Event()
    transport = Silent(broker.memory)
    intake = intakes.Intake(app, transport, settings, ended=ended.set)

    intake.start()
    given_up = ended.wait(2)
    intake.leave(timedelta(0))

    assert given_up
    assert intake.failed
    assert transport.open_doors == 0


def forget_all(app: Stepfast) -> None:
    """Its database goes with the worker."""
    for table in ("stepfast_job", "stepfast_key", "stepfast_task"):
        rows.change(app, f"DELETE FROM {table}")


def stop_six_times(app: Stepfast, broker: Broker, most_deliveries: int | None = 5) -> Gate:
    """Six workers take the task and are stopped before it could begin; the seventh may do it."""
    gate = Gate(app)
    broker.task("gate")
    for _ in range(6):
        transport = MemoryTransport(broker.memory)
        transport.abilities = replace(transport.abilities, most_deliveries=most_deliveries)
        waiting(app, broker, transport=transport).leave(timedelta(0))
        forget_all(app)
    gate.opened.set()
    with polling(app, broker, "ended"):
        rows.eventually(lambda: broker.empty)
    return gate


def test_a_worker_that_stops_in_good_order_is_no_death(app: Stepfast, broker: Broker) -> None:
    """However often: a task that was never finished, or even begun, has killed no worker."""
    assert stop_six_times(app, broker).runs == 1
    assert not broker.dead()


def test_nor_is_it_where_only_the_queue_knows_how_often_it_delivers(app: Stepfast, broker: Broker) -> None:
    """As with Service Bus, which puts aside by itself what came too often."""
    assert stop_six_times(app, broker, most_deliveries=None).runs == 1
    assert not broker.dead()


def test_stops_in_between_do_not_save_a_task_that_kills(app: Stepfast, broker: Broker) -> None:
    """Two of its workers die, and the third one stops in good order; once more; and two die again."""
    gate = Gate(app)
    broker.task("gate")
    for _ in range(2):
        for _ in range(2):
            broker.memory.expire(broker.receive()[0])
        waiting(app, broker).leave(timedelta(0))
        forget_all(app)
    for _ in range(2):
        broker.memory.expire(broker.receive()[0])
    gate.opened.set()
    with polling(app, broker, "ended"):
        rows.eventually(lambda: broker.empty)

    assert gate.runs == 0
    assert [it.dead_reason for it in broker.dead()] == ["TaskRefusedError"]


@BOTH
def test_what_a_killed_worker_doubled_is_done_once(app: Stepfast, broker: Broker, acknowledge: Any) -> None:
    """It died after the new message was sent, and before the old one was removed."""
    gate = Gate(app)
    gate.opened.set()
    broker.task("gate")
    (old,) = broker.receive()
    anew = sent_anew(old)
    broker.send(anew.body, first=2)
    broker.memory.expire(old)
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: jobs(app, "done") and broker.empty)

    assert (gate.runs, rows.count(app, "stepfast_task")) == (1, 1)
    assert not broker.dead()


def test_who_is_stopped_before_the_end_of_the_one_task_has_failed(app: Stepfast, broker: Broker) -> None:
    Gate(app)
    broker.task("gate")
    intake = waiting(app, broker, once=True)
    intake.leave(timedelta(0))

    assert intake.failed
    assert broker.depth().ready == 1


def test_who_loses_the_message_of_the_one_task_has_failed(app: Stepfast, broker: Broker) -> None:
    """Another worker has the message by now: this one cannot say that its task ended well."""
    Gate(app)
    broker.task("gate")
    intake = waiting(app, broker, once=True, hold=timedelta(seconds=1))
    (kept,) = broker.memory.queues[QUEUE].live.kept.values()
    kept.turn += 1  # another received it
    rows.eventually(lambda: not len(intake._messages))
    intake.leave(timedelta(0))

    assert intake.failed


def left_behind(app: Stepfast) -> str:
    """A task whose container was killed as a whole."""
    text = task_message("gate")
    origin = Origin(CLIENT, "TASK_DATA", None, own_queue(CLIENT, text))
    with app.transaction() as tx:
        return accept_task(tx, origin, read_task(text, app.kinds)).job_id


def test_what_a_killed_container_left_behind_is_done_by_another_worker(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    gate.opened.set()
    left_behind(app)
    rows.change(app, "UPDATE stepfast_job SET updated_at = updated_at - 3600000000")
    with polling(app, broker):
        rows.eventually(lambda: jobs(app, "done"))

    assert gate.runs == 1


def test_what_a_container_left_a_moment_ago_is_its_own(app: Stepfast) -> None:
    Gate(app)
    job_id = left_behind(app)
    with app.transaction() as tx:
        assert adopt_tasks(tx, QUEUE, 60_000_000) == 0

    assert rows.live(app, job_id)["queue"] == own_queue(CLIENT, task_message("gate"))  # type: ignore[index]


def test_what_a_container_works_on_is_its_own_however_long_it_takes(app: Stepfast) -> None:
    Gate(app)
    job_id = left_behind(app)
    held = take(app, queue=own_queue(CLIENT, task_message("gate")))
    rows.change(app, "UPDATE stepfast_job SET updated_at = updated_at - 3600000000")
    with app.transaction() as tx:
        assert adopt_tasks(tx, QUEUE, 60_000_000) == 0

    assert (held.job_id, rows.live(app, job_id)["queue"]) == (job_id, held.queue)  # type: ignore[index]


def test_what_the_container_of_another_client_left_behind_is_none_of_ours(app: Stepfast) -> None:
    Gate(app)
    job_id = left_behind(app)
    rows.change(app, "UPDATE stepfast_job SET updated_at = updated_at - 3600000000")
    with app.transaction() as tx:
        assert [adopt_tasks(tx, queue_of(it), 60_000_000) for it in ("north", "sout", "south-2")] == [0, 0, 0]
        assert adopt_tasks(tx, QUEUE, 60_000_000) == 1

    assert rows.live(app, job_id)["queue"] == QUEUE  # type: ignore[index]


def test_what_a_killed_container_left_behind_is_done_at_once_when_it_is_asked_for_again(
    app: Stepfast, broker: Broker
) -> None:
    gate = Gate(app)
    gate.opened.set()
    left_behind(app)
    broker.task("gate")
    with polling(app, broker):
        rows.eventually(lambda: jobs(app, "done") and broker.empty)

    assert gate.runs == 1


def test_the_last_delivery_is_used_to_tell_of_it(
    telling: Stepfast, broker: Broker, receiver: HttpReceiver
) -> None:
    """The worker before this one died with its database: no other delivery would report the failure."""
    ran: list[int] = []

    @telling.task("deadly")
    def deadly() -> None:
        ran.append(1)

    broker.task("deadly", webhook_url=receiver.url())
    broker.memory.expire(broker.receive()[0])
    with polling(telling, broker, "ended", most_deliveries=2):
        rows.eventually(lambda: broker.empty)

    assert ran == []
    (body,) = receiver.bodies
    assert "delivered 2 times" in body["error"]["message"]
    assert [it.dead_reason for it in broker.dead()] == ["TaskRefusedError"]


def test_what_was_delivered_too_often_and_never_stored_is_done_after_all(
    app: Stepfast, broker: Broker
) -> None:
    """Where others see the database, it decides, not the broker's count."""
    seen: list[str] = []

    @app.task("good")
    def good(name: str) -> None:
        seen.append(name)

    broker.send(task_message("good", name="late"), "garbage")
    for _ in range(5):
        for it in broker.receive():
            broker.memory.expire(it)
    assert broker.receive() == []
    assert len(broker.dead()) == 2
    with polling(app, broker):
        rows.eventually(lambda: seen and broker.empty)

    assert seen == ["late"]
    rows.eventually(lambda: [it.body for it in broker.dead()] == ["garbage"])


def test_a_last_delivery_of_a_known_task_leaves_it_alone(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.task("gate", number=1)
    with polling(app, broker, "ended", most_deliveries=1):
        rows.eventually(lambda: broker.empty)  # put aside: it was its first and last delivery
    assert gate.runs == 0

    (letter,) = app.operator.dead_letters()
    app.operator.retry(letter.id)
    gate.opened.set()
    broker.task("gate", number=2)
    with polling(app, broker, "ended", most_deliveries=1):
        rows.eventually(lambda: broker.empty)

    assert gate.runs == 1


@pytest.mark.only_on("sqlite")
def test_an_idle_intake_asks_less_and_less(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    class Impatient(MemoryTransport):
        """As Storage Queue: it answers at once."""

        def __init__(self, broker: MemoryBroker) -> None:
            super().__init__(broker)
            self.abilities = replace(self.abilities, longest_wait=timedelta(0))

        async def receive(self, *given: Any, **options: Any) -> Any:
            asked.append(time.monotonic())
            return await super().receive(*given, **options)

    monkeypatch.setattr(intakes, "SOON", 0.02)
    settings = intakes.IntakeSettings(client=CLIENT, acknowledge="stored", poll=timedelta(seconds=0.3))
    intake = intakes.Intake(app, Impatient(broker.memory), settings, ended=lambda: None)
    intake.start()
    rows.eventually(lambda: len(asked) > 7)
    intake.leave(timedelta(0))

    pauses = [later - before for before, later in pairwise(asked)]
    assert pauses[0] < 0.1
    assert max(pauses) > 0.2
    assert max(pauses) < 2


def test_holding_asks_for_no_more_than_the_broker_gives() -> None:
    transport = MemoryTransport()
    transport.abilities = replace(transport.abilities, longest_hold=timedelta(seconds=5))

    assert HeldMessages(transport, timedelta(hours=1)).hold == timedelta(seconds=5)


@BOTH
def test_a_known_id_with_another_payload_is_put_aside(
    app: Stepfast, broker: Broker, acknowledge: Any
) -> None:
    @app.task("add")
    async def add(n: int) -> int:
        return n + 1

    broker.send(*(task_message("add", "t-1", n=n) for n in (1, 1, 2)))
    with polling(app, broker, acknowledge):
        rows.eventually(lambda: jobs(app, "done") == 1 and broker.empty and len(broker.dead()) == 1)

    (letter,) = broker.dead()
    assert letter.body == task_message("add", "t-1", n=2)
    assert "used before, for a task with another payload" in letter.dead_detail


def test_how_full_its_queue_is_is_told_while_metrics_are_shown(app: Stepfast, broker: Broker) -> None:
    gate = Gate(app)
    broker.send(task_message("gate", "t-1"), task_message("gate", "t-2"), "no task")
    with hearing() as told, polling(app, broker, "ended", concurrency=1):
        assert gate.entered.wait(20)
        rows.eventually(lambda: named(told, "broker.measured"))
        gate.opened.set()

    figures = named(told, "broker.measured")[0]
    assert (figures["transport"], figures["queue"]) == ("memory", QUEUE)
    assert sum(int(str(figures[it])) for it in ("ready", "held", "dead")) == 3
