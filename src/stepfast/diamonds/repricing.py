"""Stones that were priced by another rule set are priced by the one that counts: a job of many short steps.

Each step takes the next thousand, works out their prices, and in its commit changes those that nobody else has changed
meanwhile, after writing down what they cost before. It ends when no stone is left behind; what a run that began with
an older set writes in the meantime is taken in another pass. If another set becomes active, it goes on with that one.
Somebody asks for it, or a run that ends under newer rules than it began with: then it is about what that run wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast import Continue, Done, Step
from stepfast.diamonds.behind import ALL, Scope, any_behind, left_behind
from stepfast.diamonds.repricing_rows import Batch, begin, end, read_batch, write_batch
from stepfast.diamonds.repricing_undo import find_repricing, next_snapshots, restore, snapshots_of, taken_back
from stepfast.diamonds.rules_rows import active_version, find_rules

if TYPE_CHECKING:
    from stepfast import EnqueuedJob, Job, Stepfast, Transaction
    from stepfast.diamonds.rules import RuleSet

KEY: Final = "diamonds.reprice"  # one at a time about all stones
BATCH: Final = 1_000
LONGEST_REST: Final = 60  # seconds between two passes, while somebody still writes old prices


class Progress(msgspec.Struct, frozen=True):
    """Where a repricing stands: its cursor."""

    version: int
    number: int = 0  # how many sets this job has priced by
    after: int = 0
    passes: int = 0
    total: int = 0
    looked_at: int = 0
    changed: int = 0

    def name(self, job_id: str) -> str:
        return f"{job_id}.{self.number}"


class Repricing:
    """The two jobs, on an application: `reprice` and `revert`."""

    def __init__(self, app: Stepfast, *, queue: str = "default") -> None:
        self.app = app
        self._known: dict[int, RuleSet] = {}

        def reprice(
            step: Step, of_version: int | None = None, feed: str | None = None, since: int = 0
        ) -> Done | Continue:
            return self._reprice(step, Scope(of_version, feed, since))

        def revert(step: Step, repricing_id: str) -> Done | Continue:
            return self._revert(step, repricing_id)

        self.reprice: Job[..., Any] = app.job(name="diamonds.reprice", queue=queue)(reprice)
        self.revert: Job[..., Any] = app.job(name="diamonds.revert", queue=queue)(revert)

    def ask(self, tx: Transaction | None = None, scope: Scope = ALL) -> EnqueuedJob[Any]:
        """Have all stones priced by the active set, or some. One that has not ended yet does it, too."""
        if scope == ALL:
            return self.reprice.enqueue(tx=tx, key=KEY, on_duplicate="skip")
        return self.reprice.enqueue(
            tx=tx,
            key=f"{KEY}:{scope.version}:{scope.feed}:{scope.since}",
            on_duplicate="skip",
            of_version=scope.version,
            feed=scope.feed,
            since=scope.since,
        )

    def take_back(self, tx: Transaction, repricing_id: str) -> EnqueuedJob[Any]:
        """Have the prices of before restored; `repricing_undo.undo` has moved the active set back."""
        return self.revert.enqueue(tx=tx, key=f"diamonds.revert:{repricing_id}", repricing_id=repricing_id)

    def _rules(self, version: int) -> RuleSet:
        if version not in self._known:
            with self.app.reading() as tx:
                self._known[version] = find_rules(tx, version)
        return self._known[version]

    def _reprice(self, step: Step, scope: Scope) -> Done | Continue:
        with self.app.reading() as tx:
            at = self._at(tx, step)
            if at.after == 0 and at.passes == 0:
                at = msgspec.structs.replace(at, total=left_behind(tx, at.version, scope))
            rows = read_batch(tx, at.version, at.after, BATCH, scope)
        if not rows:
            return self._next_pass(step, at, scope)
        batch = Batch.priced(rows, self._rules(at.version))
        further = msgspec.structs.replace(
            at,
            after=rows[-1].id,
            looked_at=at.looked_at + len(rows),
            changed=at.changed + batch.changes,
        )
        done = further.looked_at / max(further.total, further.looked_at)
        step.progress(
            min(99, 100 * done), f"{further.looked_at:,} of {further.total:,}, {further.changed:,} changed"
        )
        return Continue(further, effects=[Reprice(step.job_id, at, batch)])

    def _at(self, tx: Transaction, step: Step) -> Progress:
        """Where this step begins: behind the last one, or anew if another set counts by now."""
        version = active_version(tx)
        if step.cursor is None:
            return Progress(version)
        at = msgspec.convert(step.cursor, Progress)
        return at if at.version == version else Progress(version, at.number + 1)

    def _next_pass(self, step: Step, at: Progress, scope: Scope) -> Done | Continue:
        with self.app.reading() as tx:
            over = not any_behind(tx, at.version, scope)
        if over:
            result = {"version": at.version, "looked_at": at.looked_at, "changed": at.changed}
            return Done(result, effects=[End(step.job_id, at)])
        further = msgspec.structs.replace(at, after=0, passes=at.passes + 1)
        return Continue(further, delay=0 if at.after else min(LONGEST_REST, 2**at.passes))

    def _revert(self, step: Step, repricing_id: str) -> Done | Continue:
        at = step.cursor or {"after": 0, "done": 0}
        with self.app.reading() as tx:
            total = at.get("total") or snapshots_of(tx, repricing_id)
            batch = next_snapshots(tx, repricing_id, at["after"], BATCH)
        if not batch.snapshots:
            return Done({"looked_at": at["done"]}, effects=[lambda tx: self._restored(tx, repricing_id)])
        done = at["done"] + len(batch.snapshots)
        step.progress(min(99, 100 * done / max(total, done)), f"{done:,} of {total:,} looked at")
        further = {"after": batch.snapshots[-1].id, "done": done, "total": total}
        return Continue(further, effects=[lambda tx: restore(tx, batch)])

    def _restored(self, tx: Transaction, repricing_id: str) -> None:
        """What was written since by the set that counts no more is not restored but priced anew."""
        taken_back(tx, repricing_id)
        scope = Scope(find_repricing(tx, repricing_id).to_version)
        if any_behind(tx, active_version(tx), scope):
            self.ask(tx, scope)


@dataclass(frozen=True)
class Reprice:
    """Writes one batch."""

    job_id: str
    at: Progress
    batch: Batch

    def apply(self, tx: Transaction, /) -> None:
        name = self.at.name(self.job_id)
        begin(tx, name, self.job_id, self.at.version)
        write_batch(tx, name, self.batch)


@dataclass(frozen=True)
class End:
    """No stone is left behind."""

    job_id: str
    at: Progress

    def apply(self, tx: Transaction, /) -> None:
        end(tx, self.at.name(self.job_id), self.job_id)
