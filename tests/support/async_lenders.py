"""Async connections as users have them, each inside a transaction of its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiomysql
import aiosqlite
import asyncmy
import asyncpg
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine


@dataclass(frozen=True)
class Lent:
    """A connection in a transaction, and what its owner does with it."""

    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


Lender = Callable[[str], AbstractAsyncContextManager[Lent]]


def _psycopg(**options: Any) -> Lender:
    @asynccontextmanager
    async def by_psycopg(url: str) -> AsyncIterator[Lent]:
        async with await psycopg.AsyncConnection.connect(url, **options) as connection:
            yield Lent(connection, connection.execute, connection.commit, connection.rollback)

    return by_psycopg


def _asyncpg(**options: Any) -> Lender:
    @asynccontextmanager
    async def by_asyncpg(url: str) -> AsyncIterator[Lent]:
        connection = await asyncpg.connect(url, **options)
        try:
            transaction = connection.transaction()
            await transaction.start()
            yield Lent(connection, connection.execute, transaction.commit, transaction.rollback)
        finally:
            await connection.close()

    return by_asyncpg


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Lent]:
    """With a codec for JSON, as many programs have it."""

    async def taught(connection: Any) -> None:
        import json

        await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1, init=taught) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield Lent(connection, connection.execute, transaction.commit, transaction.rollback)


@asynccontextmanager
async def by_aiosqlite(url: str) -> AsyncIterator[Lent]:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        connection.row_factory = aiosqlite.Row
        yield Lent(connection, connection.execute, connection.commit, connection.rollback)


def _mysql(connect: Callable[..., Any]) -> Lender:
    @asynccontextmanager
    async def by_mysql(url: str) -> AsyncIterator[Lent]:
        parts = urlsplit(url)
        connection = await connect(
            host=parts.hostname,
            port=parts.port,
            user=parts.username,
            password=parts.password,
            db=parts.path.lstrip("/"),
        )

        async def execute(statement: str) -> None:
            async with connection.cursor() as cursor:
                await cursor.execute(statement)

        try:
            yield Lent(connection, execute, connection.commit, connection.rollback)
        finally:
            await connection.ensure_closed()

    return by_mysql


def _engine(scheme: str, driver: str, *, session: bool) -> Lender:
    @asynccontextmanager
    async def by_sqlalchemy(url: str) -> AsyncIterator[Lent]:
        engine = create_async_engine(url.replace(f"{scheme}:", f"{scheme}+{driver}:", 1))
        try:
            async with AsyncSession(engine) if session else engine.connect() as connection:

                async def execute(statement: str) -> None:
                    await connection.execute(text(statement))

                yield Lent(connection, execute, connection.commit, connection.rollback)
        finally:
            await engine.dispose()

    return by_sqlalchemy


LENDERS: dict[str, dict[str, Lender]] = {
    "sqlite": {
        "aiosqlite": by_aiosqlite,
        "SQLAlchemy on aiosqlite": _engine("sqlite", "aiosqlite", session=False),
        "a session on aiosqlite": _engine("sqlite", "aiosqlite", session=True),
    },
    "postgresql": {
        "psycopg": _psycopg(),
        "asyncpg": _asyncpg(),
        "a pool of asyncpg": by_asyncpg_pool,
        "SQLAlchemy on psycopg": _engine("postgresql", "psycopg", session=False),
        "SQLAlchemy on asyncpg": _engine("postgresql", "asyncpg", session=False),
        "a session on psycopg": _engine("postgresql", "psycopg", session=True),
        "a session on asyncpg": _engine("postgresql", "asyncpg", session=True),
    },
    "pgbouncer": {  # whoever goes through a pooler prepares nothing
        "psycopg": _psycopg(prepare_threshold=None),
        "asyncpg": _asyncpg(statement_cache_size=0),
    },
    "mariadb": {
        "aiomysql": _mysql(aiomysql.connect),
        "asyncmy": _mysql(asyncmy.connect),
        "SQLAlchemy on aiomysql": _engine("mysql", "aiomysql", session=False),
        "a session on asyncmy": _engine("mysql", "asyncmy", session=True),
    },
}
