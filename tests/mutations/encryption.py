"""Guards of encryption and of masked arguments, each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.telemetry import masking
from stepfast.telemetry.masking import Rules
from tests.contract.admin import test_masking
from tests.contract.jobs import test_encryption
from tests.mutations.events import with_keys
from tests.mutations.mutation import Break, Mutation, replacing, without
from tests.unit.telemetry import test_mask_patterns

if TYPE_CHECKING:
    import pytest

    from stepfast.database.dialects import Dialect


def without_rules(broken: Break) -> Break:
    """Start from no masking rules, and leave none: they hold for the whole process."""

    def change(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        for name, value in vars(Rules()).items():
            patch.setattr(masking._RULES, name, value)
        broken.change(patch, dialect)

    return Break(broken.targets, change)


MUTATIONS = [
    # Encryption
    Mutation(
        "reports show what is encrypted",
        with_keys(replacing("stepfast.admin.jobs:is_sealed", lambda _: False)),
        test_encryption.test_reports_say_encrypted_and_decrypting_is_written_down,
        only_on=("sqlite",),
    ),
    Mutation(
        "nobody writes down who decrypts",
        with_keys(replacing("stepfast.admin.encryption:record", lambda *_, **__: None)),
        test_encryption.test_reports_say_encrypted_and_decrypting_is_written_down,
        or_with=(ValueError,),
        only_on=("sqlite",),
    ),
    Mutation(
        "a document is not bound to its job",
        with_keys(
            replacing("stepfast.encryption:_bound", lambda _version, purpose, _owner: purpose.encode())
        ),
        test_encryption.test_what_belongs_to_one_job_does_not_open_in_the_row_of_another,
        only_on=("sqlite",),
    ),
    Mutation(
        "plain text passes for what is encrypted",
        with_keys(replacing("stepfast.jobs.kinds:Kind._refuse_plain", lambda *_: None)),
        test_encryption.test_plain_text_for_an_encrypted_kind_is_refused_and_waits,
        only_on=("sqlite",),
    ),
    Mutation(
        "rotation leaves the payloads of unfinished jobs as they are",
        with_keys(
            without(
                "stepfast.admin.encryption:WRITE_JOB", "= {json_of:payload}", "= COALESCE(payload, :payload)"
            )
        ),
        test_encryption.test_rotation_seals_everything_under_the_first_key_and_the_old_one_may_go,
        only_on=("sqlite",),
    ),
    # Masking
    Mutation(
        "an error quotes what is hidden of the arguments",
        without_rules(replacing("stepfast.worker.running:hidden_in", lambda _: ())),
        test_masking.test_an_error_that_quotes_a_hidden_argument_is_kept_without_it,
        only_on=("sqlite",),
    ),
    Mutation(
        "passwords in payloads are shown unless there is a rule",
        without_rules(replacing("stepfast.telemetry.masking:is_secret_field", lambda *_: False)),
        test_masking.test_passwords_are_hidden_without_a_rule,
        only_on=("sqlite",),
    ),
    Mutation(
        "a masking pattern may take hours",
        replacing("stepfast.telemetry.masking:problem_of_pattern", lambda _: None),
        test_mask_patterns.test_a_pattern_that_could_take_hours_is_refused_in_words,
        {"pattern": "(a+)+b"},
        only_on=("sqlite",),
    ),
]
