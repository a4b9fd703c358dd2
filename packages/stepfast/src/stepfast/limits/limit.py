"""Limits: `Rate` and `Concurrency`, and the arithmetic of a rate. No database.

The worker asks the limits of claimed jobs (`worker/admission.py`); `limits/limit_rows.py` has their rows: it admits steps,
holds the others, and releases them when there is room.

A rate is a GCRA: each start moves the time at which the next one would be on time (its arrival) by one
gap; a start may come early by the tolerance. Gap and tolerance are chosen so that in *any* window of
`per` there are at most `count` starts, not only in windows that begin at full seconds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration, micros
from stepfast.config import is_whole
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


LONGEST_ID: Final = 200
BURST_SHARE: Final = 10  # by default a tenth of the count may start at once


@dataclass(frozen=True)
class Rate:
    """At most `count` starts in any window of `per`; up to `burst` of them at the same moment.

    `by` names an argument of the job: each of its values has a limit of its own. Jobs whose limits have the
    same `name` share it. The sustained rate is (count - burst + 1) / per: a large burst has its price.
    """

    count: int
    per: Duration = "1s"
    burst: int | None = None
    by: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_count("Rate", self.count)
        if micros(duration(self.per, "Rate(per=…)")) < 1:
            raise ConfigurationError("Rate: per must be longer than nothing")
        burst: object = self.burst
        if burst is not None and not (is_whole(burst) and 1 <= burst <= self.count):
            raise ConfigurationError(
                f"Rate(burst={burst!r}): a whole number between 1 and the count, which is {self.count}"
            )
        _check_names(self)

    @property
    def gap(self) -> int:
        """Microseconds between two starts of an even stream."""
        period = micros(duration(self.per, "Rate(per=…)"))
        return -(-period // (self.count - self._burst + 1))

    @property
    def tolerance(self) -> int:
        """Microseconds by which a start may come early."""
        return (self._burst - 1) * self.gap

    @property
    def slots(self) -> int:
        return 0

    @property
    def _burst(self) -> int:
        return self.burst or max(1, self.count // BURST_SHARE)


@dataclass(frozen=True)
class Concurrency:
    """At most `count` at the same time, over all workers. `by` and `name` as for `Rate`."""

    count: int
    by: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_count("Concurrency", self.count)
        _check_names(self)

    @property
    def gap(self) -> int:
        return 0

    @property
    def tolerance(self) -> int:
        return 0

    @property
    def slots(self) -> int:
        return self.count


Limit = Rate | Concurrency


def limit_id(limit: Limit, scope: str, arguments: dict[str, Any] | None) -> str:
    """The row that counts for a job: of the limit's name or its scope, and of the argument it is taken by."""
    whole = _family(limit, limit.name or scope)
    if limit.by is not None:
        value = (arguments or {}).get(limit.by)
        whole += f"={value if isinstance(value, str) else _text(value)}"
    if len(whole) <= LONGEST_ID and whole == whole.rstrip():
        return whole
    # What does not fit, or ends in a space that MariaDB would not see, is identified by its hash.
    return whole[: LONGEST_ID - 33] + "#" + hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()


def family_of(limit: Limit, scope: str) -> str:
    """What a limit is counted by, whatever the value of its argument."""
    return _family(limit, limit.name or scope)


def is_of(limit_id: str, family: str) -> bool:
    return limit_id == family or limit_id.startswith(f"{family}=")


def check_together(where: str, limits: Sequence[Limit]) -> None:
    """Refuse two limits of one job that would be counted in one row: together they would mean nothing."""
    families = [_family(it, it.name or "") for it in limits]
    for limit, family in zip(limits, families, strict=True):
        if families.count(family) > 1:
            again = f" by {limit.by!r}" if limit.by else ""
            raise ConfigurationError(
                f"{where}: {type(limit).__name__}{again} is given twice; keep the tighter one, or give them names of their own"
            )


def _family(limit: Limit, scope: str) -> str:
    """What a limit is counted by, without the value: 20 a second and 500 an hour are two limits."""
    kind = f"rate:{scope} per {_spoken(limit)}" if isinstance(limit, Rate) else f"slots:{scope}"
    return kind if limit.by is None else f"{kind} {limit.by}"


def _spoken(rate: Rate) -> str:
    return f"{micros(duration(rate.per, 'Rate(per=…)')) / 1e6:g}s"


def room_in_rate(now: int, arrival: int, gap: int, tolerance: int) -> int:
    """How many may start now."""
    early = now + tolerance - max(arrival, now)
    return early // gap + 1 if early >= 0 else 0


def arrival_after(now: int, arrival: int, gap: int, started: int) -> int:
    """The arrival after so many have started now."""
    return max(arrival, now) + started * gap if started else arrival


def _text(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value, order="deterministic").decode()


def _check_count(what: str, count: object) -> None:
    if not is_whole(count) or count < 1:
        raise ConfigurationError(f"{what}({count!r}): a whole number from 1")


def _check_names(limit: Limit) -> None:
    given: tuple[tuple[str, object], ...] = (("by", limit.by), ("name", limit.name))
    for word, value in given:
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ConfigurationError(f"{type(limit).__name__}({word}={value!r}): a name, or leave it out")


def checked_limits(where: str, limits: Sequence[Limit], names: Collection[str] | None) -> tuple[Limit, ...]:
    """The declared limits, or a sentence about what is wrong with them; `names` are the arguments that limits may be by."""
    if isinstance(limits, Limit):
        raise ConfigurationError(f"{where}: give a list of limits, [{type(limits).__name__}(…)], not one")
    for limit in limits:
        if not isinstance(limit, Limit):
            raise ConfigurationError(f"{where}: a limit is Rate(…) or Concurrency(…), not {limit!r:.80}")
        if names is not None and limit.by is not None and limit.by not in names:
            raise ConfigurationError(
                f"{where}: {type(limit).__name__}(by={limit.by!r}): the handler has no parameter of that name"
            )
    check_together(where, limits)
    return tuple(limits)
