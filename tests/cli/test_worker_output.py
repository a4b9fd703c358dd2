"""A real worker process as an operator sees it: its log, metrics, health and spans."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devtools.processes import family
from tests.support import rows
from tests.support.jobs_in_every_state import greeting

if TYPE_CHECKING:
    from stepfast import Stepfast

PROGRAM = str(Path(sys.executable).with_name("stepfast"))
SHOP = """
import logging, os, signal
from stepfast import Stepfast, Retry, Step

app = Stepfast()
log = logging.getLogger("shop")

@app.job()
async def greet(name: str) -> None: ...

@app.job(retry=Retry(attempts=1))
def fail(step: Step, pin: str) -> None:
    step.annotate(run_id="r-7", partition_id="p-1")
    log.info("trying password=%s", pin)
    raise ValueError(f"cannot reach https://me:{pin}@bank.example")
"""


class Watched:
    """`stepfast worker shop:app`, and what it says."""

    def __init__(self, folder: Path, url: str, *options: str, **environment: str) -> None:
        (folder / "shop.py").write_text(SHOP)
        self._log = folder / "worker.log"
        self._out = folder / "worker.out"
        with self._log.open("wb") as log, self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [PROGRAM, "--database-url", url, "worker", "shop:app", *options],
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
                stdout=out,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def printed(self) -> str:
        return self._out.read_text()

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.splitlines() if line.endswith("}")]

    def told(self, event: str) -> dict[str, Any]:
        """Wait for this event in its log of JSON."""

        def look() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.said
            return next((it for it in self.entries if it["event"] == event), None)

        return rows.eventually(look)

    def ask(self, path: str) -> tuple[int, str]:
        port = self.told("metrics.served")["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, tuple[str, ...]], float]:
        code, text = self.ask("/metrics")
        assert code == 200
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family_ in text_string_to_metric_families(text)
            for sample in family_.samples
        }

    def healthy(self) -> bool:
        return self.ask("/healthz")[0] == 200

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def watched(folder: Path, url: str, *options: str, **environment: str) -> Iterator[Watched]:
    worker = Watched(folder, url, *options, **environment)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()


def test_a_scrape_over_http_counts_the_jobs_of_a_real_worker(
    app: Stepfast, database_url: str, tmp_path: Path
) -> None:
    greeting(app).enqueue_many([{"name": "Ada"}] * 5)
    app.job(name="fail")(_fail).enqueue(pin="hunter2")

    with watched(tmp_path, database_url, "--metrics-port", "0", STEPFAST_LOG_FORMAT="json") as worker:
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)
        rows.eventually(worker.healthy)
        found = rows.eventually(
            lambda: it if (it := worker.metrics()).get(("stepfast_jobs_total", ("fail", "dead"))) else None
        )
        code = worker.stop()

    assert code == 0
    assert found["stepfast_jobs_total", ("greet", "done")] == 5
    assert found["stepfast_processing_seconds_count", ("greet",)] == 5
    assert found["stepfast_lease_hold_seconds_count", ("greet",)] == 5
    assert found["stepfast_pickup_seconds_count", ("default",)] == 6
    assert found["stepfast_dead_letters", ("default",)] == 1
    assert found["stepfast_workers_alive", ()] == 1
    assert found["stepfast_database_up", ()] == 1


def _fail(pin: str) -> None:
    raise AssertionError(pin)


@pytest.mark.only_on("sqlite")
def test_an_error_in_the_log_says_what_where_and_whose_and_shows_no_secret(
    app: Stepfast, database_url: str, tmp_path: Path
) -> None:
    job_id = app.job(name="fail")(_fail).enqueue(pin="hunter2").id

    with watched(tmp_path, database_url, "--log-format", "json", "--worker-id", "w-1") as worker:
        died = worker.told("job.died")
        worker.stop()

    assert {
        name: died[name] for name in ("level", "errorType", "runId", "partitionId", "workerId", "jobId")
    } == {
        "level": "error",
        "errorType": "ValueError",
        "runId": "r-7",
        "partitionId": "p-1",
        "workerId": "w-1",
        "jobId": job_id,
    }
    assert died["errorMessage"] == "cannot reach https://me:***@bank.example"
    assert died["traceId"] == job_id.replace("-", "")
    (line,) = [it for it in worker.entries if it["logger"] == "shop"]
    assert (line["event"], line["jobId"], line["runId"]) == ("trying password=***", job_id, "r-7")
    assert "hunter2" not in worker.said
    assert all({"timestamp", "level", "event", "logger"} <= set(it) for it in worker.entries)


@pytest.mark.only_on("sqlite")
def test_one_port_answers_for_all_processes(app: Stepfast, database_url: str, tmp_path: Path) -> None:
    options = ("--processes", "2", "--metrics-port", "0", "--log-format", "json")
    with watched(tmp_path, database_url, *options) as worker:
        rows.eventually(worker.healthy)
        greeting(app).enqueue_many([{"name": "Ada"}] * 30)
        done = ("stepfast_jobs_total", ("greet", "done"))
        rows.eventually(lambda: worker.metrics().get(done) == 30)
        rows.eventually(lambda: worker.metrics()["stepfast_workers_alive", ()] == 2)

        os.kill(family(worker.process.pid)[1], signal.SIGKILL)
        ill = rows.eventually(lambda: it if (it := worker.ask("/healthz"))[0] == 503 else None)
        rows.eventually(worker.healthy)

        assert worker.metrics()[done] == 30, "what a dead child had counted is not forgotten"
        code = worker.stop()

    assert code == 0
    assert json.loads(ill[1])["problems"][0].startswith("process ")


@pytest.mark.only_on("sqlite")
def test_spans_go_where_the_environment_says(app: Stepfast, database_url: str, tmp_path: Path) -> None:
    job_id = greeting(app).enqueue(name="Ada").id

    with watched(tmp_path, database_url, OTEL_TRACES_EXPORTER="console") as worker:
        rows.eventually(lambda: rows.state(app, job_id) == "done")
        assert worker.stop() == 0

    (span,) = [json.loads(it + "}") for it in worker.printed.split("\n}\n") if it]
    assert span["name"] == "greet"
    assert span["context"]["trace_id"] == "0x" + job_id.replace("-", "")
    assert span["attributes"]["stepfast.outcome"] == "done"
    assert span["resource"]["attributes"]["service.name"] == "stepfast"


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("options", "environment", "complaint"),
    [
        (["--log-format", "xml"], {}, "log format 'xml': use auto, terminal, console or json"),
        ([], {"STEPFAST_LOG_LEVEL": "loud"}, "log level 'loud': use debug, info, warning or error"),
        (["--metrics-port", "99999"], {}, "metrics port 99999: use 1 to 65535"),
        ([], {"OTEL_TRACES_EXPORTER": "smoke-signals"}, "there is no exporter 'smoke-signals' here"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    database_url: str, tmp_path: Path, options: list[str], environment: dict[str, str], complaint: str
) -> None:
    with watched(tmp_path, database_url, *options, **environment) as worker:
        code = worker.process.wait(30)

    assert code == 1
    assert worker.said.startswith("stepfast: ")
    assert worker.said.count("\n") == 1
    assert complaint in worker.said


@pytest.mark.only_on("sqlite")
def test_a_taken_port_is_refused_before_anything_is_taken(
    app: Stepfast, database_url: str, tmp_path: Path
) -> None:
    greeting(app).enqueue(name="Ada")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with watched(tmp_path, database_url, STEPFAST_METRICS_PORT=port) as worker:
            code = worker.process.wait(30)

    assert code == 1
    assert f"metrics cannot be served at 127.0.0.1:{port}" in worker.said
    assert rows.count(app, "stepfast_job", "state = 'ready'") == 1


@pytest.mark.only_on("sqlite")
def test_a_lone_process_is_counted_with_the_worker_that_started_it(
    app: Stepfast, database_url: str, tmp_path: Path
) -> None:
    job_id = greeting(app).enqueue(name="Ada").id
    rows.change(
        app, "UPDATE stepfast_job SET state = 'suspect' WHERE id = :id AND state = 'ready'", id=job_id
    )

    with watched(tmp_path, database_url, "--metrics-port", "0", "--log-format", "json") as worker:
        rows.eventually(lambda: rows.state(app, job_id) == "done")
        begun = time.monotonic()
        rows.eventually(lambda: worker.metrics().get(("stepfast_jobs_total", ("greet", "done"))) == 1)
        assert time.monotonic() - begun < 15
        assert worker.stop() == 0


@pytest.mark.only_on("sqlite")
def test_a_person_sees_what_the_worker_is_and_what_each_job_does(
    app: Stepfast, database_url: str, tmp_path: Path
) -> None:
    greeting(app).enqueue(name="Ada")
    app.job(name="fail")(_fail).enqueue(pin="hunter2")

    with watched(tmp_path, database_url, "--log-format", "terminal", NO_COLOR="1") as worker:
        rows.eventually(lambda: "done in" in worker.said and "gave up" in worker.said)
        worker.process.send_signal(signal.SIGINT)
        assert worker.process.wait(30) == 0

    banner, _, lines = worker.said.partition("\n\n")
    assert banner.startswith("Stepfast ")
    assert "  application  shop:app\n" in banner
    assert "  queues       all\n" in banner
    assert "  jobs         fail, greet\n" in banner
    assert "greet  " in lines
    assert "ValueError: cannot reach" in lines
    assert "shop.py:15 in fail: raise ValueError(" in lines
    assert "hunter2" not in worker.said
    assert lines.splitlines()[-1].endswith("stopped")


@pytest.mark.only_on("sqlite")
def test_a_quiet_worker_shows_no_banner_and_no_jobs(app: Stepfast, database_url: str, tmp_path: Path) -> None:
    greeting(app).enqueue(name="Ada")

    with watched(tmp_path, database_url, "--log-format", "terminal", "--quiet") as worker:
        rows.eventually(lambda: not rows.count(app, "stepfast_job"))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0

    assert worker.said == ""


@pytest.mark.only_on("sqlite")
def test_a_worker_says_at_its_start_that_jobs_wait_where_no_worker_looks(
    app: Stepfast, database_url: str, tmp_path: Path
) -> None:
    greeting(app).with_options(queue="mail").enqueue(name="Ada")

    with watched(tmp_path, database_url, "--queues", "mial", "--log-format", "json") as worker:
        said = worker.told("queues.unserved")

    assert (said["queues"], said["note"]) == ("mail", "mail: start a worker with --queues mail")
