"""Every example runs, and prints what it proves."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
PROGRAM = str(Path(sys.executable).with_name("stepfast"))


def run(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"examples.{module}"],
        cwd=ROOT,
        env=_surroundings(folder),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _surroundings(folder: Path) -> dict[str, str]:
    chosen = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
    return chosen | {"TMPDIR": str(folder), "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}


def test_a_killed_worker_loses_and_doubles_nothing(tmp_path: Path) -> None:
    done = run("crash_and_recover", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    for fact in ("rows in the ledger", "different steps among them"):
        assert re.search(rf"{fact} +│ 400 +│ 400 +│ right", done.stdout)
    for fact in ("effects lost", "effects doubled", "jobs unfinished, dead or cancelled"):
        assert re.search(rf"{fact} +│ 0 +│ 0 +│ right", done.stdout)
    assert "Every effect is there exactly once" in done.stdout
    held = _figure(done.stdout, r"leases that the killed worker held +│ (\d+)")
    again = _figure(done.stdout, r"the first of them ran again after +│ ([\d.]+) s")
    runs = _figure(done.stdout, r"handler runs +│ (\d+) for 400 steps")
    assert held > 0, "the kill hit nothing: it proves nothing"
    assert again < 15
    assert runs > 400, "a handler that was interrupted runs again: its running once is no promise of ours"


def _figure(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in:\n{text}"
    return float(found[1])


def test_a_proof_that_fails_is_a_failure(tmp_path: Path) -> None:
    script = (
        "import io, os, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "os.environ['STEPFAST_DATABASE_URL'] = f'sqlite:///{folder}/work.db'\n"
        "from rich.console import Console\n"
        "from examples import invoices, proof\n"
        "invoices.create_ledger()\n"
        "(folder / 'outside-world.txt').touch()\n"
        "crash = proof.Crash(1, 0.0, 0.0)\n"
        "sys.exit(proof.prove(Console(file=io.StringIO()), crash, proof.Expected(0, 1, 0), folder))\n"
    )

    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False, timeout=60)

    assert done.returncode == 1


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("transactional_enqueue", ["refused: order A-2", "['ship:A-1', 'ship:A-3']"]),
        ("limits", ["large 2, small 2 (2 allowed)", "although it was enqueued behind 100 others"]),
        (
            "schedules",
            ["report of", "for France", "every-second: every 1s (UTC), paused", "0 of them twice"],
        ),
        (
            "isolation",
            [
                "scan: dead: StepCrashed: its process was killed by SIGSEGV; it crashed 2 times",
                "convert: dead: StepTimeout: did not finish within 0.5 s",
                "unpack 400 MB: dead: MemoryLimitError: wanted more memory than its limit of 300 MB",
                "unpack 100 MB: done: d.zip: 100 MB in process",
                "greet: done: hello Ada, try 1",
            ],
        ),
        (
            "events_and_callbacks",
            [
                "kept: True",
                "sent twice: True",
                "order 2 was never paid",
                "approved by Ada; answered [200, 200], and 404",
            ],
        ),
        (
            "encryption",
            [
                "the card is in the database: False",
                "a report shows: encrypted",
                "rows encrypted anew: 1",
                "{'card': '***'}",
            ],
        ),
        ("debounce", ["8 calls, 2 jobs: [[0, 1, 2, 3, 4], [5, 6, 7]]"]),
        ("async_enqueue", ["orders: ['A-1']", "jobs:   ['ship:A-1']", "refused: key 'ship:A-1' is held"]),
        ("manual_lease", ["reset 1 expired lease", "scanner-1 comes back too late", "is dead"]),
        (
            "results_and_progress",
            ["try 2", "328350", "has no result: Cancelled: July", "alice did job.cancel"],
        ),
        (
            "observability",
            [
                "'errorMessage': 'the bank refused password=***'",
                'stepfast_jobs_total{kind="take_order",outcome="dead"} 1.0',
                "take_order continued",
                "send_mail done",
                "a secret was seen: False",
            ],
        ),
        ("queue_tasks", ["task 3: page 7 is missing", "Each task ran once, and each end was reported."]),
        (
            "webhooks_and_alerts",
            [
                "received order.shipped A-3, signed",
                "alert: ['Job ship died']",
                "dead: HTTP 410",
                "shipped A-4'",
            ],
        ),
        (
            "catalogue",
            [
                "run failed: 2 of 4 partitions",
                "after 30 rows: ValueError: the page is no JSON",
                "published: 0 items; watermark: None",
                "read again: partition-2, partition-3",
                "sold 10 items meanwhile and wanted fewer requests 1 times",
                "items that the shop has and we do not: 0",
                "incremental: 3 rows",
                "gone: 10, the shop sold 10",
                "The table and the shop are the same",
            ],
        ),
        (
            "dependencies",
            [
                "May: loaded 1000 rows of 4 parts",
                "May: reported 1000 rows",
                "June: DependencyFailed: job",
                "June: loaded 1000 rows of 4 parts",
                "June, after its tree was revived: done",
            ],
        ),
        ("steps_and_effects", ["step 2  error  ConnectionError", "done after 4 steps", "95 products"]),
    ],
)
def test_an_example_runs(module: str, says: list[str], tmp_path: Path) -> None:
    done = run(module, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    for words in says:
        assert words in done.stdout


def run_shop_tests(
    folder: Path, source: Path = ROOT, database: str | None = None
) -> subprocess.CompletedProcess[str]:
    chosen = {} if database is None else {"STEPFAST_TEST_DATABASE_URL": database}
    return run_tests_of("tested_shop", folder, source, **chosen)


def run_tests_of(
    example: str, folder: Path, source: Path = ROOT, also: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    options = ["-p", "no:cacheprovider", f"--basetemp={folder}/t"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", f"examples/{example}", *also, *options],
        cwd=source,
        env=_surroundings(folder) | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_an_application_and_its_tests(tmp_path: Path, database_kind: str, empty_database_url: str) -> None:
    done = run_shop_tests(tmp_path, database=None if database_kind == "sqlite" else empty_database_url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2\d passed", done.stdout)


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.parametrize(("framework", "tests"), [("fastapi_app", 5), ("django_app", 6)])
def test_an_application_in_a_framework_and_its_tests(
    framework: str, tests: int, tmp_path: Path, empty_database_url: str
) -> None:
    done = run_tests_of(framework, tmp_path, STEPFAST_DATABASE_URL=empty_database_url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout


def test_the_applications_can_be_tested_in_one_run(tmp_path: Path) -> None:
    done = run_tests_of("fastapi_app", tmp_path, also=("examples/django_app",))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


@pytest.mark.only_on("postgresql")  # on SQLite it would wait for the transaction that it is not in
@pytest.mark.parametrize(
    ("framework", "module", "right"),
    [
        ("fastapi_app", "main.py", "tx=session, "),
        ("django_app", "shop/views.py", "tx=connection, "),
    ],
)
def test_their_tests_notice_a_job_outside_the_transaction(
    framework: str, module: str, right: str, tmp_path: Path, empty_database_url: str
) -> None:
    copy = tmp_path / "examples"
    shutil.copytree(ROOT / "examples" / framework, copy / framework)
    (copy / "__init__.py").touch()
    view = copy / framework / module
    assert right in view.read_text()
    view.write_text(view.read_text().replace(right, ""))

    done = run_tests_of(framework, tmp_path, tmp_path, STEPFAST_DATABASE_URL=empty_database_url)

    assert done.returncode == 1, done.stdout
    assert "FAILED examples/" in done.stdout
    assert "test_an_order_that_is_refused_leaves_no_row_and_no_job" in done.stdout


def test_its_tests_notice_an_effect_that_is_none(tmp_path: Path) -> None:
    """The crash tests of the example notice a write in the handler instead of in the step's commit."""
    copy = tmp_path / "examples"
    shutil.copytree(ROOT / "examples" / "tested_shop", copy / "tested_shop")
    (copy / "__init__.py").touch()
    shop = copy / "tested_shop" / "shop.py"
    right = "    step.effect(lambda tx: book(tx, amount))"
    assert right in shop.read_text()
    wrong = "    with app.transaction() as tx:\n        book(tx, amount)"
    shop.write_text(shop.read_text().replace(right, wrong))

    done = run_shop_tests(tmp_path, tmp_path)

    failed = re.findall(r"^FAILED .*test_wherever_the_worker_dies.*\[(.*)\]", done.stdout, re.MULTILINE)
    assert set(failed) == {"after handler", "before effects", "after effects", "after commit"}


def test_the_quickstart_ends_in_one_invoice_after_a_crash(tmp_path: Path) -> None:
    (tmp_path / "quickstart.py").write_text((ROOT / "examples" / "quickstart.py").read_text())
    subprocess.run([sys.executable, "quickstart.py"], cwd=tmp_path, check=True, timeout=60)

    with _worker(tmp_path, "first") as first:
        rows.eventually(lambda: "A-17: try 1" in (tmp_path / "first").read_text())
        first.send_signal(signal.SIGKILL)
        first.wait()
    with _worker(tmp_path, "second") as second:
        rows.eventually(lambda: _invoices(tmp_path))
        second.terminate()
        code = second.wait(timeout=30)

    assert code == 0
    assert (
        "A-17: try 1" in (tmp_path / "second").read_text()
    )  # the first worker gave it back, without a charge
    assert _invoices(tmp_path) == ["A-17"]


@contextmanager
def _worker(folder: Path, log: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / log).open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "worker", "quickstart:app"], cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _invoices(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "quickstart.db")) as connection:
        return [row[0] for row in connection.execute("SELECT order_id FROM invoice")]
