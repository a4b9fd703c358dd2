"""Enqueue on an async connection of the caller's own, through the driver that the caller uses.

Each promise is tried with every driver of its database, one after the other: a database per driver would take longer
than the test.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any

import aiosqlite
import asyncpg
import psycopg
import pytest

from stepfast import Wait
from stepfast.errors import ConfigurationError, DuplicateKeyError
from stepfast.jobs.wait import event_in
from tests.support import rows
from tests.support.async_lenders import LENDERS, Lent
from tests.support.engine import commit_step, register_work, take

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from stepfast import Stepfast, Transaction

Story = Callable[[Lent], Awaitable[None]]

pytestmark = pytest.mark.usefixtures("ledger")


def with_each(app: Stepfast, story: Story, *, afterwards: Callable[[str], None]) -> None:
    """Let every lender of this database tell the story, each on empty tables."""
    with closing(app.database.connect()) as connection:
        kind = "pgbouncer" if connection.pooled else app.database.dialect.name
    for name, lender in LENDERS[kind].items():

        async def told(lender: Callable[[str], AbstractAsyncContextManager[Lent]] = lender) -> None:
            async with lender(app.database.url) as lent:
                await story(lent)
            await everything_of_this_loop()

        asyncio.run(told())
        afterwards(name)
        for table in ("stepfast_job", "stepfast_key", "stepfast_archive", "stepfast_outbox", "ledger"):
            rows.change(app, f"DELETE FROM {table}")


async def everything_of_this_loop() -> None:
    """Wait for what a driver does by itself, such as asyncpg's request to cancel a statement: it has a socket, too."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=10)
    await asyncio.sleep(0)  # transports that were closed close their sockets now


@asynccontextmanager
async def closing_async(connection: Any) -> AsyncIterator[Any]:
    """A connection that is closed however the block ends: a test that fails leaves nothing open for those behind it."""
    try:
        yield connection
    finally:
        await connection.close()


def waiting(app: Stepfast, event: str) -> str:
    """A job that waits for this event."""
    job_id = register_work(app).enqueue().id
    commit_step(app, take(app), Wait(event, timeout="1h"))
    return job_id


def jobs(app: Stepfast) -> int:
    return rows.count(app, "stepfast_job")


def test_a_job_and_the_callers_row_commit_together(app: Stepfast) -> None:
    work = register_work(app)

    async def story(lent: Lent) -> None:
        await lent.execute("INSERT INTO ledger VALUES ('mine', 1)")
        job = await work.enqueue_async(n=7, tx=lent.connection)
        assert (job.created, jobs(app)) == (True, 0)
        await lent.commit()

    def afterwards(name: str) -> None:
        (row,) = rows.query(app, "SELECT payload, state FROM stepfast_job")
        assert (json.loads(row["payload"]), row["state"]) == ({"n": 7}, "ready"), name
        assert rows.count(app, "ledger") == 1, name

    with_each(app, story, afterwards=afterwards)


def test_a_job_is_gone_when_the_caller_rolls_back(app: Stepfast) -> None:
    work = register_work(app)

    async def story(lent: Lent) -> None:
        await lent.execute("INSERT INTO ledger VALUES ('mine', 1)")
        await work.enqueue_async(n=1, key="k", unique_for="1h", tx=lent.connection)
        await work.enqueue_many_async([{"n": 2}, {"n": 3}], tx=lent.connection)
        await lent.rollback()

    def afterwards(name: str) -> None:
        left = [rows.count(app, table) for table in ("stepfast_job", "stepfast_key", "ledger")]
        assert left == [0, 0, 0], name

    with_each(app, story, afterwards=afterwards)


def test_every_way_to_enqueue_works_on_every_driver(app: Stepfast) -> None:
    """All types of parameters: texts, nothing, whole numbers beyond 32 bits, lists, documents."""

    @app.job(merge="append")
    def gather(ids: list[int], note: str | None = None) -> None: ...

    async def story(lent: Lent) -> None:
        tx = lent.connection
        plain = await gather.enqueue_async(ids=[1], note='ö "\\ 日', delay="30d", priority=3, tx=tx)
        keyed = await gather.enqueue_async(ids=[1], key="k", tx=tx)
        merged = await gather.enqueue_async(ids=[2], key="k", on_duplicate="merge", tx=tx)
        skipped = await gather.enqueue_async(ids=[3], key="k", on_duplicate="skip", tx=tx)
        replaced = await gather.enqueue_async(ids=[4], key="other", on_duplicate="replace", tx=tx)
        by_id = [await gather.enqueue_async(ids=[5], id="task-1", tx=tx) for _ in range(2)]
        period = await gather.enqueue_async(ids=[6], key="period", unique_per="1d", tx=tx)
        waiting = [await gather.enqueue_async(ids=[7], key="quiet", debounce="40d", tx=tx) for _ in range(2)]
        many = await gather.enqueue_many_async(
            [{"ids": [8]}, {"ids": [9]}], keys=["k", None], on_duplicate="skip", tx=tx
        )
        with pytest.raises(DuplicateKeyError):
            await gather.enqueue_async(ids=[0], key="k", tx=tx)
        await lent.commit()
        assert [it.created for it in (plain, keyed, merged, skipped, replaced, period)] == [
            True, True, False, False, True, True,
        ]  # fmt: skip
        assert [it.created for it in by_id] == [True, False]
        assert [it.created for it in waiting] == [True, False]
        assert [it.created for it in many] == [False, True]

    def afterwards(name: str) -> None:
        stored = {
            row["unique_key"] or row["id"]: json.loads(row["payload"])
            for row in rows.query(app, "SELECT id, unique_key, payload FROM stepfast_job")
        }
        assert (stored["k"]["ids"], stored["task-1"]["ids"], jobs(app)) == ([1, 2], [5], 7), name
        assert "日" in str(list(stored.values())), name

    with_each(app, story, afterwards=afterwards)


def test_an_enqueue_that_is_refused_leaves_the_callers_transaction_as_it_was(app: Stepfast) -> None:
    work = register_work(app)

    async def story(lent: Lent) -> None:
        await lent.execute("INSERT INTO ledger VALUES ('mine', 1)")
        holder = await work.enqueue_async(n=1, key="k", tx=lent.connection)
        with pytest.raises(DuplicateKeyError) as refusal:
            await work.enqueue_async(n=2, id="task-1", key="k", tx=lent.connection)
        assert refusal.value.job_id == holder.id
        await lent.commit()

    def afterwards(name: str) -> None:
        left = [rows.count(app, table) for table in ("stepfast_job", "stepfast_key", "ledger")]
        assert left == [1, 0, 1], name

    with_each(app, story, afterwards=afterwards)


def test_an_event_is_not_sent_when_the_caller_rolls_back(app: Stepfast) -> None:
    async def story(lent: Lent) -> None:
        waiting(app, "paid")
        await lent.execute("INSERT INTO ledger VALUES ('mine', 1)")
        sent = await app.events.send_async("paid", {"cents": 1}, id="first", tx=lent.connection)
        assert sent.job_id is not None
        await lent.rollback()

    def afterwards(name: str) -> None:
        assert [row["state"] for row in rows.query(app, "SELECT state FROM stepfast_job")] == ["scheduled"], (
            name
        )
        assert [rows.count(app, table) for table in ("stepfast_key", "stepfast_event", "ledger")] == [
            0,
            0,
            0,
        ], name
        rows.change(app, "DELETE FROM stepfast_wait")

    with_each(app, story, afterwards=afterwards)


def test_an_event_is_sent_with_the_callers_commit(app: Stepfast) -> None:
    async def story(lent: Lent) -> None:
        job_id = waiting(app, "paid")
        await lent.execute("INSERT INTO ledger VALUES ('mine', 1)")
        sent = await app.events.send_async("paid", {"cents": 2}, id="second", tx=lent.connection)
        kept = await app.events.send_async("paid", {"cents": 3}, keep="1h", tx=lent.connection)
        assert (sent.job_id, sent.repeated, kept.job_id, kept.kept) == (job_id, False, None, True)
        assert rows.state(app, job_id) == "scheduled"
        await lent.commit()

    def afterwards(name: str) -> None:
        lease = take(app)
        event = event_in(lease.cursor)
        assert event is not None, name
        assert (event.id, event.payload) == ("second", {"cents": 2}), name
        assert [row["id"] for row in rows.query(app, "SELECT id FROM ledger")] == ["mine"], name
        assert rows.change(app, "DELETE FROM stepfast_event") == 1, name

    with_each(app, story, afterwards=afterwards)


def test_an_event_without_a_transaction_is_sent_at_once(app: Stepfast) -> None:
    job_id = waiting(app, "paid")

    sent = asyncio.run(app.events.send_async("paid", 7))

    assert (sent.job_id, rows.state(app, job_id)) == (job_id, "ready")


def test_whatever_takes_a_transaction_can_join_the_callers(app: Stepfast) -> None:
    """Own rows, webhooks, the look at a job, and the end of a lease that was taken by hand."""
    work = register_work(app)

    async def story(lent: Lent) -> None:
        work.enqueue(n=1)
        held = app.acquire("alice")
        assert held is not None

        def effects(tx: Transaction) -> str:
            tx.execute("INSERT INTO ledger VALUES (:id, :amount)", {"id": "ours", "amount": 2**20})
            app.send_webhook("https://example.com", data={"n": 1}, tx=tx)
            app.release(held, "done", tx=tx)
            assert str(app.result_of(held.job_id, tx=tx).state) == "done"
            (row,) = tx.query("SELECT amount FROM ledger WHERE id = :id", {"id": "ours"})
            assert (row["amount"], tx.query("SELECT 1 FROM ledger WHERE id = 'x'")) == (2**20, [])
            return held.job_id

        job_id = await app.join(lent.connection, effects)
        assert rows.state(app, job_id) == "leased"
        await lent.commit()
        assert rows.state(app, job_id) == "done"

    def afterwards(name: str) -> None:
        assert (rows.count(app, "ledger"), rows.count(app, "stepfast_outbox")) == (1, 1), name

    with_each(app, story, afterwards=afterwards)


def test_savepoints_of_the_caller_and_of_the_work_keep_their_meaning(app: Stepfast) -> None:
    work = register_work(app)

    def careful(tx: Transaction) -> None:
        work.enqueue(n=1, tx=tx)
        with suppress(ZeroDivisionError), tx.savepoint():
            work.enqueue(n=2, tx=tx)
            raise ZeroDivisionError

    async def story(lent: Lent) -> None:
        await lent.execute("INSERT INTO ledger VALUES ('mine', 1)")
        await app.join(lent.connection, careful)
        await lent.execute("SAVEPOINT theirs")
        await work.enqueue_async(n=3, tx=lent.connection)
        await lent.execute("ROLLBACK TO SAVEPOINT theirs")
        await lent.commit()

    def afterwards(name: str) -> None:
        (row,) = rows.query(app, "SELECT payload FROM stepfast_job")
        assert json.loads(row["payload"]) == {"n": 1}, name

    with_each(app, story, afterwards=afterwards)


def test_without_a_connection_the_event_loop_is_not_held_up(app: Stepfast) -> None:
    work = register_work(app)

    async def story() -> list[Any]:
        return await asyncio.gather(*(work.enqueue_async(n=n) for n in range(5)))

    stored = asyncio.run(story())

    assert {it.id for it in stored} == {row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job")}


def test_a_caller_who_is_cancelled_finds_nothing_written_even_if_it_commits(app: Stepfast) -> None:
    work = register_work(app)

    async def story(lent: Lent) -> None:
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(tx: Transaction) -> None:
            work.enqueue(n=1, tx=tx)
            loop.call_soon_threadsafe(began.set)
            while True:
                tx.query("SELECT count(*) AS n FROM ledger")

        task = asyncio.create_task(app.join(lent.connection, slow))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with suppress(Exception):  # PostgreSQL says that the transaction has failed, or rolls it back
            await lent.commit()

    with_each(app, story, afterwards=lambda name: _is(jobs(app), 0, name))


def _is(found: int, expected: int, name: str) -> None:
    assert found == expected, name


def test_a_transaction_that_was_kept_for_later_is_over(app: Stepfast) -> None:
    async def story(lent: Lent) -> None:
        kept: list[Transaction] = []
        await app.join(lent.connection, kept.append)
        with pytest.raises(Exception, match="no longer lent"):
            kept[0].query("SELECT 1 FROM ledger")
        await lent.rollback()

    with_each(app, story, afterwards=lambda _: None)


# Refusals


def refused(app: Stepfast, connection: Any, sentence: str) -> Awaitable[None]:
    async def story() -> None:
        with pytest.raises(ConfigurationError, match=sentence):
            await register_work(app).enqueue_async(n=1, tx=connection)

    return story()


def test_an_async_connection_is_refused_by_the_plain_call(app: Stepfast) -> None:
    work = register_work(app)

    async def story(lent: Lent) -> None:
        with pytest.raises(ConfigurationError, match="enqueue_async"):
            work.enqueue(n=1, tx=lent.connection)

    with_each(app, story, afterwards=lambda name: _is(jobs(app), 0, name))


def test_a_plain_connection_is_refused_by_the_call_that_is_awaited(app: Stepfast) -> None:
    with closing(app.database.connect()) as connection:
        asyncio.run(_awaited(refused(app, connection.raw, "is not async")))


async def _awaited(story: Awaitable[None]) -> None:
    await story


@pytest.mark.only_on("sqlite")
def test_anything_else_is_refused(app: Stepfast) -> None:
    asyncio.run(_awaited(refused(app, object(), "lend a connection of")))


@pytest.mark.only_on("sqlite")
def test_work_that_is_a_coroutine_is_refused(app: Stepfast) -> None:
    async def work(tx: Transaction) -> None: ...

    async def story() -> None:
        async with aiosqlite.connect(app.database.url.removeprefix("sqlite:///")) as connection:
            joined: Awaitable[Any] = app.join(connection, work)
            with pytest.raises(ConfigurationError, match="plain function"):
                await joined

    asyncio.run(story())


@pytest.mark.only_on("sqlite")
def test_connections_of_aiosqlite_that_cannot_keep_the_promise_are_refused(app: Stepfast) -> None:
    path = app.database.url.removeprefix("sqlite:///")

    async def story() -> None:
        async with aiosqlite.connect(path, isolation_level=None) as connection:
            await refused(app, connection, "autocommit mode and outside")
        await refused(app, connection, "is closed")
        async with aiosqlite.connect(":memory:") as elsewhere:
            await refused(app, elsewhere, "another database")

    asyncio.run(story())


@pytest.mark.only_on("postgresql")
def test_connections_of_asyncpg_that_cannot_keep_the_promise_are_refused(app: Stepfast) -> None:
    async def story() -> None:
        async with closing_async(await asyncpg.connect(app.database.url)) as connection:
            await refused(app, connection, "use `async with connection.transaction")
            async with connection.transaction(readonly=True):
                await refused(app, connection, "nothing can be written")
            transaction = connection.transaction()
            await transaction.start()
            with pytest.raises(asyncpg.PostgresError):
                await connection.execute("SELECT 1 / 0")
            await refused(app, connection, "has failed; roll it back")
            await transaction.rollback()
        await refused(app, connection, "is closed")
        postgres = app.database.url.rpartition("/")[0] + "/postgres"
        async with closing_async(await asyncpg.connect(postgres)) as elsewhere, elsewhere.transaction():
            await refused(app, elsewhere, "another database")

    asyncio.run(story())
    assert jobs(app) == 0


@pytest.mark.only_on("postgresql")
def test_connections_of_psycopg_that_cannot_keep_the_promise_are_refused(app: Stepfast) -> None:
    async def story() -> None:
        opened = await psycopg.AsyncConnection.connect(app.database.url, autocommit=True)
        async with closing_async(opened) as connection:
            await refused(app, connection, "`async with` where it is async")
            async with connection.transaction(), connection.pipeline():
                await refused(app, connection, "pipeline mode")
        await refused(app, connection, "is closed")

    asyncio.run(story())
    assert jobs(app) == 0


@pytest.mark.only_on("mariadb")
def test_connections_of_mysql_drivers_that_cannot_keep_the_promise_are_refused(app: Stepfast) -> None:
    async def story(lent: Lent) -> None:
        raw = lent.connection
        if type(raw).__module__.startswith("sqlalchemy"):
            return
        await raw.autocommit(1)
        await refused(app, raw, "autocommit mode and outside")
        await lent.execute("START TRANSACTION READ ONLY")
        await refused(app, raw, "nothing can be written")
        await lent.execute("ROLLBACK")
        await raw.ensure_closed()
        await refused(app, raw, "is closed")

    with_each(app, story, afterwards=lambda name: _is(jobs(app), 0, name))
