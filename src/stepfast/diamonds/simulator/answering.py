"""Answers to a plan: what each root field does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import moment
from stepfast.diamonds.simulator.faults import Errors, spoil_page
from stepfast.diamonds.simulator.filter import QueryError, read_query
from stepfast.diamonds.simulator.offer import Offer
from stepfast.diamonds.simulator.plan import read_arguments
from stepfast.diamonds.simulator.vocabulary import AVAILABILITY, Trait

if TYPE_CHECKING:
    from stepfast.diamonds.simulator.catalogue import Stone
    from stepfast.diamonds.simulator.plan import Call, Plan
    from stepfast.diamonds.simulator.world import World

HOLD_LASTS: Final = 48 * 3_600_000_000
DEFAULT_LIMIT: Final = 50
_AVAILABLE, _HOLD = AVAILABILITY.index("AVAILABLE"), AVAILABILITY.index("HOLD")


@dataclass
class Answering:
    """One request while it is answered. `authorise` checks a token, and counts the request for its account."""

    world: World
    now: int
    dice: Random
    token: str | None
    authorise: Callable[[str | None], str]
    partial: bool = False
    errors: Errors = field(default_factory=list)
    _variables: Mapping[str, Any] = field(default_factory=dict)

    def run(self, plan: Plan, variables: Mapping[str, Any]) -> dict[str, Any]:
        self._variables = variables
        return self._all(plan.calls, [])

    def _all(self, calls: Any, path: list[Any]) -> dict[str, Any]:
        return {it.alias: self._one(it, [*path, it.alias]) for it in calls}

    def _one(self, call: Call, path: list[Any]) -> Any:
        if call.name == "__typename":
            return call.type
        given = read_arguments(call, self._variables)
        match call.type, call.name:
            case _, "authenticate":
                return self._all(call.calls, path)
            case _, "as":
                self.token = given.get("token")
                self.authorise(self.token)
                return self._all(call.calls, path)
            case "Authenticate", "username_and_password":
                return self._shaped(call, self._login(given))
            case "Authenticate", _:
                return self._shaped(call, self._refresh(given))
            case _:
                return self._about_stones(call, given, path)

    def _about_stones(self, call: Call, given: Mapping[str, Any], path: list[Any]) -> Any:
        self.authorise(self.token)
        match call.name:
            case "diamonds_by_query":
                return self._page(call, given, path)
            case "diamonds_by_query_count":
                self.world.told["counts"] += 1
                filter_ = read_query(given.get("query"), self.world.catalogue, self.world.knobs)
                return self.world.search.count(filter_, self.world.knobs, self.now)
            case "get_diamond_by_id":
                return self._shaped(call, self._offer(self._stone(given["diamond_id"])))
            case "create_hold":
                return self._shaped(call, self._hold(given["ProductId"]))
            case _:
                return self._shaped(call, self._cancel(given["hold_id"]))

    def _shaped(self, call: Call, value: Any) -> Any:
        return call.project(value) if call.project else value

    def _login(self, given: Mapping[str, Any]) -> dict[str, Any]:
        world = self.world
        return world.sessions.login(
            given["username"], given["password"], self.now, world.clock.for_limits(), world.knobs
        )

    def _refresh(self, given: Mapping[str, Any]) -> dict[str, Any]:
        world = self.world
        return world.sessions.refresh(given["token"], self.now, world.clock.for_limits(), world.knobs)

    def _page(self, call: Call, given: Mapping[str, Any], path: list[Any]) -> Any:
        world, knobs = self.world, self.world.knobs
        world.told["pages"] += 1
        limit, offset = given.get("limit"), given.get("offset") or 0
        limit = DEFAULT_LIMIT if limit is None else limit
        if limit < 0 or offset < 0:
            raise QueryError("offset and limit cannot be negative")
        if limit > knobs.page_limit:
            if knobs.over_limit == "error":
                raise QueryError(f"limit cannot be more than {knobs.page_limit}")
            limit = knobs.page_limit
        filter_ = read_query(given.get("query"), world.catalogue, knobs)
        rows = (
            world.search.page(
                filter_, order=given.get("order"), offset=offset, limit=limit, knobs=knobs, dice=self.dice
            )
            if limit
            else []
        )
        if self.partial and rows:
            del rows[len(rows) // 2 :]
            self.errors.append({"message": "Upstream request timed out", "path": [*path, "items"]})
        stone = world.catalogue.stone
        offers = [self._offer(stone(it)) for it in rows]
        page = self._shaped(call, {"items": offers, "total_count": len(offers)})
        if isinstance(items := page.get("items"), list):
            seed = world.seed
            self.errors += spoil_page(
                items, [*path, "items"], knobs, self.dice, lambda n: Random(f"{seed} item {rows[n]}")
            )
        return page

    def _offer(self, stone: Stone) -> Offer:
        knobs = self.world.knobs
        return Offer(
            stone,
            self.world.catalogue,
            markup_pct=knobs.markup_pct,
            dirty=knobs.dirty,
            carriers=self._carriers,
        )

    def _carriers(self, number: str) -> list[Offer]:
        catalogue = self.world.catalogue
        return [
            self._offer(stone)
            for row in catalogue.rows_of_certificate(number)
            if (stone := self.world.history.truth(row)) is not None
            and stone.present
            and catalogue.certificate_number(row, stone.revision) == number
        ]

    def _stone(self, id_: str) -> Stone:
        row = self.world.catalogue.row_of(id_)
        stone = None if row is None else self.world.history.truth(row)
        if stone is None or not stone.present:
            raise QueryError(f"Diamond not found: {id_}")
        return stone

    def _hold(self, id_: str) -> dict[str, Any]:
        stone = self._stone(id_)
        taken = stone.traits[Trait.AVAILABILITY] != _AVAILABLE
        if taken or self.dice.random() < self.world.knobs.hold_denied_prob:
            return {"id": None, "denied": True, "until": None}
        self._mark(stone, _HOLD)
        plain = self.world.catalogue.diamond_id(stone.row)
        return {
            "id": f"hold-{plain}",
            "denied": False,
            "until": moment(self.now + HOLD_LASTS).isoformat().replace("+00:00", "Z"),
        }

    def _cancel(self, hold_id: str) -> dict[str, Any]:
        stone = self._stone(hold_id.removeprefix("hold-"))
        if stone.traits[Trait.AVAILABILITY] != _HOLD:
            raise QueryError(f"Hold not found: {hold_id}")
        self._mark(stone, _AVAILABLE)
        return {"id": hold_id, "denied": False, "until": None}

    def _mark(self, stone: Stone, availability: int) -> None:
        changed = stone.with_trait(Trait.AVAILABILITY, availability)
        self.world.history.record("hold", changed._replace(updated_at=self.now))
