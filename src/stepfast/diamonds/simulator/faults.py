"""What goes wrong on the way: with the connection, with the answer, and with single items of it."""

from __future__ import annotations

import copy
import math
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.diamonds.simulator.knobs import Knobs

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
    """Seconds: log-normal, as waiting is."""
    if not knobs.latency_ms:
        return 0.0
    return knobs.latency_ms / 1_000 * math.exp(knobs.latency_spread * dice.gauss(0, 1))


def html(status: int, title: str) -> bytes:
    return (
        f"<!DOCTYPE html>\n<html><head><title>{status} {title}</title></head>\n"
        f"<body><h1>{status} {title}</h1><p>Request blocked.</p></body></html>\n"
    ).encode()


def spoil_page(
    items: list[Any], path: list[Any], knobs: Knobs, dice: Random, by_item: Callable[[int], Random]
) -> Errors:
    """Change a page in place as the knobs say; returns the errors to tell beside it."""
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
    """True if a null may stay where the value was; else the whole item is null."""
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
