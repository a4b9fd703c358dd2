"""The oracle over HTTP: look at the truth, push the clock, change stones, turn knobs. No token, no faults, no limits.

GET  /oracle/clock                          what time it is
GET  /oracle/snapshot?at=…&query={…}        every stone at that time, one JSON object per line
GET  /oracle/changes?since=…&until=…        what happened in between, the same
GET  /oracle/count?at=…&query={…}           how many that query should have found
GET  /oracle/statistics                     what has been asked and answered
GET  /oracle/knobs                          how they stand
POST /oracle/advance   {"by": "1h"}
POST /oracle/mutate    {"kind": "price", "count": 3} or {"kind": "delete", "ids": […]}
POST /oracle/knobs     {"short_page_prob": 0.2}
POST /oracle/revoke    {}                   all tokens
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from stepfast.applications import moment
from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator import oracle
from stepfast_diamonds.simulator.faults import change_knobs
from stepfast_diamonds.simulator.graphql import DocumentError, coerce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepfast_diamonds.simulator.oracle import Happened, Truth
    from stepfast_diamonds.simulator.world import World


JSON: Final = "application/json; charset=utf-8"
Given = dict[str, Any]
LINES: Final = "application/x-ndjson; charset=utf-8"


def control(world: World, method: str, target: str, body: bytes) -> tuple[int, bytes | Iterator[bytes], str]:
    """Status, body and type of the answer."""
    parts = urlsplit(target)
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        if method == "POST":
            given |= _read(body or b"{}")
        found = _answer(world, method, parts.path.removeprefix("/oracle/"), given)
    except ConfigurationError as error:
        return 400, msgspec.json.encode({"error": str(error)}), JSON
    if found is None:
        return 404, msgspec.json.encode({"error": f"there is no {method} {parts.path}"}), JSON
    if isinstance(found, bytes | Iterator):
        return 200, found, LINES
    return 200, msgspec.json.encode(found), JSON


def _answer(world: World, method: str, what: str, given: dict[str, Any]) -> Any:
    answer = _ANSWERS.get((method, what))
    return None if answer is None else answer(world, given)


def _clock(world: World, _: Given) -> Any:
    now = world.look()
    return {"now": now, "iso": moment(now).isoformat()}


def _snapshot(world: World, given: Given) -> Iterator[bytes]:
    parts = oracle.snapshot_in_parts(world, given.get("at"), read_json_query(given.get("query")))
    return map(_lines, parts)


def _count(world: World, given: Given) -> Any:
    found = oracle.snapshot(world, given.get("at"), read_json_query(given.get("query")))
    return {"count": sum(1 for _ in found)}


def _changes(world: World, given: Given) -> bytes:
    return _lines(oracle.changes(world, given.get("since"), given.get("until")))


def _advance(world: World, given: Given) -> Any:
    world.clock.advance(_span(given.get("by", 0)))
    return _clock(world, given)


def _mutate(world: World, given: Given) -> Any:
    return [_plain(it) for it in mutate(world, **_arguments(given))]


def _knobs(world: World, given: Given) -> Any:
    world.knobs = change_knobs(world.knobs, given)
    return asdict(world.knobs)


def _revoke(world: World, _: Given) -> Any:
    world.sessions.revoke_all()
    return {"logins": world.sessions.logins}


_ANSWERS: Final[Mapping[tuple[str, str], Callable[[World, Given], Any]]] = {
    ("GET", "clock"): _clock,
    ("GET", "snapshot"): _snapshot,
    ("GET", "count"): _count,
    ("GET", "changes"): _changes,
    ("GET", "statistics"): lambda world, _: statistics(world),
    ("GET", "knobs"): lambda world, _: asdict(world.knobs),
    ("POST", "advance"): _advance,
    ("POST", "mutate"): _mutate,
    ("POST", "knobs"): _knobs,
    ("POST", "revoke"): _revoke,
}


def mutate(world: World, kind: str, *, count: int = 1, ids: Sequence[str] | None = None) -> list[Happened]:
    """Change stones now; searches see it when their index has caught up."""
    now = world.look()
    rows = None if ids is None else [_row(world, it) for it in ids]
    made = world.mutations.ask(kind, now, count=count, rows=rows)
    world.look()
    return [oracle.as_happened(it, world.catalogue) for it in made]


def _row(world: World, id_: str) -> int:
    row = world.catalogue.row_of(id_)
    if row is None:
        raise ConfigurationError(f"mutate: there is no diamond {id_!r}")
    return row


def statistics(world: World) -> dict[str, int]:
    return dict(world.told) | {
        "logins": world.sessions.logins,
        "stones": len(world.history),
        "changes": len(world.history.log),
    }


def read_json_query(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found: dict[str, Any] = coerce("DiamondQuery!", msgspec.json.decode(text), literal=False)
    except (msgspec.DecodeError, DocumentError) as error:
        raise ConfigurationError(f"query: {error}") from None
    return found


def _lines(found: Iterable[Truth | Happened]) -> bytes:
    return b"".join(msgspec.json.encode(_plain(it)) + b"\n" for it in found)


def _plain(it: Truth | Happened) -> dict[str, Any]:
    plain = it._asdict()
    if plain.get("truth") is not None:
        plain["truth"] = plain["truth"]._asdict()
    return plain


def _read(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"the body is not a JSON object: {error}") from None


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    try:
        return msgspec.structs.asdict(msgspec.convert(given, _Mutate))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"mutate: {error}") from None


class _Mutate(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    count: int = 1
    ids: list[str] | None = None


def _span(by: Any) -> Any:
    try:
        return float(by)
    except (TypeError, ValueError):
        return by
