"""Masked fields appear nowhere: not in commands, reports, logs, errors, spans or tables."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from stepfast import Reject, Retry, Step, Stepfast
from stepfast.admin import masks
from stepfast.cli.command import app as commands
from stepfast.telemetry import masking
from stepfast.telemetry.logs import Lines, formatter
from stepfast.telemetry.masking import Rule, Rules
from stepfast.testing import drain
from stepfast.worker.maintenance import declare_masks
from tests.crash.table_dump import ALL_TABLES
from tests.support import isolated_jobs, rows
from tests.support.engine import drain as in_worker
from tests.support.events import hearing
from tests.support.isolated_jobs import register

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sampled

PIN, CARD, IBAN = "pin-7391-x", "4111111111111111", "DE89370400440532013000"
SECRETS = (PIN, CARD, IBAN)
RULES: list[Rule] = ["pin", "card.*", re.compile(r"\bDE\d{20}\b")]
PAYLOAD = {"pin": PIN, "card": {"number": CARD, "owner": "Ada"}, "note": f"from {IBAN}", "order": 42}
DATA_TABLES = {"stepfast_job", "stepfast_archive"}  # they hold payloads, results and cursors as they are


@pytest.fixture(autouse=True)
def no_rules() -> Iterator[None]:
    """Rules hold in a whole process: each test has its own."""
    before = vars(masking._RULES).copy()
    vars(masking._RULES).update(vars(Rules()))
    yield
    vars(masking._RULES).update(before)


def masked_app(app: Stepfast) -> Stepfast:
    return Stepfast(database=app.database, mask=RULES)


def seen_in(text: str) -> list[str]:
    return [it for it in SECRETS if it in text]


def run_everything(app: Stepfast) -> list[str]:
    """Jobs that say everything they know, in every way there is; returns their ids."""
    log = logging.getLogger("shop")

    @app.job(retry=Retry(attempts=1))
    def raise_it(step: Step, pin: str, card: dict[str, str], note: str, order: int) -> None:
        step.log(f"card {card['number']} of {note}, pin={pin}")
        step.progress(50, f"checking {pin}")
        step.annotate(pin=pin, order=order)
        log.warning("paying with %s and %s", card, note)
        raise ValueError(f"refused: {card} {pin} {note}")

    @app.job()
    def reject_it(pin: str, card: dict[str, str], note: str, order: int) -> Reject:
        return Reject(f"{card['number']} and {pin} are wrong, {note}, of {order}")

    @app.job()
    async def answer_it(step: Step, pin: str, card: dict[str, str], note: str, order: int) -> dict[str, Any]:
        step.log(f"{pin} {note}")
        return {"pin": pin, "card": card, "note": note, "order": order}

    @app.job(retry=Retry(attempts=1))
    def effect_it(step: Step, pin: str, card: dict[str, str], note: str, order: int) -> None:
        def fail(_: object) -> None:
            raise ValueError(f"no row for {pin} {card['number']} {note} of {order}")

        step.effect(fail)

    jobs = (raise_it, reject_it, answer_it, effect_it)
    return [job.enqueue(**PAYLOAD).id for job in jobs]


def test_nothing_that_is_hidden_is_shown_or_written_anywhere(
    app: Stepfast, database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shop = masked_app(app)
    lines: list[str] = []
    handlers = [_Collected(formatter(style, Lines()), lines) for style in ("json", "console")]
    for handler in handlers:
        logging.getLogger().addHandler(handler)
    try:
        with hearing() as told:
            ids = run_everything(shop)
            drain(shop, raise_errors=False)
    finally:
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
    assert {rows.state(app, it) for it in ids} == {"dead", "done"}
    assert any("refused" in it for it in lines)

    assert [it for it in lines if seen_in(it)] == []
    written = {
        table: seen_in(str(rows.query(app, f"SELECT * FROM {table}")))
        for table in ALL_TABLES
        if table.startswith("stepfast_") and table not in DATA_TABLES
    }
    assert {table: found for table, found in written.items() if found} == {}
    errors = rows.query(app, "SELECT last_error, error_group, progress_note FROM stepfast_archive")
    assert seen_in(str(errors)) == []
    assert seen_in(str([facts for _, facts in told if facts.get("error")])) == []
    for job_id in ids:
        detail = shop.operator.job(job_id)
        assert seen_in(repr(detail)) == []
        assert detail.payload["order"] == 42

    for words in (
        *(("jobs", "show", it) for it in ids),
        ("jobs", "list"),
        ("dead-letters", "list"),
        ("dead-letters", "list", "--by-error"),
        ("jobs", "watch", ids[2]),
    ):
        for form in ((), ("--json",)):
            result = CliRunner().invoke(commands, ["--database-url", database_url, *words, *form])
            assert seen_in(result.output) == [], words
    assert seen_in("".join(capfd.readouterr())) == []


class _Collected(logging.Handler):
    def __init__(self, shape: logging.Formatter, lines: list[str]) -> None:
        super().__init__()
        self.setFormatter(shape)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def test_passwords_are_hidden_without_a_rule(app: Stepfast) -> None:
    words = "correct horse battery"
    lines: list[str] = []
    handler = _Collected(formatter("console", Lines()), lines)
    logging.getLogger().addHandler(handler)

    @app.job(retry=Retry(attempts=1))
    def login(step: Step, user: str, password: str) -> None:
        step.log(f"trying {user} and {password}")
        logging.getLogger("shop").warning("trying %s", password)
        raise RuntimeError(f"login failed for {user} with password={password}")

    @app.job()
    def fetch(access_token: str) -> dict[str, str]:
        return {"page": "1", "next_token": access_token}

    failed, done = login.enqueue(user="ada", password=words), fetch.enqueue(access_token=words)
    app.events.send("paid", {"secret": words}, id="e-1")
    try:
        drain(app, raise_errors=False)
    finally:
        logging.getLogger().removeHandler(handler)

    row = rows.ended(app, failed.id)
    assert row is not None
    assert row["last_error"] == "RuntimeError: login failed for ada with password=***"
    assert "horse" not in str([row["error_group"], rows.logs(app, failed.id), lines])
    assert any("trying ***" in line for line in lines)
    assert app.operator.job(failed.id).payload == {"user": "ada", "password": "***"}
    assert app.operator.job(done.id).result == {"page": "1", "next_token": "***"}
    for shown in (
        ("jobs", "show", failed.id),
        ("jobs", "show", done.id),
        ("jobs", "watch", done.id),
        ("events", "list"),
        ("dead-letters", "list", "--by-error"),
    ):
        for form in ((), ("--json",)):
            result = CliRunner().invoke(commands, ["--database-url", app.database.url, *shown, *form])
            assert "horse" not in result.output, shown
            assert result.exit_code in {0, 1}, result.output


def test_a_stored_pattern_that_could_take_hours_holds_no_command_up_and_is_named(app: Stepfast) -> None:
    @app.job()
    def keep(note: str) -> None: ...

    job = keep.enqueue(note="a" * 40)
    rows.change(app, "INSERT INTO stepfast_mask (id, seen_at) VALUES ('re:0:(a+)+b', 1)")

    shown = CliRunner().invoke(commands, ["--database-url", app.database.url, "jobs", "show", job.id])

    assert (shown.exit_code, "a" * 40 in shown.stdout) == (0, True)
    assert "the masking rule 're:0:(a+)+b' in stepfast_mask cannot be used, and hides nothing" in shown.stderr


def test_an_error_that_quotes_a_hidden_argument_is_kept_without_it(app: Stepfast) -> None:
    shop = masked_app(app)

    @shop.job(retry=Retry(attempts=1))
    def pay(card: dict[str, str]) -> None:
        raise ValueError(f"the bank does not know {card['number']}")

    job = pay.enqueue(card={"number": CARD})
    drain(shop, raise_errors=False)

    row = rows.ended(app, job.id)
    assert row is not None
    assert row["last_error"] == "ValueError: the bank does not know ***"
    assert seen_in(str(rows.logs(app, job.id))) == []


@pytest.mark.only_on("sqlite")
def test_what_an_isolated_handler_says_is_hidden_as_well(app: Stepfast) -> None:
    shop = masked_app(app)
    awkward = "pin'\"é\\7391"
    lines: list[str] = []
    handler = _Collected(formatter("json", Lines()), lines)
    logging.getLogger().addHandler(handler)
    try:
        job = register(shop, isolated_jobs.tells_its_secret).enqueue(pin=awkward)
        in_worker(shop)
    finally:
        logging.getLogger().removeHandler(handler)

    (line,) = [json.loads(it) for it in lines if "shop.isolated" in it]
    assert (line["event"], line["copy"]) == ("with ['***']", "***")
    row = rows.ended(app, job.id)
    assert row is not None
    assert row["last_error"] == "Rejected: not ***"
    assert [it for it in rows.logs(app, job.id) if "7391" in it] == []


def test_the_handler_itself_gets_everything(app: Stepfast) -> None:
    shop = masked_app(app)
    seen: list[Any] = []

    @shop.job()
    def pay(pin: str, card: dict[str, str]) -> str:
        seen.append((pin, card))
        return pin

    job = pay.enqueue(pin=PIN, card={"number": CARD})
    drain(shop)

    assert seen == [(PIN, {"number": CARD})]
    assert shop.result_of(job.id).result == PIN


def test_the_command_line_follows_the_rules_that_a_worker_has_written_down(
    app: Stepfast, database_url: str
) -> None:
    shop = masked_app(app)

    @shop.job()
    def pay(pin: str, card: dict[str, str], note: str) -> None: ...

    job = pay.enqueue(pin=PIN, card={"number": CARD}, note=IBAN)
    with shop.worker():
        job.wait(timeout="20s")
    vars(masking._RULES).update(vars(Rules()))  # another process: it knows no application
    shown = CliRunner().invoke(commands, ["--database-url", database_url, "jobs", "show", job.id, "--json"])

    assert seen_in(shown.output) == []
    assert json.loads(shown.output)["payload"] == {"pin": "***", "card": {"number": "***"}, "note": "***"}


def test_a_rule_that_no_worker_has_had_for_a_month_is_forgotten(app: Stepfast) -> None:
    shop = masked_app(app)
    declare_masks(shop.database)
    assert rows.count(app, "stepfast_mask") == 3
    rows.change(app, "UPDATE stepfast_mask SET seen_at = 1 WHERE id = 'pin'")
    vars(masking._RULES).update(vars(Rules()))
    masking.hide(["card.*", "mail"])

    declare_masks(shop.database)

    kept = {row["id"] for row in rows.query(app, "SELECT id FROM stepfast_mask")}
    assert "pin" not in kept
    assert {"card.*", "mail"} <= kept
    with app.transaction() as tx:
        masks.apply_rules(tx)
    assert masking.hides("mail")
