"""Counters and histograms, as Prometheus reads them."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stepfast.errors import ConfigurationError, install_hint
from stepfast.telemetry import EVENTS, listen, unlisten
from stepfast.telemetry.metrics import (
    BUCKETS,
    COUNTERS,
    GAUGES,
    HEARD,
    HISTOGRAMS,
    MOST_VALUES,
    Metrics,
    prometheus,
)
from stepfast.telemetry.sinks import happened
from stepfast.worker.metrics_process import Reports, Uplink

if TYPE_CHECKING:
    from stepfast.worker.guardian_link import GuardianLink


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    listen(metrics, HEARD)
    yield metrics
    unlisten(metrics)


def read(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a scrape shows, by name and labels."""
    registry = CollectorRegistry()
    registry.register(metrics)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return read(metrics).get((name, tuple(sorted(labels.items()))))


def test_a_batch_counts_each_job_of_its_kind(metrics: Metrics) -> None:
    happened("jobs.acknowledged", kind="greet", jobs=3, took_s=[0.002, 0.002, 4.0], held_s=[0.5, 0.5, 5.0])
    happened("jobs.acknowledged", kind="mail", jobs=1, took_s=[1.0], held_s=[1.0])
    happened("jobs.acknowledged", kind="greet", jobs=2, took_s=[0.002, 2000.0], held_s=[0.5, 2000.0])

    assert value(metrics, "stepfast_steps_total", kind="greet", outcome="done") == 5
    assert value(metrics, "stepfast_jobs_total", kind="mail", outcome="done") == 1
    assert value(metrics, "stepfast_processing_seconds_count", kind="greet") == 5
    assert value(metrics, "stepfast_processing_seconds_sum", kind="greet") == pytest.approx(2004.006)
    assert value(metrics, "stepfast_processing_seconds_bucket", kind="greet", le="0.001") == 0
    assert value(metrics, "stepfast_processing_seconds_bucket", kind="greet", le="0.0025") == 3
    assert value(metrics, "stepfast_processing_seconds_bucket", kind="greet", le="5.0") == 4
    assert value(metrics, "stepfast_processing_seconds_bucket", kind="greet", le="900.0") == 4
    assert value(metrics, "stepfast_processing_seconds_bucket", kind="greet", le="+Inf") == 5
    assert value(metrics, "stepfast_lease_hold_seconds_sum", kind="greet") == pytest.approx(2006.5)


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        ("step.failed", "stepfast_steps_total", {"outcome": "failed"}),
        ("step.postponed", "stepfast_steps_total", {"outcome": "postponed"}),
        ("step.refused", "stepfast_steps_total", {"outcome": "refused"}),
        ("job.died", "stepfast_jobs_total", {"outcome": "dead"}),
        ("job.cancelled", "stepfast_jobs_total", {"outcome": "cancelled"}),
        ("step.refused", "stepfast_refused_commits_total", {}),
        ("step.timed-out", "stepfast_timeouts_total", {}),
        ("duplicate.skipped", "stepfast_duplicates_total", {"answer": "skipped"}),
    ],
)
def test_what_happens_to_a_step_is_counted_by_kind(
    metrics: Metrics, event: str, name: str, labels: dict[str, str]
) -> None:
    happened(event, kind="greet")

    assert value(metrics, name, kind="greet", **labels) == 1


def test_a_step_that_only_continued_ended_no_job(metrics: Metrics) -> None:
    happened("step.committed", kind="greet", outcome="continued")

    assert value(metrics, "stepfast_steps_total", kind="greet", outcome="continued") == 1
    assert not [key for key in read(metrics) if key[0] == "stepfast_jobs_total"]


@pytest.mark.parametrize(
    ("event", "facts", "name", "expected"),
    [
        ("jobs.rescued", {"jobs": 25, "charged": 2}, "stepfast_rescued_jobs_total", 25),
        ("jobs.rescued", {"jobs": 25, "charged": 2}, "stepfast_crashes_charged_total", 2),
        ("jobs.promoted", {"jobs": 7}, "stepfast_promoted_jobs_total", 7),
        ("archive.pruned", {"jobs": 7}, "stepfast_pruned_jobs_total", 7),
        ("worker.declared-dead", {}, "stepfast_dead_workers_total", 1),
        ("heartbeat.failed", {}, "stepfast_heartbeat_failures_total", 1),
        ("database.lost", {}, "stepfast_database_outages_total", 1),
    ],
)
def test_what_happens_to_a_worker_is_counted_from_nought(
    metrics: Metrics, event: str, facts: dict[str, Any], name: str, expected: float
) -> None:
    before = value(metrics, name)

    happened(event, **facts)

    assert (before, value(metrics, name)) == (0, expected)


def test_the_time_that_a_job_waited_is_told_by_queue(metrics: Metrics) -> None:
    happened("jobs.claimed", queue="mail", jobs=2, waited_s=[0.01, 0.2])
    happened("jobs.claimed", queue="mail", jobs=0, waited_s=[])
    happened("jobs.claimed", queue="mail", jobs=1, waited_s=None)

    assert value(metrics, "stepfast_pickup_seconds_count", queue="mail") == 2
    assert value(metrics, "stepfast_claimed_jobs_total", queue="mail") == 3


def measured(metrics: Metrics, state: str) -> float | None:
    return value(metrics, "stepfast_broker_messages", transport="service-bus", queue="work", state=state)


def test_the_latest_figures_of_a_brokers_queue_are_shown_as_far_as_it_tells(metrics: Metrics) -> None:
    for ready in (7, 120):
        happened(
            "broker.measured",
            transport="service-bus",
            queue="work",
            ready=ready,
            held=None,
            scheduled=0,
            dead=3,
        )

    assert [measured(metrics, it) for it in ("ready", "held", "scheduled", "dead")] == [120, None, 0, 3]


def test_figures_of_a_queue_that_nobody_asks_any_more_vanish(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened("broker.measured", transport="service-bus", queue="work", ready=7)
    monkeypatch.setattr("stepfast.telemetry.metrics.FRESH", 0.0)

    assert measured(metrics, "ready") is None


def test_figures_of_another_process_are_shown_here(metrics: Metrics) -> None:
    happened("broker.measured", transport="service-bus", queue="work", ready=7)
    here = Metrics()

    here.add(json.loads(json.dumps(metrics.take())))

    assert (measured(here, "ready"), measured(metrics, "ready")) == (7, None)


def test_labels_are_few_whatever_the_kinds_are_called(metrics: Metrics) -> None:
    for n in range(MOST_VALUES + 50):
        happened("step.failed", kind=f"kind-{n}")
    happened("step.failed", kind="kind-3")

    kinds = {dict(key[1])["kind"] for key in read(metrics) if key[0] == "stepfast_steps_total"}
    assert len(kinds) == MOST_VALUES + 1
    assert value(metrics, "stepfast_steps_total", kind="other", outcome="failed") == 50
    assert value(metrics, "stepfast_steps_total", kind="kind-3", outcome="failed") == 2


def test_labels_are_kind_queue_and_what_is_fixed() -> None:
    assert {label for it in (*COUNTERS, *HISTOGRAMS) for label in it.labels} <= {
        "kind",
        "queue",
        "outcome",
        "answer",
        "channel",
        "field",
    }


def test_every_metric_hears_of_events_that_exist_and_fields_that_they_have() -> None:
    assert set(EVENTS) >= HEARD
    for counter in COUNTERS:
        for name, fixed in counter.events.items():
            asked = {*counter.labels} - set(fixed) | (
                {counter.by} if counter.by and counter.labels == () else set()
            )
            assert asked <= {*EVENTS[name].fields, "kind", "queue"}, (counter.name, name)
    for histogram in HISTOGRAMS:
        for name in histogram.events:
            assert histogram.of in EVENTS[name].fields, (histogram.name, name)
    for gauge in GAUGES:
        assert {*gauge.labels[:-1], *gauge.fields} <= set(EVENTS[gauge.event].fields), gauge.name


def test_many_threads_lose_nothing(metrics: Metrics) -> None:
    def tell() -> None:
        for _ in range(500):
            happened("jobs.acknowledged", kind="greet", jobs=2, took_s=[0.1, 0.1], held_s=[0.1, 0.1])

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value(metrics, "stepfast_steps_total", kind="greet", outcome="done") == 4_000
    assert value(metrics, "stepfast_lease_hold_seconds_count", kind="greet") == 4_000


def test_without_the_extra_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigurationError, match=re.escape(install_hint("telemetry"))):
        prometheus()


# From one process to another


def test_what_is_taken_from_one_is_added_to_another() -> None:
    theirs, mine = Metrics(), Metrics()
    for metrics in (theirs, mine):
        metrics(
            "jobs.acknowledged", {"kind": "greet", "jobs": 2, "took_s": [0.002, 3.0], "held_s": [1.0, 1.0]}
        )

    taken = json.loads(json.dumps(theirs.take()))
    mine.add(taken)
    mine.add(json.loads(json.dumps(theirs.take())))

    assert value(mine, "stepfast_steps_total", kind="greet", outcome="done") == 4
    assert value(mine, "stepfast_processing_seconds_bucket", kind="greet", le="0.0025") == 2
    assert value(mine, "stepfast_processing_seconds_sum", kind="greet") == pytest.approx(6.004)
    assert len(taken["times"][0][2]) == len(BUCKETS) + 1


class Health:
    """A process in which these things are wrong."""

    def __init__(self, *problems: str) -> None:
        self._problems = list(problems)

    def problems(self) -> list[str]:
        return self._problems


class Wire:
    """A link to a guardian that passes the lines on at once, as JSON does."""

    def __init__(self, reports: Reports | None, child: int = 1) -> None:
        self._reports = reports
        self._child = child

    def send_metrics(self, line: dict[str, Any]) -> bool:
        if self._reports is None:
            return False
        self._reports.hear(json.loads(json.dumps({"child": self._child, **line})))
        return True


def uplink_to(reports: Reports | None, child: int = 1) -> Uplink:
    return Uplink(cast("GuardianLink", Wire(reports, child)))


def test_a_child_tells_its_parent_what_it_counted_and_what_is_wrong() -> None:
    metrics = Metrics()
    reports = Reports(metrics, processes=1)
    unheard = reports.problems()
    uplink = uplink_to(reports)

    uplink.start(Health("the heartbeat is late"))
    happened("step.failed", kind="greet")
    uplink.stop()

    assert value(metrics, "stepfast_steps_total", kind="greet", outcome="failed") == 1
    assert unheard == ["process 1: it has not reported yet"]
    assert reports.problems() == ["process 1: the heartbeat is late"]


def test_counts_of_a_process_for_suspects_are_added_and_its_problems_are_its_own() -> None:
    metrics = Metrics()
    reports = Reports(metrics, processes=1)
    uplink = uplink_to(reports, child=0)

    uplink.start(Health("it runs suspects"))
    happened("step.failed", kind="greet")
    uplink.stop()

    assert value(metrics, "stepfast_steps_total", kind="greet", outcome="failed") == 1
    assert reports.problems() == ["process 1: it has not reported yet"]


def test_a_process_that_ended_is_a_problem_until_its_successor_reports() -> None:
    reports = Reports(Metrics(), processes=2)
    for number in (1, 2):
        reports.hear({"child": number, "metrics": {"counts": [], "times": []}, "problems": []})
    healthy = reports.problems()

    reports.hear({"child": 2, "ended": -9, "restart_in_s": 1.0})
    ended = reports.problems()
    reports.hear({"child": 2, "metrics": {"counts": [], "times": []}, "problems": []})

    assert (healthy, reports.problems()) == ([], [])
    assert ended == ["process 2 has ended; it starts again in 1 s"]


def test_a_child_whose_parent_is_gone_goes_on() -> None:
    uplink = uplink_to(None)

    uplink.start(Health())
    uplink.stop()
