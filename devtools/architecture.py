"""Draw the packages and their layers from the import graph: as text for the page, and as an SVG picture.

`docs/explanation/architecture.md` includes the text through cog; `make golden` rewrites both, and a test fails if one
of them is old. A line leads from a package to one that it imports; lines that follow from others are left out. Imports
for type checkers only are not counted: they make no layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

import grimp

PICTURE = Path(__file__).parents[1] / "docs" / "explanation" / "architecture.svg"
LIBRARY = "stepfast"
OTHERS = ("stepfast_diamonds", "stepfast_emulators")
WAY_IN = {"job.py": ("job", "group", "events", "callbacks")}  # files that stand for one thing
DESCRIPTIONS = {
    "admin": "operators: reports, actions",
    "app.py": "the class Stepfast",
    "applications": "public, for applications",
    "cli": "the command stepfast",
    "database": "SQL for three databases",
    "job.py": "enqueue, groups, events",
    "jobs": "the leased step",
    "limits": "rates and concurrency",
    "notifications": "webhooks and alerts",
    "outbox": "messages, in order",
    "reports": "public: reports of operators",
    "results": "wait and watch",
    "runs": "plan, pages, consolidation",
    "schedules": "cron and ticks",
    "stepfast_diamonds": "an application",
    "stepfast_emulators": "stands alone",
    "tasks": "messages become jobs",
    "telemetry": "events, logs, metrics",
    "testing": "for tests of your jobs",
    "transports": "queues and blobs",
    "webhooks": "public: sign and verify",
    "worker": "claim, admit, run, commit",
}
BOX, THIN, HIGH, GAP, BETWEEN, MARGIN = 208, 12, 46, 26, 34, 24
STYLE = """
  .ground { fill: #ffffff } .box { fill: #f1f4f8; stroke: #6b7a8c } .line { stroke: #8494a6; fill: none }
  .name { fill: #16202b; font-weight: 600 } .what { fill: #46535f }
  text { font-family: ui-sans-serif, system-ui, sans-serif; text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #12171d } .box { fill: #1e2731; stroke: #7d8da0 } .line { stroke: #66778a }
    .name { fill: #e8eef5 } .what { fill: #a9b7c6 }
  }
"""


@dataclass(frozen=True)
class Architecture:
    """Packages, what each imports, and the single files below them all."""

    imports: dict[str, frozenset[str]]
    files: tuple[str, ...]  # of the library, used by many packages

    @property
    def layers(self) -> list[list[str]]:
        """From the top down; a package stands as low as its imports allow."""
        heights: dict[str, int] = {}

        def height(name: str) -> int:
            if name not in heights:
                heights[name] = 1 + max((height(below) for below in self.imports[name]), default=-1)
            return heights[name]

        top = max(height(name) for name in self.imports)
        lonely = {name for name in self.imports if not self.imports[name] and not self.imported(name)}
        return [
            sorted(name for name in self.imports if (top if name in lonely else heights[name]) == level)
            for level in range(top, -1, -1)
        ]

    def imported(self, name: str) -> bool:
        return any(name in below for below in self.imports.values())

    def needed(self, name: str) -> list[str]:
        """The imports that do not follow from other imports."""
        direct = self.imports[name]
        return sorted(it for it in direct if not any(it in self.below(other) for other in direct - {it}))

    def below(self, name: str) -> frozenset[str]:
        direct = self.imports[name]
        return direct.union(*(self.below(it) for it in direct))


def read() -> Architecture:
    graph = grimp.build_graph(LIBRARY, *OTHERS, exclude_type_checking_imports=True, cache_dir=None)
    folders = {it for it in graph.modules if it.count(".") == 1 and graph.find_children(it)}
    grouped = {part: box for box, parts in WAY_IN.items() for part in parts}

    def box_of(module: str) -> str | None:
        package, _, rest = module.partition(".")
        part = rest.partition(".")[0]
        if package != LIBRARY:
            return package
        if f"{LIBRARY}.{part}" in folders or part in {"reports", "webhooks"}:
            return part
        return "app.py" if part == "app" else grouped.get(part)

    boxes = {module: box for module in graph.modules if (box := box_of(module))}
    imports: dict[str, set[str]] = {box: set() for box in boxes.values()}
    for module, box in boxes.items():
        for imported in graph.find_modules_directly_imported_by(module):
            below = "app.py" if imported == LIBRARY else boxes.get(imported)
            if below and below != box:
                imports[box].add(below)
    files = {it.partition(".")[2] for it in graph.modules - boxes.keys() if it.count(".") == 1}
    for it in sorted(files - {"__main__"}):
        above = [m for m in graph.find_modules_directly_imported_by(f"{LIBRARY}.{it}") if m in boxes]
        if above:
            raise ValueError(f"{it}.py imports {above}: it is not below all packages; give it a box")
    return Architecture(
        {box: frozenset(below) for box, below in imports.items()},
        tuple(sorted(f"{it}.py" for it in files - {"__main__"})),
    )


def text() -> str:
    """The layers, for the page."""
    found = read()
    rows = [
        " · ".join(f"{name} ({DESCRIPTIONS[name]})" for name in layer) for layer in [*found.layers] if layer
    ]
    rows.append(" · ".join(found.files))
    lines = "\n".join(
        f"{level:2}  {row}" for level, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True)
    )
    return f"```text\n{lines}\n```\n"


# The picture: rows of boxes; a line that passes a row has a place of its own in it


@dataclass
class Place:
    """A box, or the point at which a line passes a row."""

    name: str
    row: int
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)
    middle: float = 0.0

    @property
    def is_box(self) -> bool:
        return bool(self.name)

    @property
    def width(self) -> int:
        return BOX if self.is_box else THIN


def svg() -> str:
    found = read()
    rows, lines = _places(found)
    _order(rows)
    width = max(_width(row) for row in rows) + 2 * MARGIN
    height = (len(rows) + 1) * (HIGH + BETWEEN) - BETWEEN + 2 * MARGIN
    for row in rows:
        left = (width - _width(row)) / 2
        for place in row:
            place.middle = left + place.width / 2
            left += place.width + GAP
    drawn = [_line(line) for line in lines]
    drawn += [_box(place) for row in rows for place in row if place.is_box]
    drawn.append(_ground_floor(found.files, len(rows), width))
    title = "Packages of Stepfast in layers: each imports only what stands below it"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _places(found: Architecture) -> tuple[list[list[Place]], list[list[Place]]]:
    rows = [[Place(name, row) for name in layer] for row, layer in enumerate(found.layers)]
    boxes = {place.name: place for row in rows for place in row}
    lines = []
    for name in sorted(boxes):
        for below in found.needed(name):
            line = [boxes[name]]
            for row in range(boxes[name].row + 1, boxes[below].row):
                line.append(Place("", row))
                rows[row].append(line[-1])
            line.append(boxes[below])
            for upper, lower in pairwise(line):
                upper.below.append(lower)
                lower.above.append(upper)
            lines.append(line)
    return rows, lines


def _order(rows: list[list[Place]]) -> None:
    """Put each place near the middle of its neighbours, sweeping down and up: few lines cross then."""
    for turn in range(24):
        down = turn % 2 == 0
        for row in rows if down else rows[::-1]:
            at = {id(place): index / len(other) for other in rows for index, place in enumerate(other)}
            near = {id(place): _neighbours(place, down=down) for place in row}
            wish = {place: sum(at[id(it)] for it in them) / len(them) for place, them in near.items() if them}
            order = sorted((wish.get(id(place), 1.0), index) for index, place in enumerate(row))
            row[:] = [row[index] for _, index in order]


def _neighbours(place: Place, *, down: bool) -> list[Place]:
    return (place.above or place.below) if down else (place.below or place.above)


def _width(row: list[Place]) -> int:
    return sum(place.width for place in row) + GAP * (len(row) - 1)


def _top(place: Place) -> int:
    return MARGIN + place.row * (HIGH + BETWEEN)


def _line(line: list[Place]) -> str:
    path = f"M{line[0].middle:.0f} {_top(line[0]) + HIGH}"
    for upper, lower in pairwise(line):
        start = _top(upper) + HIGH
        half = (start + _top(lower)) / 2
        path += (
            f" C{upper.middle:.0f} {half:.0f} {lower.middle:.0f} {half:.0f} {lower.middle:.0f} {_top(lower)}"
        )
        if not lower.is_box:
            path += f" V{_top(lower) + HIGH}"
    return f'<path class="line" d="{path}"/>'


def _box(place: Place) -> str:
    left, top = place.middle - BOX / 2, _top(place)
    return (
        f'<rect class="box" x="{left:.0f}" y="{top}" width="{BOX}" height="{HIGH}" rx="6"/>'
        f'<text class="name" x="{place.middle:.0f}" y="{top + 19}" font-size="14">{escape(place.name)}</text>'
        f'<text class="what" x="{place.middle:.0f}" y="{top + 36}" font-size="12">'
        f"{escape(DESCRIPTIONS[place.name])}</text>"
    )


def _ground_floor(files: tuple[str, ...], row: int, width: int) -> str:
    """The single files that every package may import."""
    top = MARGIN + row * (HIGH + BETWEEN)
    return (
        f'<rect class="box" x="{MARGIN}" y="{top}" width="{width - 2 * MARGIN}" height="{HIGH}" rx="6"/>'
        f'<text class="what" x="{width / 2:.0f}" y="{top + 28}" font-size="13">{" · ".join(files)}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(svg())
