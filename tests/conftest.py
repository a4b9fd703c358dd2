"""Fixtures: a test that asks for a database runs once per database, each time on one of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from devtools.pgbouncer import program as pgbouncer_program
from devtools.server import Server, ServerMissingError
from tests.crash.daily_sample import SEED
from tests.support import ci
from tests.support.databases import ENGINES, KINDS, POOLED, Databases
from tests.support.parts import Part, Passed, drop

if TYPE_CHECKING:
    from stepfast.testing.azurite import Azurite
    from tests.support.http_receiver import HttpReceiver

GOLDEN = Path(__file__).parent / "golden"
# Of these the servers try a quarter every day: what they are made of is in the tests of the engine, which the servers
# try every day. `make chaos` tries all of it.
SAMPLED = {
    "cli/test_partitions",
    "cli/test_quarantine",
    "cli/test_runs",
    "cli/test_watermark",
    "contract/admin/test_run_reports",
    "contract/runs",
    "contract/testing/test_crash_points",
    "crash/test_audit_points",
    "crash/test_group_points",
    "crash/test_points",
    "crash/test_repair_points",
    "crash/test_run_fleet",
    "crash/test_run_points",
    "diamonds/test_acceptance",
    "diamonds/test_found",
    "diamonds/test_incidents",
    "diamonds/test_repricing",
    "diamonds/test_rules",
    "diamonds/test_token",
}
# The engine's core: every case, on every server, every day.
CORE = {
    "contract/database/test_migrations",
    "contract/jobs/test_commit",
    "contract/jobs/test_enqueue",
    "contract/jobs/test_keys",
    "contract/jobs/test_leases",
    "contract/jobs/test_rescue",
    "contract/jobs/test_retry",
    "contract/runs/test_completion",
    "contract/tasks/test_tasks",
}
# What could rely on a session by mistake: a part of it every day. The other contract tests run through the pooler in
# `make chaos`.
BEHIND_POOLER = {"contract/jobs/test_commit", "contract/jobs/test_leases"}
# Tests that a promise of the README names.
PROMISED = set(
    re.findall(r"/tests/(contract/\w+/test_\w+)\.py\)", (GOLDEN.parents[1] / "README.md").read_text())
)
DATABASES = pytest.StashKey[Databases]()


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """`sqlite`, `postgresql`, `mariadb` or `pgbouncer`; the marker `only_on` narrows the choice."""
    kind: str = request.param
    return kind


@pytest.fixture
def database_url(database_kind: str, pytestconfig: pytest.Config) -> Iterator[str]:
    """One empty, migrated database."""
    _skip_if_missing(database_kind)
    with pytestconfig.stash[DATABASES].migrated(database_kind) as url:
        yield url


@pytest.fixture
def empty_database_url(database_kind: str, pytestconfig: pytest.Config) -> Iterator[str]:
    """One database before its first migration."""
    _skip_if_missing(database_kind)
    with pytestconfig.stash[DATABASES].empty(database_kind) as url:
        yield url


@pytest.fixture
def new_database(
    database_kind: str, pytestconfig: pytest.Config
) -> Callable[[], AbstractContextManager[str]]:
    """`with new_database() as url`: as many databases without tables as a test needs."""
    _skip_if_missing(database_kind)
    return lambda: pytestconfig.stash[DATABASES].empty(database_kind)


@pytest.fixture
def server(database_kind: str, pytestconfig: pytest.Config) -> Server:
    """The server behind `database_url`, for tests `only_on` servers that kill, pause or restart it."""
    _skip_if_missing(database_kind)
    kind = "postgresql" if database_kind == POOLED else database_kind
    return pytestconfig.stash[DATABASES].server(kind)


@pytest.fixture
def pooler(database_kind: str, pytestconfig: pytest.Config) -> Server:
    """The PgBouncer before that server, for tests `only_on("pgbouncer")`."""
    _skip_if_missing(database_kind)
    return pytestconfig.stash[DATABASES].pooler()


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    """A real HTTP server on loopback, for webhooks."""
    from tests.support.http_receiver import receiving_http

    with receiving_http() as found:
        yield found


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azure's storage emulator. Queues and containers of a test need names of their own."""
    from stepfast.testing.azurite import Azurite, AzuriteMissingError

    try:
        started = Azurite()
    except AzuriteMissingError as missing:
        pytest.skip(f"{missing}; run scripts/install-servers")
    with started:
        yield started


@pytest.fixture
def chaos(pytestconfig: pytest.Config) -> bool:
    """Whether to try every crash point rather than a sample."""
    chosen: bool = pytestconfig.getoption("chaos")
    return chosen


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """`golden("claim.sqlite.sql", text)`: the text is what tests/golden holds; `make golden` rewrites it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if pytestconfig.getoption("update_golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        kept = path.read_text() if path.exists() else ""
        assert text == kept, f"tests/golden/{name} differs; if the text is right: make golden"

    return compare


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stepfast")
    group.addoption(
        "--databases",
        type=_kinds,
        default=(*KINDS, POOLED),
        metavar="KINDS",
        help=f"run on these only, separated by commas: {','.join((*KINDS, POOLED))}",
    )
    group.addoption("--chaos", action="store_true", help="every crash point, and the soak")
    group.addoption("--part", type=Part.check, metavar="N/M", help="run the N-th of M parts of the tests")
    group.addoption(
        "--resume", action="store_true", help="leave out tests that have passed with the same sources"
    )
    group.addoption("--update-golden", action="store_true", help="rewrite tests/golden from the code")


def pytest_configure(config: pytest.Config) -> None:
    # Hundreds of processes import the package; without its bytecode each of them compiles it, in 100 ms or more.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # A shell that runs us in the background lets everything we start ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # ... and after nohup, a closed terminal: we go on, and what we start does not inherit that.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # Typer builds the whole tree of commands for each call, in 70 ms.
    vars(typer.testing)["_get_command"] = vars(typer.main)["get_command"] = cache(typer.main.get_command)
    pytest.register_assert_rewrite("tests.support.run_facts", "tests.crash.recovery")
    databases = Databases()
    config.stash[DATABASES] = databases
    config.add_cleanup(databases.close)
    # The same examples every time: what a change broke shows with that change. `make chaos` looks for new ones.
    settings.register_profile(
        "stepfast",
        derandomize=not config.getoption("chaos"),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("stepfast")
    if config.getoption("resume"):
        config.pluginmanager.register(Passed(config), "passed")
    if ci.ENABLED:
        config.pluginmanager.register(ci.SkipsAreFailures(), "skips-are-failures")


def pytest_report_header() -> str:
    return f"crash points: STEPFAST_CRASH_SEED={SEED}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("only_on")
        wanted = _kinds(",".join(marker.args)) if marker else (*KINDS, *_behind_pooler(metafunc))
        chosen = metafunc.config.getoption("databases")
        metafunc.parametrize("database_kind", [it for it in wanted if it in chosen], indirect=True)


def _behind_pooler(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    name = _name(metafunc.definition.path)
    every = metafunc.config.getoption("chaos") and name.startswith("contract/")
    return (POOLED,) if every or name in BEHIND_POOLER else ()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("chaos"):
        left_out = [it for it in items if it.get_closest_marker("chaos") or not _is_drawn(it)]
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [it for it in items if it not in dropped]
    drop(config, items)


def _is_drawn(item: pytest.Item) -> bool:
    """Whether today is the day of a case of which a part is tried every day; `make chaos` tries all of them.

    SQLite tries everything but the mutations, and the servers what only they can show; a crash that only they can show is
    tried on one of them. Otherwise they try every case of the engine's core, every second one that a promise of the README
    names, every third crash, and every fourth of the rest.
    """
    if servers := _servers_in_turn(item):
        turn = zlib.crc32(f"{SEED} {item.nodeid.partition('[')[0]}".encode()) % len(servers)
        return _parameters(item).get("database_kind") == servers[turn]
    return zlib.crc32(f"{SEED} {item.nodeid}".encode()) % _days(item) == 0


def _servers_in_turn(item: pytest.Item) -> tuple[str, ...]:
    """The servers of a crash test that runs on several of them, and on nothing else."""
    marker = item.get_closest_marker("only_on")
    if marker is None or not _name(item.path).startswith("crash/") or "sqlite" in marker.args:
        return ()
    return tuple(marker.args) if len(marker.args) > 1 else ()


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _days(item: pytest.Item) -> int:
    """A case is tried on one day of so many."""
    params = _parameters(item)
    if "mutation" in params:
        return 5
    name = _name(item.path)
    kind = params.get("database_kind", "sqlite")
    if kind == "sqlite" or item.get_closest_marker("only_on"):
        return 1
    if name in CORE and kind != POOLED:
        return 1
    sampled = (
        kind == POOLED or item.get_closest_marker("sampled") or SAMPLED & {name, name.rpartition("/")[0]}
    )
    if sampled or (name not in PROMISED and name.startswith(("contract/", "cli/", "diamonds/"))):
        return 4
    return 3 if name.startswith("crash/") else 2


def _name(path: Path) -> str:
    """`contract/jobs/test_commit`"""
    return path.relative_to(GOLDEN.parent).with_suffix("").as_posix()


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.getoption("collectonly"):
        for item in session.items:
            if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
                session.config.stash[DATABASES].expect(str(item.callspec.params.get("database_kind")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind in terminalreporter.config.getoption("databases"):
        if missing := _missing(kind):
            terminalreporter.write_sep("!", f"NOT TESTED on {kind}: {missing}", red=True, bold=True)
    for line in repeating(terminalreporter):
        terminalreporter.write_line(line)


MOST_REPEATED = 20  # failures whose command is printed


def repeating(reporter: pytest.TerminalReporter) -> list[str]:
    """The commands that repeat what failed, on any day: the sample of a day belongs to its seed."""
    failed = [it.nodeid for kind in ("failed", "error") for it in reporter.stats.get(kind, [])]
    chosen = "--chaos " if reporter.config.getoption("chaos") else ""
    return [
        f"repeat: STEPFAST_CRASH_SEED={SEED} .venv/bin/pytest {chosen}{shlex.quote(it)}"
        for it in dict.fromkeys(failed[:MOST_REPEATED])
    ]


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    known = (*KINDS, POOLED)
    if unknown := set(kinds) - set(known):
        raise pytest.UsageError(
            f"no such database: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    return kinds


def _skip_if_missing(kind: str) -> None:
    if missing := _missing(kind):
        pytest.skip(missing)


def _missing(kind: str) -> str:
    try:
        if kind in ENGINES:
            ENGINES[kind].find()
        if kind == POOLED:
            ENGINES["postgresql"].find()
            pgbouncer_program()
    except ServerMissingError as error:
        return str(error)
    return ""
