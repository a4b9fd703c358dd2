"""Guards of results and of waiting for them, each taken away once."""

from __future__ import annotations

from stepfast import ResultExpiredError, WaitTimeoutError
from stepfast.results import watch
from tests.contract.jobs import test_result_expiry, test_results, test_watch
from tests.mutations.mutation import SERVERS, Mutation, both, replacing, without

IMPATIENT = replacing("tests.contract.jobs.test_results:LESS_PATIENCE", 2)  # what it waits for will not come

MUTATIONS = [
    # Results are kept for their time, and who waits hears of the end.
    Mutation(
        "a result is emptied before its time",
        without("stepfast.results.outcome:EXPIRED_RESULTS", "AND finished_at < {now} - :age", ""),
        test_result_expiry.test_a_worker_says_how_long_results_are_kept,
        or_with=(ResultExpiredError,),
    ),
    Mutation(
        "results of all kinds are emptied",
        without(
            "stepfast.results.outcome:EXPIRED_RESULTS",
            lambda dialect: f"{'result_kind' if dialect.name == 'mariadb' else 'kind'} = :kind AND",
        ),
        test_result_expiry.test_a_kind_may_keep_its_results_for_another_time,
    ),
    Mutation(
        "an emptied result looks like none",
        without("stepfast.results.outcome:EMPTY_RESULTS", ", result_expired_at = {now}"),
        test_result_expiry.test_reading_an_expired_result_says_when_and_which_setting,
    ),
    Mutation(
        "nobody is told of what this process ended",
        both(replacing("stepfast.worker.committer:notify_waiting", lambda *_: None), IMPATIENT),
        test_results.test_who_waits_hears_at_once_of_a_job_that_this_process_ended,
        only_on=("sqlite",),
        or_with=(WaitTimeoutError,),
    ),
    Mutation(
        "news that come during a look are missed",
        both(replacing("stepfast.results.watch:TAKEN", watch.NOW), IMPATIENT),
        test_results.test_news_that_come_while_the_database_is_asked_are_not_missed,
        only_on=("sqlite",),
        or_with=(WaitTimeoutError,),
    ),
    Mutation(
        "a line that was committed late is missed",
        replacing("stepfast.results.watch:LogReader._read_late", lambda *_: None),
        test_watch.test_a_line_that_is_committed_after_a_later_one_is_not_missed,
        only_on=SERVERS,
    ),
]
