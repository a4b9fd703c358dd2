"""Guards of handlers that run in processes of their own, each taken away once."""

from __future__ import annotations

from stepfast.jobs.kinds import checked_isolation
from stepfast.jobs.retry import judge
from tests.contract.admin import test_masking
from tests.contract.worker import test_isolation
from tests.mutations.mutation import Mutation, replacing, without
from tests.unit.worker import test_isolated_effects

CRASH = {"how": "exit", "fate": "ended with exit code 3"}

MUTATIONS = [
    Mutation(
        "the last crash is not counted",
        without("stepfast.jobs.commit:RECORD_FAILURE", "crashes + :crash", "crashes + 0 * :crash"),
        test_isolation.test_a_crash_is_the_jobs_own,
        CRASH,
    ),
    Mutation(
        "a crash is an error like any other",
        replacing(
            "stepfast.worker.isolation.step:judge_crash", lambda error, retry, *_: judge(error, retry, 0, 0.0)
        ),
        test_isolation.test_a_crash_is_the_jobs_own,
        CRASH,
        only_on=("sqlite",),
    ),
    Mutation(
        "whom a handler has started outlives it",
        replacing("stepfast.worker.isolation.pool:HandlerProcess.kill", lambda it: it._process.kill()),
        test_isolation.test_a_step_that_ignores_its_timeout_is_killed_with_all_that_it_started,
        only_on=("sqlite",),
    ),
    Mutation(
        "any answer is taken for that of the step",
        replacing("stepfast.worker.isolation.step:of_step", lambda *_: True),
        test_isolation.test_an_answer_to_another_step_is_nobodys,
        only_on=("sqlite",),
    ),
    Mutation(
        "what an isolated handler logs is written with its secrets",
        replacing("stepfast.worker.running:hidden_arguments", lambda _: ()),
        test_masking.test_what_an_isolated_handler_says_is_hidden_as_well,
        only_on=("sqlite",),
    ),
    Mutation(
        "a limit of memory is forgotten",
        replacing(
            "stepfast.job:checked_isolation",
            lambda kind, it, how, _, env: checked_isolation(kind, it, how, None, env),
        ),
        test_isolation.test_a_step_holds_no_more_memory_than_it_may,
        only_on=("sqlite",),
    ),
    Mutation(
        "the worker calls whatever a handler's process names",
        replacing("stepfast.worker.isolation.effects:is_declared", lambda _: True),
        test_isolated_effects.test_forged_data_make_nothing_in_the_worker,
        {"forged": ["call", ["function", "os:system"]]},
        only_on=("sqlite",),
    ),
    Mutation(
        "a handler's process inherits every variable",
        replacing("stepfast.worker.isolation.pool:environment_of", lambda _: None),
        test_isolation.test_a_process_gets_the_variables_that_its_job_names_and_no_others,
        only_on=("sqlite",),
    ),
    Mutation(
        "a worn process is used on",
        replacing("stepfast.worker.isolation.pool:HandlerProcess.worn", property(lambda _: False)),
        test_isolation.test_a_process_is_replaced_after_so_many_steps,
        only_on=("sqlite",),
    ),
    Mutation(
        "a process that died at rest is used on",
        replacing(
            "stepfast.worker.isolation.pool:HandlerProcesses._rested",
            lambda it, _env: it._idle.pop() if it._idle else None,
        ),
        test_isolation.test_a_process_that_dies_while_it_rests_is_nobodys_crash,
        only_on=("sqlite",),
    ),
]
