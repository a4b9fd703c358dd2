"""Faults of the simulator: the knobs that set them, and those of latency, pages and single items.

`--faults` is the name of a preset, and changes to it: `rough,hang_prob=0.01,limit_answer=429`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Everything that can go wrong, and by how much. Defaults are those of the real API; probabilities are per request."""

    # What a search answers
    page_limit: int = 50
    over_limit: str = "clamp"  # or "error"
    count_skew: float = 0.0  # counts are so much too high, as a share; below zero: too low
    count_lag_s: float = 0.0  # counts are so many seconds old
    short_page_prob: float = 0.02
    short_page_mode: str = "truncate"  # or "postfilter": the rows a page lacks do not exist
    empty_page_prob: float = 0.0  # only in the mode "postfilter"
    overrun_pages: int = 0  # so many pages past the end repeat earlier rows
    compare: str = "decimal"  # or "rounded": to whole dollars, before they are compared
    updated_inclusive: bool = True  # the end of an `updated` window
    unstable_ties: bool = True
    dollar_value_loss: float = 0.0  # this share of the stones no `dollar_value` range ever finds
    markup_pct: int = 0
    index_lag_s: float = 2.0  # a change is found by searches so much later than its stamp says

    # What happens to the catalogue, per minute of its own clock
    churn_per_minute: float = 0.0

    # Who may ask, and how often
    token_lifetime_s: float = 21_600.0
    expires_unit: str = "ms"  # or "s": what the Float of a session counts, since 1970
    expired_answer: str = "errors"  # or "401"
    logins_per_minute: int = 60  # 0: no limit
    requests_per_s: float = 25.0  # 0: no limit
    burst: int = 25
    limit_answer: str = "waf"  # 403 with a page of HTML and a cool-down; or "429" with Retry-After
    cool_down_s: float = 60.0
    concurrency: int = 20  # requests under way per account; 0: no limit
    hold_denied_prob: float = 0.0

    # What the way does to an answer
    latency_ms: float = 0.0  # the median
    latency_spread: float = 0.3  # 0: always the same
    hang_prob: float = 0.0  # no byte comes, for `hang_s`
    hang_s: float = 120.0
    reset_prob: float = 0.0  # the connection breaks after the answer was made
    gateway_prob: float = 0.0  # 502, 503 or 504
    html_prob: float = 0.0  # a page of HTML with status 200
    truncated_prob: float = 0.0  # the JSON ends in the middle
    partial_prob: float = 0.0  # status 200 with `errors` beside half of the data

    # What is wrong with single items; per item
    sticky_items: bool = False  # the same stones every time, instead of other ones with each request
    null_item_prob: float = 0.0
    duplicate_prob: float = 0.0  # per page
    # a value that cannot be serialised: null and an error; a null item if it must not be null
    enum_error_prob: float = 0.0
    unknown_enum_prob: float = 0.0
    no_certificate_prob: float = 0.0
    text_number_prob: float = 0.0  # a text where the schema says a number
    huge_comment_prob: float = 0.0  # a comment of one megabyte
    dirty: bool = True  # the catalogue itself holds "90%", "null", "0" and two words for one colour

    clock_skew_s: float = 90.0  # so far the source's clock is ahead of ours


DEFAULT: Final = Knobs()
POLITE: Final = Knobs(
    short_page_prob=0,
    unstable_ties=False,
    index_lag_s=0,
    logins_per_minute=0,
    requests_per_s=0,
    concurrency=0,
    dirty=False,
    clock_skew_s=0,
)
ROUGH: Final = Knobs(
    short_page_prob=0.05,
    overrun_pages=3,
    count_skew=0.005,
    latency_ms=5,
    requests_per_s=0,
    concurrency=0,
    churn_per_minute=120,
    reset_prob=0.005,
    gateway_prob=0.01,
    html_prob=0.002,
    truncated_prob=0.002,
    partial_prob=0.005,
    null_item_prob=0.0005,
    duplicate_prob=0.005,
    enum_error_prob=0.0005,
)
REAL: Final = Knobs(latency_ms=150, overrun_pages=2, churn_per_minute=60)
PRESETS: Final = {"none": POLITE, "default": DEFAULT, "rough": ROUGH, "real": REAL}
_WORDS: Final = {
    "over_limit": ("clamp", "error"),
    "short_page_mode": ("truncate", "postfilter"),
    "compare": ("decimal", "rounded"),
    "expires_unit": ("ms", "s"),
    "expired_answer": ("errors", "401"),
    "limit_answer": ("waf", "429"),
}
_TYPES: Final = {it.name: str(it.type) for it in fields(Knobs)}


def parse_knobs(given: Knobs | str | None) -> Knobs:
    """Read `rough,hang_prob=0.01`; None means the defaults."""
    if isinstance(given, Knobs):
        return given
    knobs = DEFAULT
    for word in (given or "default").split(","):
        name, sign, value = word.strip().partition("=")
        if sign:
            knobs = change_knobs(knobs, {name: value})
        elif name in PRESETS:
            knobs = PRESETS[name]
        else:
            raise ConfigurationError(
                f"faults: {name!r} is neither a setting ({', '.join(PRESETS)}) nor a name=value"
            )
    return knobs


def change_knobs(knobs: Knobs, changes: dict[str, Any]) -> Knobs:
    """The knobs with other values for some; texts are read by the type of the knob."""
    if unknown := sorted(set(changes) - set(_TYPES)):
        raise ConfigurationError(
            f"faults: there is no knob {unknown[0]!r}; there are {', '.join(sorted(_TYPES))}"
        )
    return replace(knobs, **{name: _read_knob(name, value) for name, value in changes.items()})


def _read_knob(name: str, value: Any) -> Any:
    if name in _WORDS:
        if str(value) not in _WORDS[name]:
            raise ConfigurationError(f"faults: {name} is one of {', '.join(_WORDS[name])}, not {value!r}")
        return str(value)
    if _TYPES[name] == "bool":
        if str(value).lower() not in {"true", "false"}:
            raise ConfigurationError(f"faults: {name} is true or false, not {value!r}")
        return str(value).lower() == "true"
    try:
        number = int(value) if _TYPES[name] == "int" else float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"faults: {name} is a number, not {value!r}") from None
    if name.endswith("_prob") and not 0 <= number <= 1:
        raise ConfigurationError(f"faults: {name} is a probability between 0 and 1, not {value!r}")
    if number < 0 and name not in {"count_skew", "clock_skew_s"}:
        raise ConfigurationError(f"faults: {name} cannot be negative ({value!r})")
    return number


MEGABYTE: Final = 1_000_000
GATEWAYS: Final = ((502, "Bad Gateway"), (503, "Service Unavailable"), (504, "Gateway Timeout"))
# Values that staging fails to serialise, and whether they may be null.
BROKEN_ENUMS: Final = {
    "clarity": True,
    "floInt": True,
    "labgrown_type": True,
    "color": False,
    "symmetry": False,
}
Item = dict[str, Any]
Errors = list[dict[str, Any]]


def latency(knobs: Knobs, dice: Random) -> float:
    """Seconds to wait, log-normally distributed."""
    if not knobs.latency_ms:
        return 0.0
    return knobs.latency_ms / 1_000 * math.exp(knobs.latency_spread * dice.gauss(0, 1))


def html_page(status: int, title: str) -> bytes:
    return (
        f"<!DOCTYPE html>\n<html><head><title>{status} {title}</title></head>\n"
        f"<body><h1>{status} {title}</h1><p>Request blocked.</p></body></html>\n"
    ).encode()


def spoil_page(
    items: list[Any], path: list[Any], knobs: Knobs, dice: Random, by_item: Callable[[int], Random]
) -> Errors:
    """Change a page in place as the knobs say; returns the errors to send beside it."""
    errors: Errors = []
    if _any_item_fault(knobs):
        for number, item in enumerate(items):
            if isinstance(item, dict):
                own = by_item(number) if knobs.sticky_items else dice
                items[number] = spoil_item(item, [*path, number], knobs, own, errors)
    if items and dice.random() < knobs.duplicate_prob:
        place = dice.randrange(len(items))
        items.insert(place, copy.deepcopy(items[place]))
        items.pop()  # a page is never longer than its limit
    return errors


def _any_item_fault(knobs: Knobs) -> bool:
    return bool(
        knobs.null_item_prob
        or knobs.enum_error_prob
        or knobs.unknown_enum_prob
        or knobs.no_certificate_prob
        or knobs.text_number_prob
        or knobs.huge_comment_prob
    )


def spoil_item(item: Item, path: list[Any], knobs: Knobs, dice: Random, errors: Errors) -> Item | None:
    """One item after its faults; None where GraphQL lets a null rise up to it."""
    if dice.random() < knobs.null_item_prob:
        errors.append({"message": "Internal server error", "path": path})
        return None
    diamond = item.get("diamond")
    certificate = diamond.get("certificate") if isinstance(diamond, dict) else None
    if not isinstance(diamond, dict) or not isinstance(certificate, dict):
        return item
    if dice.random() < knobs.enum_error_prob and not _break_enum(certificate, path, dice, errors):
        return None
    _spoil_values(item, certificate, knobs, dice)
    if dice.random() < knobs.no_certificate_prob:
        diamond["certificate"] = None
    return item


def _spoil_values(item: Item, certificate: Item, knobs: Knobs, dice: Random) -> None:
    if dice.random() < knobs.unknown_enum_prob:
        name = next((it for it in ("cut", "clarity", "color", "lab") if it in certificate), None)
        if name:
            certificate[name] = "QUITE_NEW"
    if dice.random() < knobs.text_number_prob:
        if "carats" in certificate:
            certificate["carats"] = str(certificate["carats"])
        if "price" in item:
            item["price"] = f"{item['price']}.00"
    if dice.random() < knobs.huge_comment_prob:
        certificate["comments"] = "x" * MEGABYTE


def _break_enum(certificate: Item, path: list[Any], dice: Random, errors: Errors) -> bool:
    """Replace an enum value by null and an error; False if the whole item must be null."""
    asked = [it for it in BROKEN_ENUMS if certificate.get(it) is not None]
    if not asked:
        return True
    name = dice.choice(asked)
    errors.append(
        {
            "message": f'Enum cannot represent value: "{certificate[name]}?"',
            "path": [*path, "diamond", "certificate", name],
        }
    )
    certificate[name] = None
    return BROKEN_ENUMS[name]
