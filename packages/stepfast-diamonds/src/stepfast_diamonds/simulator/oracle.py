"""The truth about the catalogue at any time, for tests: what no client of the real API can know."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.applications import instant
from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator import vocabulary as words
from stepfast_diamonds.simulator.filter import QueryError, read_query
from stepfast_diamonds.simulator.vocabulary import Trait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepfast_diamonds.simulator.catalogue import Catalogue, Stone
    from stepfast_diamonds.simulator.history import Change
    from stepfast_diamonds.simulator.world import World


PART: Final = 5_000

At = datetime | str | int | None  # an aware datetime, ISO-8601, microseconds since 1970, or now


class Truth(NamedTuple):
    """A stone as it was."""

    id: str  # of the diamond; the offer is DIAMOND/<id>
    price: int  # cents
    carats: float
    shape: str
    color: str
    clarity: str
    availability: str
    labgrown: bool
    certificate: str  # its number
    created_at: int  # microseconds since 1970, as the stamps of searches
    updated_at: int


class Happened(NamedTuple):
    """A change: `truth` is the stone after it, or None if it was deleted."""

    at: int
    kind: str
    id: str
    truth: Truth | None


def snapshot(world: World, at: At = None, query: Mapping[str, Any] | None = None) -> Iterator[Truth]:
    """Every stone there was at `at`; with a `DiamondQuery`, those that it should find."""
    for part in snapshot_in_parts(world, at, query):
        yield from part


def snapshot_in_parts(
    world: World, at: At = None, query: Mapping[str, Any] | None = None
) -> Iterator[list[Truth]]:
    """The same, some thousand rows at a time. Between two parts life may go on: what was true then stays true."""
    world.look()
    position = world.history.position(None if at is None else micros_of(at))
    try:
        filter_ = None if query is None else read_query(query, world.catalogue, world.knobs)
    except QueryError as error:
        raise ConfigurationError(f"query: {error}") from None
    every = range(len(world.history))
    return (
        [truth(it, world.catalogue) for it in world.history.snapshot(position, filter_, every[n : n + PART])]
        for n in range(0, len(every), PART)
    )


def changes(world: World, since: At, until: At = None) -> list[Happened]:
    """What happened in (since, until], in order."""
    now = world.look()
    found = world.history.changes(
        world.clock.start if since is None else micros_of(since), now if until is None else micros_of(until)
    )
    return [as_happened(it, world.catalogue) for it in found]


def truth(stone: Stone, catalogue: Catalogue) -> Truth:
    traits = stone.traits
    return Truth(
        catalogue.diamond_id(stone.row),
        stone.price,
        stone.carats / 100,
        words.SHAPES[traits[Trait.SHAPE]],
        words.COLORS[traits[Trait.COLOR]],
        words.CLARITIES[traits[Trait.CLARITY]],
        words.AVAILABILITY[traits[Trait.AVAILABILITY]],
        traits[Trait.LABGROWN] == 1,
        catalogue.certificate_number(stone.row, stone.revision),
        stone.created_at,
        stone.updated_at,
    )


def as_happened(change: Change, catalogue: Catalogue) -> Happened:
    return Happened(
        change.at,
        change.kind,
        catalogue.diamond_id(change.row),
        truth(change.after, catalogue) if change.after.present else None,
    )


def micros_of(at: datetime | str | int) -> int:
    """An instant as tests write it."""
    if isinstance(at, int):
        return at
    if isinstance(at, str):
        if at.isdecimal():
            return int(at)
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise ConfigurationError(
                f"at: {at!r} is no instant; write ISO-8601, or microseconds since 1970"
            ) from None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return instant(at, "at")
