"""Guards of the audit log and of reports, each taken away once."""

from __future__ import annotations

from stepfast.errors import ConstraintError
from tests.contract.admin import test_audit, test_doctor, test_odd_rows, test_reports, test_run_reports
from tests.mutations.mutation import Mutation, replacing, without

MUTATIONS = [
    Mutation(
        "a value that somebody wrote by hand ends the report",
        replacing("stepfast.admin.rows:_converted", lambda value, read_one: read_one(value)),
        test_odd_rows.test_no_report_fails_because_of_one_row,
        only_on=("sqlite",),  # of the three it alone takes such rows
    ),
    Mutation(
        "an action is not written down",
        replacing("stepfast.admin.jobs:record", lambda *_, **__: None),
        test_audit.test_an_action_is_written_down_with_who_what_and_why,
        {"deed": test_audit.cancel_a_waiting_job},
    ),
    Mutation(
        "only the first batch is counted",
        without("stepfast.admin.audit:ADD_TOUCHED", "touched + :touched", "touched"),
        test_audit.test_an_action_is_written_down_with_who_what_and_why,
        {"deed": test_audit.retry_dead_letters},
    ),
    Mutation(
        "a command that was cut short looks complete",
        without("stepfast.admin.audit:INSERT_ENTRY", "CASE WHEN :ended = 1 THEN {now} END", "{now}"),
        test_audit.test_a_command_that_stops_in_the_middle_says_how_far_it_came,
        or_with=(ConstraintError,),
    ),
    Mutation(
        "what operators did lately is forgotten",
        without("stepfast.admin.audit:OLD_ENTRIES", "at < {now} - :age", "1 = 1"),
        test_audit.test_old_entries_are_forgotten_in_batches,
    ),
    Mutation(
        "the time of what died counts among the times of what is done",
        without("stepfast.admin.statistics:TIMES_BY_KIND", "state = 'done' AND "),
        test_reports.test_statistics_tell_the_median_and_the_slow_ones,
    ),
    Mutation(
        "failures of long ago count for ever",
        without(
            "stepfast.admin.statistics:FAILED_BY_KIND",
            "finished_at >= {now} - :span",
            "finished_at >= 0 * :span",
        ),
        test_reports.test_statistics_tell_what_jobs_failed_of_and_what_became_of_them,
    ),
    Mutation(
        "a failed run that no later one has overtaken needs nobody",
        without(
            "stepfast.admin.doctor.work:OVERTAKEN_DEAD_LETTERS", "AND n.started_at > r.started_at", "OR 1 = 1"
        ),
        test_doctor.test_dead_letters_of_brokers_and_of_overtaken_runs_are_counted,
    ),
    Mutation(
        "a worker that is gone is believed to read",
        without(
            "stepfast.admin.run_reports:LIST_PARTITIONS",
            " OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now})",
        ),
        test_run_reports.test_a_partition_that_waits_its_turn_is_not_stuck,
    ),
]
