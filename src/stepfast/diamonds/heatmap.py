"""How the catalogue is divided: by price, and where one dollar holds too many stones, by weight, colour and shape.

The partitions tile every price there can be, and neighbours share their bound: bounds are whole dollars, prices are
not. Stones of one upload share their place in the source's order, which shuffles them; in many small partitions few
of them meet, and a partition that fits on one page has no order at all. So there are at least two hundred, as long as
each has a page of stones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast import Choices, Dimension, Heatmap
from stepfast.diamonds.query import COLORS, LARGEST_CARATS, SHAPES, SMALLEST_CARATS

if TYPE_CHECKING:
    from stepfast.diamonds.settings import Price

TARGET: Final = 3_000  # stones
FEWEST: Final = 200
MOST: Final = 1_000
LEAST_ROWS: Final = 25  # with a fifth more it is a page
BUDGET: Final = 10_000
AT_ONCE: Final = 6  # counts under way: at 25 a second and 150 ms each there is no use in more

# From here on nothing is cut by price any more: the last partition has no end.
DEAREST: Final[dict[Price, int]] = {"dollar_per_carat": 100_000, "dollar_value": 500_000}
# Up to where most stones are, and how finely it is looked there.
DENSE: Final[dict[tuple[Price, bool], tuple[int, int]]] = {
    ("dollar_per_carat", False): (5_000, 50),
    ("dollar_per_carat", True): (1_000, 10),
    ("dollar_value", False): (20_000, 100),
    ("dollar_value", True): (5_000, 50),
}
GRAIN: Final = 0.01  # of a carat


def nivoda_heatmap(
    *, lab_grown: bool, by: Price = "dollar_per_carat", target: int = TARGET, fewest: int = FEWEST
) -> Heatmap:
    """The partitioner of a feed. `by`: prices per carat add up better than prices do."""
    until, step = DENSE[by, lab_grown]
    return Heatmap(
        Dimension(by, 0, DEAREST[by], above=True, dense_until=until, dense_step=step),
        Dimension("carats", SMALLEST_CARATS, LARGEST_CARATS, GRAIN),
        Choices("color", COLORS),
        Choices("shapes", SHAPES),
        target=target,
        fewest=fewest,
        most=max(MOST, fewest),
        least_rows=min(LEAST_ROWS, target),
        budget=BUDGET,
        at_once=AT_ONCE,
    )
