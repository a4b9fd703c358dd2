"""Guards of traces, metrics and logs, each taken away once."""

from __future__ import annotations

import re
from contextlib import nullcontext
from contextvars import ContextVar

from tests.contract.worker import test_telemetry, test_traces
from tests.mutations.mutation import Mutation, replacing, without
from tests.unit.telemetry import test_sinks

MUTATIONS = [
    # What is told of it.
    Mutation(
        "a replaced payload keeps the trace of the old one",
        without("stepfast.jobs.enqueue:REPLACE_JOB", "trace = :trace", "trace = COALESCE(trace, :trace)"),
        test_traces.test_a_payload_replaced_outside_of_any_trace_begins_its_own,
    ),
    Mutation(
        "what a handler enqueues is nobody's child",
        replacing("stepfast.worker.running:CURRENT", ContextVar("nobody", default=None)),
        test_traces.test_without_opentelemetry_one_id_follows_a_job_and_its_children,
    ),
    Mutation(
        "what an effect enqueues is nobody's child",
        replacing("stepfast.worker.running:Ended.inside", lambda _: nullcontext()),
        test_traces.test_without_opentelemetry_one_id_follows_a_job_and_its_children,
    ),
    Mutation(
        "a silent worker counts as alive",
        without("stepfast.admin.statistics:COUNT_WORKERS", "AND alive_until >= {now}"),
        test_telemetry.test_a_scrape_shows_how_full_the_database_is,
    ),
    Mutation(
        "a log quotes the data that a library complains of",
        replacing("stepfast.telemetry.masking:_QUOTED_DATA", re.compile("(?!)")),
        test_sinks.test_a_log_shows_no_secret_and_no_data_that_a_library_quotes,
        {"text": "DETAIL:  Key (email)=(hunter2) already exists."},
        only_on=("sqlite",),
    ),
    Mutation(
        "a text in a log makes a line of its own",
        replacing("stepfast.telemetry.sinks:one_line", str),
        test_sinks.test_fields_in_a_log_are_one_line_whatever_they_hold,
        only_on=("sqlite",),
    ),
    Mutation(
        "labels of metrics are as many as the names of jobs",
        replacing("stepfast.worker.metrics:MOST_VALUES", 1_000_000),
        test_telemetry.test_queues_without_number_are_shown_as_others,
        only_on=("sqlite",),
        or_with=(KeyError,),
    ),
]
