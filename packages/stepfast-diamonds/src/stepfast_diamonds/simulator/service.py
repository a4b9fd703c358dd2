"""Answer a request: limits, faults before the answer, the document, the answer, faults after it. Knows no sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.applications import moment
from stepfast_diamonds.simulator.control import control
from stepfast_diamonds.simulator.faults import GATEWAYS, Errors, html_page, latency, spoil_page
from stepfast_diamonds.simulator.filter import QueryError, read_query
from stepfast_diamonds.simulator.graphql import DocumentError, plan, read_arguments, read_variables
from stepfast_diamonds.simulator.offer import Offer
from stepfast_diamonds.simulator.session import RefusedError
from stepfast_diamonds.simulator.vocabulary import AVAILABILITY, Trait

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.catalogue import Stone
    from stepfast_diamonds.simulator.graphql import OperationPlan, PlannedCall
    from stepfast_diamonds.simulator.world import World


ENDPOINT: Final = "/api/diamonds"
JSON: Final = "application/json; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
FORBIDDEN, TOO_MANY = 403, 429


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    address: str


@dataclass
class Reply:
    """What to send, when, and what happens to the connection."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    fate: str = "send"  # or "hang" (nothing comes for `delay` seconds), or "reset"
    account: str | None = None  # that it counts for, while it is under way
    parts: Iterator[bytes] | None = None  # a body that is made while it is sent


class _StoppedWithReply(Exception):  # noqa: N818 - carries a reply, is no error
    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


class Service:
    """Answers requests one at a time; tests may change the world from other threads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock = threading.RLock()
        self._number = 0

    def handle(self, request: Request) -> Reply:
        with self.lock:
            path = request.target.partition("?")[0]
            if path.startswith("/oracle/"):
                status, body, content_type = control(self.world, request.method, request.target, request.body)
                if isinstance(body, bytes):
                    return Reply(status, body, content_type)
                return Reply(status, b"", content_type, parts=body)
            reply = self._answer(request, path)
            self.world.told["requests"] += 1
            self.world.told[f"status {reply.status}" if reply.fate == "send" else reply.fate] += 1
            return reply

    def next_part(self, reply: Reply) -> bytes | None:
        """The next part of a body that has several; None after the last."""
        with self.lock:
            for part in reply.parts or ():
                if part:
                    return part
            return None

    def finished(self, reply: Reply) -> None:
        """The reply was sent, or its connection is gone."""
        with self.lock:
            if reply.account is not None:
                self.world.throttle.leave(reply.account)
                reply.account = None

    def _answer(self, request: Request, path: str) -> Reply:
        self._number += 1
        dice = Random(self.world.seed * 1_000_003 + self._number)
        knobs = self.world.knobs
        if path.rstrip("/") != ENDPOINT:
            return _error(404, "There is nothing here; the API is at " + ENDPOINT)
        if request.method != "POST":
            return _error(405, "GraphQL requests are sent by POST.")
        address = request.headers.get("x-forwarded-for") or request.address
        now = self.world.look()
        account: list[str] = []
        try:
            self._pass_the_door(address)
            reply = _fault_before_answer(dice, self.world) or self._graphql(
                request, address, now, dice, account
            )
        except _StoppedWithReply as stopped:
            reply = stopped.reply
        except Exception as error:  # noqa: BLE001 - one request must not end the others
            reply = _error(500, f"The simulator failed: {error!r}")
        if reply.fate == "send":
            reply.delay += latency(knobs, dice)
        reply.account = account[0] if account else None
        return reply

    def _pass_the_door(self, address: str) -> None:
        world = self.world
        seconds = world.clock.for_limits()
        if world.throttle.wall(address, seconds):
            raise _StoppedWithReply(_blocked())
        self._refuse_if(world.throttle.admit([f"address {address}"], address, seconds, world.knobs))

    def _refuse_if(self, wait: float) -> None:
        if wait:
            if self.world.knobs.limit_answer == "waf":
                raise _StoppedWithReply(_blocked())
            reply = _error(TOO_MANY, "Too many requests")
            reply.headers["Retry-After"] = str(max(1, round(wait + 0.5)))
            raise _StoppedWithReply(reply)

    def _graphql(self, request: Request, address: str, now: int, dice: Random, account: list[str]) -> Reply:
        world, knobs = self.world, self.world.knobs

        def authorise(token: str | None) -> str:
            name = world.sessions.account(token, now)
            if not account:
                seconds = world.clock.for_limits()
                self._refuse_if(world.throttle.admit([f"account {name}"], address, seconds, knobs))
                self._refuse_if(world.throttle.enter(name, address, seconds, knobs))
                account.append(name)
            return name

        answering = AnswerInProgress(
            world, now, dice, _bearer(request), authorise, partial=dice.random() < knobs.partial_prob
        )
        try:
            text, variables, name = _read_body(request.body)
            planned = plan(text, name)
            values = read_variables(planned, variables)
        except DocumentError as error:
            return Reply(400, _encode({"errors": [_document_error(error)]}))
        try:
            data: Any = answering.run(planned, values)
        except RefusedError as error:
            status = 401 if str(error) == "Token expired" and knobs.expired_answer == "401" else 200
            return Reply(status, _failure_body(str(error), "UNAUTHENTICATED"))
        except DocumentError as error:
            return Reply(200, _failure_body(str(error), "BAD_USER_INPUT"))
        except QueryError as error:
            return Reply(200, _failure_body(str(error), "BAD_USER_INPUT"))
        found = {"data": data} | ({"errors": answering.errors} if answering.errors else {})
        return _fault_after_answer(Reply(200, _encode(found)), dice, world)


def _fault_before_answer(dice: Random, world: World) -> Reply | None:
    """A fault instead of an answer, if the dice say so."""
    knobs = world.knobs
    if dice.random() < knobs.hang_prob:
        return Reply(504, b"", delay=knobs.hang_s, fate="hang")
    if dice.random() < knobs.gateway_prob:
        status, title = dice.choice(GATEWAYS)
        return Reply(status, html_page(status, title), HTML)
    if dice.random() < knobs.html_prob:
        return Reply(200, html_page(200, "Just a moment"), HTML)
    return None


def _fault_after_answer(reply: Reply, dice: Random, world: World) -> Reply:
    """The reply, perhaps lost or cut off after everything was done."""
    if dice.random() < world.knobs.reset_prob:
        reply.fate = "reset"
    elif dice.random() < world.knobs.truncated_prob:
        reply.body = reply.body[: max(1, int(len(reply.body) * dice.random()))]
        world.told["truncated"] += 1
    return reply


def _read_body(body: bytes) -> tuple[str, Any, str | None]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise DocumentError(f"The body is not JSON: {error}", code="BAD_REQUEST") from None
    text = found.get("query") if isinstance(found, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise DocumentError("GraphQL operations must contain a non-empty `query`.", code="BAD_REQUEST")
    name = found.get("operationName")
    if not isinstance(name, str | None):
        raise DocumentError("`operationName` must be a text.", code="BAD_REQUEST")
    return text, found.get("variables"), name


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _failure_body(message: str, code: str) -> bytes:
    return _encode({"errors": [{"message": message, "extensions": {"code": code}}], "data": None})


def _document_error(error: DocumentError) -> dict[str, Any]:
    found: dict[str, Any] = {"message": str(error)}
    if error.location:
        found["locations"] = [error.location]
    return found | {"extensions": {"code": error.code}}


def _error(status: int, message: str) -> Reply:
    return Reply(status, _encode({"errors": [{"message": message}]}))


def _blocked() -> Reply:
    return Reply(FORBIDDEN, html_page(FORBIDDEN, "Forbidden"), HTML)


HOLD_LASTS: Final = 48 * 3_600_000_000
DEFAULT_LIMIT: Final = 50
_AVAILABLE, _HOLD = AVAILABILITY.index("AVAILABLE"), AVAILABILITY.index("HOLD")


@dataclass
class AnswerInProgress:
    """One request while it is answered. `authorise` checks a token, and counts the request for its account."""

    world: World
    now: int
    dice: Random
    token: str | None
    authorise: Callable[[str | None], str]
    partial: bool = False
    errors: Errors = field(default_factory=list)
    _variables: Mapping[str, Any] = field(default_factory=dict)

    def run(self, plan: OperationPlan, variables: Mapping[str, Any]) -> dict[str, Any]:
        self._variables = variables
        return self._all(plan.calls, [])

    def _all(self, calls: Any, path: list[Any]) -> dict[str, Any]:
        return {it.alias: self._one(it, [*path, it.alias]) for it in calls}

    def _one(self, call: PlannedCall, path: list[Any]) -> Any:
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

    def _about_stones(self, call: PlannedCall, given: Mapping[str, Any], path: list[Any]) -> Any:
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

    def _shaped(self, call: PlannedCall, value: Any) -> Any:
        return call.project(value) if call.project else value

    def _login(self, given: Mapping[str, Any]) -> dict[str, Any]:
        world = self.world
        return world.sessions.login(
            given["username"], given["password"], self.now, world.clock.for_limits(), world.knobs
        )

    def _refresh(self, given: Mapping[str, Any]) -> dict[str, Any]:
        world = self.world
        return world.sessions.refresh(given["token"], self.now, world.clock.for_limits(), world.knobs)

    def _page(self, call: PlannedCall, given: Mapping[str, Any], path: list[Any]) -> Any:
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
