"""The pytest plugin, in test suites as users write them: each test runs one."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast.database.drivers import open_database
from tests.support.markdown import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ("pytester",)

SHOP = """
    from stepfast import Stepfast, Step

    app = Stepfast({url!r})

    @app.job()
    def charge(step: Step, order: str) -> None:
        step.effect(lambda tx: tx.execute("INSERT INTO payment VALUES (:order)", {{"order": order}}))

    def place(order: str) -> None:
        charge.enqueue(order=order)
"""
NOWHERE = "sqlite:////nowhere/at/all.db"


@pytest.fixture(autouse=True)
def _readers_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STEPFAST_")]:
        monkeypatch.delenv(name)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *options)


@pytest.fixture
def on_database(database_kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the inner suite run on this database; returns its URL."""
    url: str = request.getfixturevalue("empty_database_url")
    if database_kind != "sqlite":
        monkeypatch.setenv("STEPFAST_TEST_DATABASE_URL", url)
    return url


@pytest.mark.usefixtures("on_database")
def test_the_fixtures_work_without_any_wiring(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import asyncio
        import pytest
        from stepfast import Retry
        from stepfast.testing import assert_enqueued, crash_at, enqueued

        def test_drain(stepfast_app, stepfast_drain):
            @stepfast_app.job()
            def double(n: int) -> int:
                return 2 * n

            double.enqueue(n=4)
            assert_enqueued(stepfast_app, double, arguments={"n": 4}, count=1)
            report = stepfast_drain()
            assert [it.answer for it in report.runs] == [8]

        def test_every_test_begins_with_nothing(stepfast_app, stepfast_drain):
            @stepfast_app.job()
            def work() -> None: ...

            assert enqueued(stepfast_app, ended=True) == []
            work.enqueue()
            stepfast_drain()
            with stepfast_app.transaction() as tx:
                tx.execute("SELECT 1")

        @pytest.mark.parametrize("again", [1, 2])
        def test_every_test_makes_its_own_tables(stepfast_app, again):
            connection = stepfast_app.database.connect()
            connection.execute("CREATE TABLE payment (n INTEGER PRIMARY KEY)")
            connection.execute("CREATE TABLE part (n INTEGER REFERENCES payment (n))")
            connection.execute("CREATE VIEW paid AS SELECT n FROM payment")
            connection.close()
            assert enqueued(stepfast_app, ended=True) == []

        def test_clock(stepfast_app, stepfast_clock, stepfast_drain):
            @stepfast_app.job(retry=Retry(attempts=2, first="1h"))
            def work(): raise ValueError("no")

            work.enqueue(delay="1d")
            assert stepfast_drain().jobs == ()
            stepfast_clock.advance("25h")
            with pytest.raises(ValueError):
                stepfast_drain()

        def test_the_clock_is_back(stepfast_app):
            assert stepfast_app.database.shift is None

        def test_inline(stepfast_app, stepfast_inline):
            seen = []

            @stepfast_app.job()
            def work(n: int): seen.append(n)

            work.enqueue(n=1)
            assert seen == [1]

        def test_a_loop_of_ones_own(stepfast_app, stepfast_drain):
            @stepfast_app.job()
            async def work(): return 7

            async def main():
                work.enqueue()
                return await stepfast_drain()

            assert asyncio.run(main()).runs[0].answer == 7

        @pytest.mark.anyio
        async def test_a_loop_of_a_plugin(stepfast_app, stepfast_drain, anyio_backend):
            @stepfast_app.job()
            async def work(): return 7

            work.enqueue()
            assert (await stepfast_drain()).done == 1

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        def test_crash(stepfast_app, stepfast_drain):
            @stepfast_app.job()
            def work(): ...

            work.enqueue()
            with crash_at(stepfast_app, "before commit"):
                stepfast_drain()
            assert stepfast_drain().done == 1
    """)

    run(pytester).assert_outcomes(passed=10)


@pytest.mark.usefixtures("on_database")
def test_an_application_that_is_named_works_on_the_tests_database(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=SHOP.format(url=NOWHERE))
    pytester.makeini("[pytest]\nstepfast_app = shop:app")
    pytester.makepyfile("""
        import shop
        from stepfast.testing import assert_enqueued, drain

        def test_code_that_enqueues_needs_no_fixture():
            shop.place("A-17")
            assert_enqueued(shop.app, shop.charge, arguments={"order": "A-17"}, count=1)

        def test_effects(stepfast_app, stepfast_drain):
            assert stepfast_app is shop.app
            connection = shop.app.database.connect()
            connection.execute("CREATE TABLE payment (n VARCHAR(20))")
            connection.close()
            shop.place("A-18")
            assert stepfast_drain().done == 1
            with shop.app.reading() as tx:
                assert tx.query("SELECT n FROM payment") == [{"n": "A-18"}]
    """)

    run(pytester).assert_outcomes(passed=2)


def test_an_application_that_is_named_is_itself_again_after_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=SHOP.format(url=NOWHERE))
    pytester.makeini("[pytest]\nstepfast_app = shop:app")
    pytester.makeconftest("""
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(session):
            import shop
            assert shop.app._database.url.endswith("at/all.db")
            print("itself again")
    """)
    pytester.makepyfile("def test_nothing(): ...")

    result = run(pytester, "-s")

    result.assert_outcomes(passed=1)
    assert "itself again" in result.stdout.str()


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("nobody:app", "no module 'nobody'"),
        ("shop:nothing", "has no Stepfast app named 'nothing'"),
        ("shop", "write module:app"),
    ],
)
def test_an_application_that_is_not_there_is_told_in_words(
    pytester: pytest.Pytester, named: str, told: str
) -> None:
    pytester.makepyfile(shop=SHOP.format(url=NOWHERE))
    pytester.makeini(f"[pytest]\nstepfast_app = {named}")
    pytester.makepyfile("def test_nothing(): ...")

    result = run(pytester)

    result.assert_outcomes(errors=1)
    assert told in result.stdout.str()


def test_who_merely_has_it_installed_does_not_notice(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_nothing_of_it_is_loaded(request):
            assert "stepfast_pytest" in sys.modules
            assert [it for it in sys.modules if it.split(".")[0] in {"stepfast", "msgspec", "psycopg"}] == []
            assert [it for it in request.fixturenames if "stepfast" in it] == []
    """)

    run(pytester).assert_outcomes(passed=1)


def test_a_suite_may_bring_its_own_database(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makeconftest(f"""
        import pytest

        @pytest.fixture
        def stepfast_database_url():
            return "sqlite:///{tmp_path}/mine.db"
    """)
    pytester.makepyfile("""
        def test_it_is_used(stepfast_app):
            assert stepfast_app.database.url.endswith("mine.db")
    """)

    run(pytester).assert_outcomes(passed=1)


@pytest.mark.usefixtures("on_database")
def test_the_how_to_is_true(pytester: pytest.Pytester) -> None:
    page = ROOT / "docs" / "howto" / "test-your-jobs.md"
    for block in (*blocks(page, "python"), *blocks(page, "ini")):
        if block.file:
            (pytester.path / block.file).write_text(block.text)

    result = run(pytester)

    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 18}


# A corner of a server


def schemas(url: str) -> set[str]:
    with closing(open_database(url).connect()) as connection:
        found = connection.execute("SELECT schema_name FROM information_schema.schemata").fetchall()
    return {row[0] for row in found if row[0].startswith("stepfast_test_")}


@pytest.mark.only_on("postgresql", "mariadb")
def test_the_corner_is_gone_afterwards_and_nothing_else_was_touched(
    pytester: pytest.Pytester, on_database: str
) -> None:
    before = schemas(on_database)
    with closing(open_database(on_database).connect()) as connection:
        connection.execute("CREATE TABLE customer (name VARCHAR(20))")
        connection.execute("INSERT INTO customer VALUES ('Ada')")
    pytester.makepyfile("""
        def test_fails(stepfast_app, stepfast_drain):
            connection = stepfast_app.database.connect()
            connection.execute("CREATE TABLE customer (name VARCHAR(20))")
            connection.execute("INSERT INTO customer VALUES ('Grace')")
            connection.close()
            stepfast_drain()
            assert False
    """)

    run(pytester).assert_outcomes(failed=1)

    assert schemas(on_database) <= before
    with closing(open_database(on_database).connect()) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM customer").fetchall()] == ["Ada"]
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'stepfast%'"
            f" AND table_schema IN ('public', '{on_database.rpartition('/')[2].partition('?')[0]}')"
        ).fetchall()
    assert list(tables) == []


@pytest.mark.only_on("postgresql")
def test_the_users_own_tables_stay_in_sight(pytester: pytest.Pytester, on_database: str) -> None:
    with closing(open_database(on_database).connect()) as connection:
        connection.execute("CREATE TABLE customer (name VARCHAR(20))")
        connection.execute("INSERT INTO customer VALUES ('Ada')")
    pytester.makepyfile("""
        def test_sees(stepfast_app):
            with stepfast_app.reading() as tx:
                assert tx.query("SELECT name FROM customer") == [{"name": "Ada"}]
    """)

    run(pytester).assert_outcomes(passed=1)


@pytest.mark.usefixtures("on_database")
def test_test_processes_do_not_meet(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        from stepfast.testing import enqueued

        @pytest.mark.parametrize("n", range(8))
        def test_alone(stepfast_app, stepfast_drain, n):
            @stepfast_app.job()
            def work() -> None: ...

            work.enqueue_many([{}] * 3)
            assert len(enqueued(stepfast_app)) == 3
            assert stepfast_drain().done == 3
    """)

    run(pytester, "-n", "2").assert_outcomes(passed=8)


def test_a_server_that_is_not_there_is_told_in_words(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_TEST_DATABASE_URL", "postgresql://ada:secret@127.0.0.1:1/shop")
    pytester.makepyfile("def test_nothing(stepfast_app): ...")

    result = run(pytester)

    result.assert_outcomes(errors=1)
    assert "cannot reach PostgreSQL at 127.0.0.1:1" in result.stdout.str()


@pytest.mark.only_on("postgresql")
def test_options_in_the_url_would_be_lost_and_are_refused(
    pytester: pytest.Pytester, on_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_TEST_DATABASE_URL", f"{on_database}?options=-cwork_mem%3D1MB")
    pytester.makepyfile("def test_nothing(stepfast_app): ...")

    result = run(pytester)

    result.assert_outcomes(errors=1)
    assert "leave `options` out" in result.stdout.str()
    assert schemas(on_database) == set()
