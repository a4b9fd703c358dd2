"""Input that no run can cure: each case ends with one clear sentence, in the right state, with the watermark unmoved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from stepfast import Stepfast, StepfastError
from stepfast.cli.command import app as commands
from stepfast.testing import drain
from stepfast_diamonds import client, source
from stepfast_diamonds.client import NivodaAnswer, read_answer
from stepfast_diamonds.feed import LABGROWN, NATURAL, nivoda
from stepfast_diamonds.query import SEARCH
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.asking import settings_for
from tests.support import rows

if TYPE_CHECKING:
    from stepfast.admin.run_reports import RunReport

Change = Callable[[dict[str, Any]], None]

pytestmark = pytest.mark.sampled


@pytest.fixture
def sim() -> Iterator[Simulator]:
    with Simulator("120", seed=7, faults="none") as it:
        yield it


class Scene:
    """A feed that has been read once, and a run of it that meets what a test has in store."""

    def __init__(self, app: Stepfast, url: str, sim: Simulator) -> None:
        self.app, self.url, self.sim = app, url, sim
        prepare(app)
        _, self.labgrown = nivoda(
            app,
            settings=settings_for(sim),
            natural={"settle": "0s", "wait_at_most": "2m", "ahead_at_most": "7d"},
            labgrown={"settle": "0s", "ahead_at_most": "7d"},
        )
        self.first = self.run()
        assert self.first.state == "completed"
        sim.advance("1h")
        sim.mutate("price", count=100)
        sim.advance("5s")

    @property
    def watermark(self) -> Any:
        (found,) = rows.query(self.app, "SELECT watermark FROM stepfast_feed WHERE id = :feed", feed=NATURAL)
        return found["watermark"]

    def begin(self, feed: str = NATURAL, kind: Any = None) -> str:
        return self.app.runs.start(feed, kind).id

    def run(self, feed: str = NATURAL, kind: Any = None) -> RunReport:
        return self.go_on(self.begin(feed, kind))

    def go_on(self, run_id: str, *, patiently: bool = True) -> RunReport:
        """Until nothing is left to do; `patiently` also waits for the source, by moving the clock."""
        drain(self.app, with_scheduled=patiently, raise_errors=False, concurrency=4, timeout="60s")
        return self.app.runs.show(run_id).run

    def shown(self, run: RunReport | str) -> str:
        """What `stepfast runs show` says."""
        name = run if isinstance(run, str) else run.id
        words = ["--database-url", self.url, "runs", "show", name]
        result = CliRunner().invoke(commands, words, env={"COLUMNS": "400"})
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture
def scene(app: Stepfast, database_url: str, sim: Simulator) -> Scene:
    return Scene(app, database_url, sim)


def change_answers(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """The source answers something else from now on: what came over the wire is changed before it is read."""

    def changed(status: int, headers: Any, body: bytes, *more: Any) -> NivodaAnswer:
        found = msgspec.json.decode(body)
        if isinstance(found, dict) and isinstance(found.get("data"), dict):
            change(found["data"])
        return read_answer(status, headers, msgspec.json.encode(found), *more)

    monkeypatch.setattr(client, "read_answer", changed)


def in_stones(change: Change) -> Change:
    """A change of every stone of every page."""

    def changed(data: dict[str, Any]) -> None:
        for it in (data.get("diamonds_by_query") or {}).get("items") or ():
            change(it)

    return changed


def lock_out(sim: Simulator) -> None:
    """Another password counts from now on."""
    sim._service.world.sessions.accounts = {sim.username: "another password"}
    sim.revoke_tokens()


def test_wrong_credentials_begin_no_run(scene: Scene) -> None:
    before = scene.watermark
    lock_out(scene.sim)

    with pytest.raises(StepfastError, match="check NIVODA_USERNAME and NIVODA_PASSWORD"):
        scene.begin()

    assert rows.count(scene.app, "stepfast_run") == 1
    assert scene.watermark == before


def test_credentials_that_stop_working_make_the_run_wait_and_then_fail(scene: Scene) -> None:
    before = scene.watermark
    run_id = scene.begin()
    lock_out(scene.sim)

    waiting = scene.go_on(run_id, patiently=False)

    assert waiting.state == "planning"
    assert "the source is in trouble: feed nivoda-natural waits until" in scene.shown(waiting)
    assert "auth: AuthError: Nivoda does not let us in" in scene.shown(waiting)
    assert "check NIVODA_USERNAME and NIVODA_PASSWORD" in scene.shown(waiting)

    failed = scene.go_on(run_id)

    assert failed.state == "failed"
    assert "waited for the source for" in scene.shown(failed)
    assert "check NIVODA_USERNAME and NIVODA_PASSWORD" in scene.shown(failed)
    assert scene.watermark == before


def test_an_endpoint_that_cannot_be_reached_makes_the_run_wait_and_then_fail(scene: Scene) -> None:
    before = scene.watermark
    run_id = scene.begin()
    scene.sim.stop()

    waiting = scene.go_on(run_id, patiently=False)

    assert waiting.state == "planning"
    assert "outage: OutageError: Nivoda cannot be reached" in scene.shown(waiting)

    failed = scene.go_on(run_id)

    assert failed.state == "failed"
    assert "Nivoda cannot be reached" in scene.shown(failed)
    assert scene.watermark == before


def test_a_field_that_is_gone_fails_the_run_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scene.watermark
    asked = {it: text.replace("certNumber", "certificateNumber") for it, text in SEARCH.items()}
    monkeypatch.setattr(source, "SEARCH", asked)

    run = scene.run()

    assert run.state == "failed"
    assert "Nivoda no longer understands what it is asked; its schema has changed: " in scene.shown(run)
    assert "certificateNumber" in scene.shown(run)
    assert scene.watermark == before
    assert rows.count(scene.app, "stepfast_archive", "failures > 1") == 0


def test_a_count_of_another_type_fails_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scene.watermark
    run_id = scene.begin()

    def change(data: dict[str, Any]) -> None:
        if "diamonds_by_query_count" in data:
            data["diamonds_by_query_count"] = {"total": 7}

    change_answers(monkeypatch, change)
    run = scene.go_on(run_id)

    assert run.state == "failed"
    assert "planning gave up: BadAnswerError: Nivoda counts {'total': 7}, which is no number" in scene.shown(
        run
    )
    assert scene.watermark == before


def test_a_page_of_another_type_fails_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scene.watermark

    def change(data: dict[str, Any]) -> None:
        if "diamonds_by_query" in data:
            data["diamonds_by_query"] = {"edges": []}

    change_answers(monkeypatch, change)
    run = scene.run()

    assert run.state == "failed"
    assert "Nivoda answered NoneType instead of a list of stones" in scene.shown(run)
    assert scene.watermark == before


def test_a_price_of_another_type_ends_in_quarantine_and_not_in_the_table(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, prices = scene.watermark, rows.query(scene.app, "SELECT feed_price FROM diamonds ORDER BY 1")
    change_answers(monkeypatch, in_stones(lambda it: it.update(price={"amount": 7, "currency": "USD"})))

    run = scene.run()

    assert run.state == "failed_quality"
    assert "too many rows ended in quarantine" in scene.shown(run)
    assert scene.watermark == before
    assert rows.query(scene.app, "SELECT feed_price FROM diamonds ORDER BY 1") == prices
    (reason,) = rows.query(scene.app, "SELECT DISTINCT code FROM stepfast_quarantine")
    assert "no price" in reason["code"]


def test_stones_without_an_identity_fail_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scene.watermark
    change_answers(monkeypatch, in_stones(lambda it: it["diamond"].pop("id")))

    run = scene.run()

    assert run.state == "failed"
    assert "Nivoda's schema has changed: none of" in scene.shown(run)
    assert scene.watermark == before


def test_an_unknown_word_is_kept_as_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scene.watermark
    change_answers(monkeypatch, in_stones(lambda it: it["diamond"]["certificate"].update(cut="QUITE_NEW")))

    run = scene.run()

    assert (run.state, run.quarantined) == ("completed", 0)
    assert rows.count(scene.app, "diamonds", "cut = 'QUITE_NEW'") == run.seen > 0
    assert scene.watermark > before


def test_a_feed_without_stones_fails_the_run_unless_it_may_be_empty(scene: Scene) -> None:
    run = scene.run(LABGROWN)

    assert run.state == "failed"
    assert "planning gave up: PermanentError: Nivoda has no stone for nivoda-labgrown" in scene.shown(run)
    assert run.watermark_after is None

    scene.labgrown.may_be_empty = True
    allowed = scene.run(LABGROWN)

    assert (allowed.state, allowed.seen) == ("completed", 0)
    assert allowed.watermark_after == allowed.window_to


def test_a_catalogue_that_is_suddenly_empty_takes_nothing_from_the_table(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stones = scene.watermark, rows.count(scene.app, "diamonds", "deleted_at IS NULL")

    def change(data: dict[str, Any]) -> None:
        if "diamonds_by_query_count" in data:
            data["diamonds_by_query_count"] = 0

    change_answers(monkeypatch, change)
    runs = [scene.run(kind="full") for _ in range(2)]

    assert {it.state for it in runs} == {"failed"}
    assert rows.count(scene.app, "diamonds", "deleted_at IS NULL") == stones
    assert scene.watermark == before


def test_nothing_that_has_changed_is_no_empty_feed(scene: Scene) -> None:
    assert scene.run().state == "completed"
    scene.sim.advance("2h")

    run = scene.run()

    assert (run.kind, run.state) == ("incremental", "completed")
