"""What Nivoda is asked: the documents, and the one function that turns a range and a window into a `DiamondQuery`.

Counts and pages are built here and nowhere else, so that both mean the same by a range. There is never an end of the
window in a query: a stone that changes while it is read would leave the list, and all others would move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from stepfast import ConfigurationError
from stepfast_diamonds.mapping import SELECTION

if TYPE_CHECKING:
    from stepfast import Range, Window
    from stepfast_diamonds.settings import Style


LARGEST_INT: Final = 2_147_483_647  # bounds of prices are required: this one stands for "no end"
SMALLEST_CARATS: Final = 0.4
LARGEST_CARATS: Final = 15.01
SHAPES: Final = (
    "ROUND", "OVAL", "EMERALD", "CUSHION", "CUSHION B", "CUSHION MODIFIED", "CUSHION BRILLIANT", "ASSCHER", "RADIANT",
    "MARQUISE", "PEAR", "PRINCESS", "ROSE", "OLD MINER", "TRILLIANT", "HEXAGONAL", "HEART",
)  # fmt: skip
COLORS: Final = (
    *"DEFGHIJKLMNOPQRSTUVWXYZ", "NO", "OP", "QR", "ST", "UV", "WX", "XY", "YZ", "SZ", "PR", "FANCY",
)  # fmt: skip
BASE: Final[Mapping[str, Any]] = {
    "shapes": list(SHAPES),
    "sizes": [{"from": SMALLEST_CARATS, "to": LARGEST_CARATS}],
    "availability": ["AVAILABLE"],
    "has_image": True,  # together with the next one it means either: the mapping decides which stones can be shown
    "has_v360": True,
    "excludeFairPoorCuts": True,
    "hide_memo": True,
}
OLDEST_FIRST: Final = {"type": "createdAt", "direction": "ASC"}  # a stone never moves in this order
NEWEST_FIRST: Final = {"type": "createdAt", "direction": "DESC"}

LOGIN: Final = (
    "query Login($username: String!, $password: String!) "
    "{ authenticate { username_and_password(username: $username, password: $password) { token expires } } }"
)
_STONE: Final = " ".join(SELECTION.split())
_SEARCH: Final = (
    "diamonds_by_query(query: $query, offset: $offset, limit: $limit, order: $order) "
    f"{{ items {{ {_STONE} }} }}"
)
_SEARCH_TYPES: Final = "$query: DiamondQuery, $offset: Int, $limit: Int, $order: DiamondOrder"
_COUNT: Final = "diamonds_by_query_count(query: $query)"
BY_ID: Final = "get_diamond_by_id"
_ONE: Final = f"{BY_ID}(diamond_id: $id) {{ {_STONE} }}"
_OFFERED: Final = (
    f"{BY_ID}(diamond_id: $id) {{ diamond {{ availability image video supplier_video_link v360 {{ url }} "
    "certificate { shape carats cut labgrown product_images { url } product_videos { url } } } }"
)  # what decides whether it fits, and nothing else: a value that nobody needs cannot fail


def _document(name: str, types: str, field: str) -> Mapping[Style, str]:
    return {
        "bearer": f"query {name}({types}) {{ {field} }}",
        "as": f"query {name}($token: String!, {types}) {{ as(token: $token) {{ {field} }} }}",
    }


SEARCH: Final = _document("Search", _SEARCH_TYPES, _SEARCH)
COUNT: Final = _document("Count", "$query: DiamondQuery", _COUNT)
ONE: Final = _document("One", "$id: ID!", _ONE)
OFFERED: Final = _document("Offered", "$id: ID!", _OFFERED)


def diamond_query(base: Mapping[str, Any], part: Range, window: Window | None) -> dict[str, Any]:
    """The stones of a range that were changed since the window began."""
    query = dict(base)
    for name, given in part.parts:
        write = _WRITERS.get(name)
        if write is None:
            raise ConfigurationError(
                f"Nivoda cannot be asked for a range of {name!r}; cut by {', '.join(_WRITERS)}"
            )
        query |= write(given)
    if window is not None and window.from_ is not None:
        query["updated"] = {"from": window.from_.isoformat().replace("+00:00", "Z")}
    return query


def _prices(name: str) -> Callable[[Any], dict[str, Any]]:
    """Whole bounds, both included: neighbours share them, so that no stone at 249.50 falls in between."""

    def write(given: Any) -> dict[str, Any]:
        low, high = given.from_, given.to
        return {
            name: {
                "from": 0 if low is None else math.floor(low),
                "to": LARGEST_INT if high is None else min(LARGEST_INT, math.ceil(high)),
            }
        }

    return write


def _sizes(given: Any) -> dict[str, Any]:
    low, high = given.from_, given.to
    return {
        "sizes": [
            {
                "from": SMALLEST_CARATS if low is None else float(low),
                "to": LARGEST_CARATS if high is None else float(high),
            }
        ]
    }


def _words(name: str) -> Callable[[Sequence[Any]], dict[str, Any]]:
    return lambda given: {name: list(given)}


_WRITERS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "dollar_per_carat": _prices("dollar_per_carat"),
    "dollar_value": _prices("dollar_value"),
    "carats": _sizes,
    "color": _words("color"),
    "shapes": _words("shapes"),
}
