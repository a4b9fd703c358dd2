"""Encrypted jobs: no table holds their contents in the clear, and handlers see no difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Concurrency, Continue, Reject, Retry, SealedError, Step, Stepfast, Wait
from stepfast.admin import encryption as keys
from stepfast.database.connection import Connection
from stepfast.encryption import Encryption, key_id, keyring
from stepfast.errors import PermanentError, PlainTextError, StepfastError
from stepfast.jobs.dependencies import results_of_parents
from stepfast.testing import clock, drain, enqueued
from stepfast.worker.scheduler import Scheduler
from tests.crash.table_dump import ALL_TABLES
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Job

OLD, NEW = "the old key that nobody can guess: 40+", "the new key that nobody can guess: 40+"
SECRET = "4111-1111-1111-1111"
FORGED = '{"card":"ATTACKER"}'
TABLES = [it for it in ALL_TABLES if it.startswith("stepfast_")]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", OLD)


def copy_column(app: Stepfast, column: str, origin: str, target: str) -> None:
    (found,) = rows.query(app, f"SELECT {column} AS it FROM stepfast_job WHERE id = '{origin}'")
    text = found["it"] if isinstance(found["it"], str) else json.dumps(found["it"])
    rows.change(app, f"UPDATE stepfast_job SET {column} = '{text}' WHERE id = '{target}'")


def leaks(app: Stepfast) -> list[str]:
    """Tables in which the secret can be read."""
    return [it for it in TABLES if SECRET in str(rows.query(app, f"SELECT * FROM {it}"))]


def charging(app: Stepfast, seen: list[Any], *, encrypted: Encryption = True) -> Job[..., Any]:
    @app.job(encrypted=encrypted, retry=Retry(attempts=2, first="0ms"))
    def charge(step: Step, card: str) -> Continue | Wait | dict[str, str]:
        seen.append((step.number, card, step.cursor, step.event and step.event.payload))
        match step.number:
            case 0:
                return Continue({"card": card})
            case 1:
                return Wait("3ds", timeout="1h", cursor={"card": card})
            case _:
                return {"charged": card}

    return charge


def test_payload_cursor_event_and_result_are_readable_by_nobody_without_the_key(app: Stepfast) -> None:
    seen: list[Any] = []
    charge = charging(app, seen)

    job = charge.enqueue(card=SECRET)
    assert leaks(app) == []
    drain(app)
    assert leaks(app) == []
    app.events.send("3ds", {"card": SECRET}, encrypted=True)
    assert leaks(app) == []
    drain(app)

    assert seen == [
        (0, SECRET, None, None),
        (1, SECRET, {"card": SECRET}, None),
        (2, SECRET, {"card": SECRET}, {"card": SECRET}),
    ]
    assert app.result_of(job.id).result == {"charged": SECRET}
    assert leaks(app) == []


def test_many_at_once_schedules_and_leases_by_hand_are_encrypted_too(app: Stepfast) -> None:
    @app.job(encrypted=True, queue="by-hand")
    def charge(card: str) -> str:
        return card

    charge.enqueue_many([{"card": SECRET}, {"card": SECRET}])
    assert {it.arguments["card"] for it in enqueued(app, charge)} == {SECRET}
    held = app.acquire("me", queue="by-hand")
    assert held is not None
    assert held.payload == {"card": SECRET}
    app.release(held, "done", result=SECRET)
    assert app.result_of(held.job_id).result == SECRET
    app.schedule("daily", charge, cron="0 3 * * *", arguments={"card": "of the schedule"})
    scheduler = Scheduler(app.database, app.declared, app.kinds)
    scheduler.synchronise()
    with clock(app) as time:
        time.advance("25h")
        assert scheduler.fire()

    assert leaks(app) == []
    stored = rows.query(app, "SELECT payload FROM stepfast_job")
    assert all("stepfast.sealed" in str(row["payload"]) for row in stored)


def test_an_application_may_encrypt_everything_and_a_kind_may_not(app: Stepfast) -> None:
    everything = Stepfast(database=app.database, encrypted=True)

    @everything.job()
    def secret(card: str) -> None: ...
    @everything.job(encrypted=False)
    def public(card: str) -> None: ...

    secret.enqueue(card=SECRET)
    assert leaks(app) == []
    everything.events.send("paid", SECRET)
    assert leaks(app) == []
    public.enqueue(card=SECRET)
    assert leaks(app) == ["stepfast_job"]


def test_a_mixed_kind_encrypts_what_is_new_and_still_reads_plain_text(app: Stepfast) -> None:
    seen: list[Any] = []
    charging(app, seen, encrypted=False).enqueue(card="plain")
    later = Stepfast(database=app.database)
    charging(later, seen, encrypted="mixed").enqueue(card=SECRET)
    assert leaks(app) == []

    drain(later)

    assert {card for _, card, _, _ in seen} == {"plain", SECRET}


def test_plain_text_for_an_encrypted_kind_is_refused_and_waits(app: Stepfast) -> None:
    seen: list[Any] = []
    charge = charging(app, seen)
    moved, plain = charge.enqueue(card=SECRET), charge.enqueue(card=SECRET)
    rows.change(app, f"UPDATE stepfast_job SET payload = '{FORGED}' WHERE id = '{plain.id}'")

    drain(app, raise_errors=False)
    rows.change(app, f"UPDATE stepfast_job SET cursor_json = '{FORGED}' WHERE id = '{moved.id}'")
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', ready_at = 0")
    drain(app, raise_errors=False)

    assert {card for _, card, _, _ in seen} == {SECRET}
    for job, what in ((plain, "payload"), (moved, "cursor")):
        row = rows.live(app, job.id)
        assert row is not None
        assert (row["state"], row["failures"]) == ("scheduled", 0)
        assert f"{what} of charge is stored in plain text, but this kind is encrypted" in row["last_error"]


def test_a_result_in_plain_text_of_an_encrypted_kind_is_not_believed(app: Stepfast) -> None:
    @app.job(encrypted=True)
    def charge(card: str) -> str:
        return card

    @app.job()
    def notify(step: Step) -> Any:
        return step.parents

    job = charge.enqueue(card=SECRET)
    notify.enqueue(after=job)
    drain(app)
    rows.change(app, f"UPDATE stepfast_archive SET result = '\"ATTACKER\"' WHERE id = '{job.id}'")

    with pytest.raises(PlainTextError, match="result of charge is stored in plain text"):
        _ = app.result_of(job.id).result
    with pytest.raises(PlainTextError), app.transaction() as tx:
        results_of_parents(
            tx, rows.query(app, "SELECT child_id FROM stepfast_dependency")[0]["child_id"], app.kinds
        )


def test_what_belongs_to_one_job_does_not_open_in_the_row_of_another(app: Stepfast) -> None:
    """As the review did it: whoever may write rows, but has no key, copies another job's payload into a job of their own."""
    seen: list[Any] = []
    charge = charging(app, seen)
    victim, mine = charge.enqueue(card=SECRET, delay="1h"), charge.enqueue(card="mine")

    copy_column(app, "payload", victim.id, mine.id)
    drain(app, raise_errors=False)

    assert seen == []
    row = rows.live(app, mine.id)
    assert row is not None
    assert (
        "payload of charge is encrypted: it was changed, or is not what it is taken for" in row["last_error"]
    )


def test_an_older_payload_of_the_same_job_still_opens(app: Stepfast) -> None:
    """What binding does not prevent: whoever may write rows, and has kept an older document, can put it back."""
    seen: list[Any] = []
    charge = charging(app, seen)
    job = charge.enqueue(card="older", key="one", delay="1h")
    (older,) = rows.query(app, "SELECT payload FROM stepfast_job")
    text = older["payload"] if isinstance(older["payload"], str) else json.dumps(older["payload"])
    charge.enqueue(card="newer", key="one", on_duplicate="replace")

    rows.change(app, f"UPDATE stepfast_job SET payload = '{text}' WHERE id = '{job.id}'")
    drain(app)

    assert {card for _, card, _, _ in seen} == {"older"}


def test_a_cursor_a_result_and_an_event_do_not_open_elsewhere_either(app: Stepfast) -> None:
    @app.job(encrypted=True)
    def pay(card: str) -> str:
        return card

    charge = charging(app, [])
    one, other = charge.enqueue(card=SECRET), charge.enqueue(card="mine")
    paid, unpaid = pay.enqueue(card=SECRET), pay.enqueue(card="mine")
    drain(app)
    copy_column(app, "cursor_json", one.id, other.id)
    (result,) = rows.query(app, f"SELECT result FROM stepfast_archive WHERE id = '{paid.id}'")
    rows.change(app, f"UPDATE stepfast_archive SET result = '{result['result']}' WHERE id = '{unpaid.id}'")
    for _ in range(2):
        app.events.send("later", SECRET, encrypted=True)
    first, second = rows.query(app, "SELECT event_id, payload FROM stepfast_event ORDER BY id")

    with app.transaction() as tx, pytest.raises(SealedError, match="cursor of charge"):
        keys.show_decrypted(tx, other.id)
    with pytest.raises(SealedError, match="result of pay"):
        _ = app.result_of(unpaid.id).result
    ring = keyring()
    assert ring.open(first["payload"], "event later", first["event_id"])
    with pytest.raises(SealedError):
        ring.open(first["payload"], "event later", second["event_id"])


def test_documents_of_before_open_and_rotation_binds_them_to_their_jobs(app: Stepfast) -> None:
    seen: list[Any] = []
    job = charging(app, seen).enqueue(card="of today")
    old = keyring().seal(f'{{"card":"{SECRET}"}}', "payload of charge")
    assert '"1.' in old
    rows.change(app, f"UPDATE stepfast_job SET payload = '{old}'")

    assert app.operator.job(job.id, decrypt=True).payload == {"card": SECRET}
    assert keys.rotate(app.database).renewed == 1
    (row,) = rows.query(app, "SELECT payload FROM stepfast_job")
    assert "2." in str(row["payload"])
    drain(app)

    assert [card for _, card, _, _ in seen] == [SECRET, SECRET]


def test_a_payload_that_becomes_that_of_another_job_is_encrypted_for_it(app: Stepfast) -> None:
    """Replaced, merged, debounced and deferred calls, groups, chosen ids, and jobs that come back from the dead."""
    seen: list[Any] = []

    @app.job(encrypted=True, merge="append", retry=Retry(attempts=1))
    def note(step: Step, cards: list[str]) -> None:
        seen.append(sorted(cards))
        if step.number == 0 and cards == ["fails"]:
            seen.append(note.enqueue(cards=["deferred"], key="busy", on_duplicate="merge").created)
            seen.append(note.enqueue(cards=["too"], key="busy", on_duplicate="merge").created)
            raise PermanentError("once")

    note.enqueue(cards=["old"], key="replaced", delay="1h")
    note.enqueue(cards=["replaced"], key="replaced", on_duplicate="replace")
    note.enqueue(cards=["merged"], key="merged")
    note.enqueue_many([{"cards": ["by many"]}], keys=["merged"], on_duplicate="merge")
    note.enqueue(cards=["first"], key="debounced", debounce="1h")
    note.enqueue(cards=["last"], key="debounced", debounce="1ms", at_most="1h")
    note.enqueue(cards=["chosen"], id="chosen-id")
    with app.group(note.with_args(["completion"])):
        note.enqueue_many([note.with_args(["member"])])
    with clock(app) as time:
        time.advance("2h")
        drain(app)
        fails = note.enqueue(cards=["fails"], key="busy")
        drain(app, raise_errors=False)
        app.operator.retry(fails.id)
        drain(app, raise_errors=False)

    assert leaks(app) == []
    assert sorted(map(str, seen)) == sorted(
        map(
            str,
            [
                ["replaced"],
                ["by many", "merged"],
                ["last"],
                ["chosen"],
                ["completion"],
                ["member"],
                ["fails"],
                True,
                False,
                ["deferred", "too"],
                ["fails"],
                True,
                False,
                ["deferred", "too"],
            ],
        )
    )


def test_an_event_that_an_encrypted_step_sends_is_encrypted(app: Stepfast) -> None:
    @app.job(encrypted=True)
    def tell(step: Step, card: str) -> None:
        step.send_event("told", {"card": card})

    tell.enqueue(card=SECRET)
    drain(app)

    assert rows.count(app, "stepfast_event", "name = 'told'") == 1
    assert leaks(app) == []


@pytest.mark.parametrize("keys_", ["", NEW])
def test_without_the_right_key_a_job_waits_and_is_not_lost(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, keys_: str
) -> None:
    seen: list[Any] = []
    job = charging(app, seen).enqueue(card=SECRET)
    monkeypatch.setenv("STEPFAST_SECRET_KEY", keys_)

    with clock(app) as time:
        drain(app, raise_errors=False)

        row = rows.live(app, job.id)
        assert row is not None
        assert (row["state"], row["failures"], row["crashes"]) == ("scheduled", 0, 0)
        assert "payload of charge is encrypted" in row["last_error"]
        assert (key_id(OLD) if keys_ else "STEPFAST_SECRET_KEY is not set") in row["last_error"]
        assert seen == []

        monkeypatch.setenv("STEPFAST_SECRET_KEY", OLD)
        time.advance("2m")
        drain(app)

    assert [number for number, *_ in seen] == [0, 1]


def test_a_key_that_is_lost_while_a_step_runs_costs_no_attempt(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(encrypted=True)
    def charge(card: str) -> str:
        monkeypatch.delenv("STEPFAST_SECRET_KEY")
        return card

    job = charge.enqueue(card=SECRET)
    drain(app, raise_errors=False)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["failures"]) == ("scheduled", 0)


def test_a_payload_cannot_pass_for_another_kind_or_for_a_result(app: Stepfast) -> None:
    seen: list[Any] = []
    charge = charging(app, seen)

    @app.job(encrypted=True)
    def refund(card: str) -> None:
        seen.append(card)

    charge.enqueue(card=SECRET)
    rows.change(app, "UPDATE stepfast_job SET kind = 'refund'")
    drain(app, raise_errors=False)

    assert seen == []
    (row,) = rows.query(app, "SELECT last_error FROM stepfast_job")
    assert "it was changed, or is not what it is taken for" in row["last_error"]


def test_limits_by_argument_see_what_is_encrypted(app: Stepfast) -> None:
    @app.job(encrypted=True, limits=[Concurrency(1, by="card")])
    def charge(card: str) -> None: ...

    charge.enqueue_many([{"card": it} for it in (SECRET, SECRET, "other")])
    drain(app)

    assert rows.count(app, "stepfast_archive", "state = 'done'") == 3
    assert leaks(app) == []


def test_reports_say_encrypted_and_decrypting_is_written_down(app: Stepfast) -> None:
    job = charging(app, []).enqueue(card=SECRET)
    drain(app)

    detail = app.operator.job(job.id)
    assert (detail.payload, detail.cursor, detail.waits_for) == ("encrypted", "encrypted", "3ds")
    assert SECRET not in repr(detail)
    assert app.operator.audit() == []

    with app.transaction() as tx:
        detail = keys.show_decrypted(tx, job.id)
    assert (detail.payload, detail.cursor) == ({"card": SECRET}, {"card": SECRET})
    (entry,) = app.operator.audit()
    assert (entry.what, entry.subject) == ("job.decrypt", job.id)


def test_a_result_is_refused_in_words_where_the_key_is_not(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(encrypted=True)
    def charge(card: str) -> str:
        return card

    job = charge.enqueue(card=SECRET)
    drain(app)
    monkeypatch.setenv("STEPFAST_SECRET_KEY", NEW)

    with pytest.raises(SealedError, match=f"result of charge is encrypted: it needs key {key_id(OLD)}"):
        _ = app.result_of(job.id).result


def stored_everywhere(app: Stepfast) -> Job[..., Any]:
    """Encrypted documents in every column that may hold one."""
    charge = charging(app, [])

    @app.job(encrypted=True)
    def fail(card: str) -> Reject:
        return Reject(f"no {len(card)}")

    @app.job(encrypted=True)
    def pay(card: str) -> str:
        return card

    charge.enqueue(card=SECRET)
    fail.enqueue(card=SECRET)
    pay.enqueue(card=SECRET)
    drain(app, raise_errors=False)
    charge.enqueue(card=SECRET, delay="1h")
    app.events.send("later", SECRET, encrypted=True)
    return charge


def test_rotation_seals_everything_under_the_first_key_and_the_old_one_may_go(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_everywhere(app)
    assert set(keys.keys_in_use(app.database)) == {key_id(OLD)}
    monkeypatch.setenv("STEPFAST_SECRET_KEY", f"{NEW},{OLD}")

    done = keys.rotate(app.database)

    assert (done.key, done.renewed, done.unreadable) == (key_id(NEW), 5, 0)
    assert set(keys.keys_in_use(app.database)) == {key_id(NEW)}
    (entry,) = app.operator.audit()
    assert (entry.what, entry.touched) == ("encryption.rotate", 5)
    assert keys.rotate(app.database).renewed == 0

    monkeypatch.setenv("STEPFAST_SECRET_KEY", NEW)
    app.events.send("3ds", encrypted=True)
    with clock(app) as time:
        time.advance("2h")
        drain(app)
    results = {it.kind: app.result_of(it.id) for it in app.operator.jobs(kind="pay")}
    assert results["pay"].result == SECRET
    assert rows.count(app, "stepfast_archive", "kind = 'charge' AND state = 'done'") == 1


def test_rotation_that_was_cut_short_is_finished_by_the_next_one(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_everywhere(app)
    monkeypatch.setenv("STEPFAST_SECRET_KEY", f"{NEW},{OLD}")
    monkeypatch.setattr(keys, "BATCH", 1)
    commits = 0

    def die_later(phase: str, text: str) -> None:
        nonlocal commits
        commits += phase == "after" and text == "COMMIT"
        if commits > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "watch", staticmethod(die_later))
    with pytest.raises(KeyboardInterrupt):
        keys.rotate(app.database)
    monkeypatch.setattr(Connection, "watch", None)
    app.database.close()
    assert set(keys.keys_in_use(app.database)) == {key_id(OLD), key_id(NEW)}

    keys.rotate(app.database)

    assert set(keys.keys_in_use(app.database)) == {key_id(NEW)}


def test_rotation_leaves_alone_what_it_cannot_open(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_everywhere(app)
    monkeypatch.setenv("STEPFAST_SECRET_KEY", NEW)

    done = keys.rotate(app.database)

    assert (done.renewed, done.unreadable) == (0, 5)
    assert set(keys.keys_in_use(app.database)) == {key_id(OLD)}


def test_an_answer_that_has_no_json_form_is_told_as_ever(app: Stepfast) -> None:
    @app.job(encrypted=True)
    def charge() -> object:
        return object()

    job = charge.enqueue()
    with pytest.raises(StepfastError, match="AnswerError"):
        drain(app)

    assert rows.state(app, job.id) == "dead"
