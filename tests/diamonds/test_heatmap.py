"""How the catalogue is divided: everything is covered, evenly, also where one dollar holds a thousand stones."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from stepfast import Bounds, Range
from stepfast.cli.command import app as program
from stepfast_diamonds.heatmap import DEAREST, DENSE, FEWEST, SAMPLE, TARGET, nivoda_heatmap, preview
from stepfast_diamonds.pace import PaceInDatabase
from stepfast_diamonds.query import BASE, COLORS, LARGEST_INT, SHAPES, diamond_query
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from stepfast_diamonds.simulator.control import read_json_query
from stepfast_diamonds.simulator.filter import read_query
from stepfast_diamonds.source import open_source
from tests.diamonds.asking import KEY, settings_for, truth
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast import Stepfast
    from stepfast.runs.partitioning.contract import Frontier, Plan

BAND = 0.2


def planned(sim: Simulator, *, lab_grown: bool = False, prior: Sequence[Range] = (), **more: Any) -> Plan:
    """As a run plans it; counted inside the simulator, by the queries that go over HTTP otherwise."""
    partitioner, world = nivoda_heatmap(lab_grown=lab_grown, **more), sim._service.world
    frontier: Frontier = partitioner.start(prior=prior)

    def count(part: Range) -> int:
        query = read_json_query(json.dumps(diamond_query({**BASE, "labgrown": lab_grown}, part, None)))
        return world.search.count(
            read_query(query, world.catalogue, world.knobs), world.knobs, world.clock.now()
        )

    while not frontier.finished:
        frontier = frontier.learn({it.name: count(it) for it in frontier.ask()})
    return frontier.plan()


def off_target(plan: Plan, target: int) -> list[tuple[str, int | None]]:
    return [
        (it.range.name, it.estimate)
        for it in plan.partitions
        if it.estimate is None or abs(it.estimate - target) > BAND * target
    ]


@pytest.mark.parametrize(
    ("profile", "target"),
    [
        ("45k-labgrown", TARGET // 20),
        pytest.param("900k-labgrown", TARGET, marks=pytest.mark.chaos),
    ],
)
def test_t19_lab_grown_partitions_are_even_because_weight_divides_what_price_cannot(
    profile: str, target: int
) -> None:
    with Simulator(profile, seed=7, faults="none", speed=0) as sim:
        plan = planned(sim, lab_grown=True, target=target, sample=None)

    by_weight = [it for it in plan.partitions if "carats" in dict(it.range.parts)]
    assert plan.baseline is not None
    assert plan.baseline > 200 * target
    assert off_target(plan, target) == []
    assert len(by_weight) > 20, "a single dollar holds more than a partition"
    assert plan.gap is None
    assert plan.requests < 1_500


@pytest.mark.parametrize(
    "profile",
    ["1k", "50k", "45k-labgrown", pytest.param("500k", marks=pytest.mark.chaos)],
)
def test_however_many_stones_there_are_planning_takes_sixty_counts(profile: str) -> None:
    """The specification says 30 to 60 for 500,000 stones; the next run takes no more."""
    lab_grown = "labgrown" in profile
    with Simulator(profile, seed=7, faults="none", speed=0) as sim:
        plan = planned(sim, lab_grown=lab_grown)
        again = planned(sim, lab_grown=lab_grown, prior=[it.range for it in plan.partitions])

    assert max(plan.requests, again.requests) <= SAMPLE == 60
    assert len(plan.partitions) >= min(FEWEST * 0.9, (plan.baseline or 0) / 30)
    assert plan.gap is None is again.gap
    assert not plan.misses_rows


@pytest.mark.parametrize("by", ["dollar_per_carat", "dollar_value"])
def test_the_partitions_tile_every_price_there_can_be(by: Any) -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        plan = planned(sim, by=by)
        stones = truth(sim)
        ranges = [it.range for it in plan.partitions]
        prices = {it.id: it.price / 100 for it in stones.values()}
        if by == "dollar_per_carat":
            prices = {it: price / stones[it].carats for it, price in prices.items()}

        homeless = [
            it
            for it, price in prices.items()
            if not any(part.contains(_values(part, price, stones[it])) for part in ranges)
        ]

    assert homeless == []
    assert min(it.bounds(by).start for it in ranges) == Bounds(0).start
    assert max(it.bounds(by).end for it in ranges) == Bounds(0).end
    assert plan.gap is None
    assert not plan.misses_rows


Offer = tuple[int, int, str, str]  # cents, hundredths of a carat, colour, shape
PRICES = st.integers(1, 300_000_00) | st.sampled_from([50_000, 99_999, 100_000, 100_050])
OFFERS = st.lists(
    st.tuples(PRICES, st.integers(40, 1_500), st.sampled_from(COLORS[:4]), st.sampled_from(SHAPES[:3])),
    max_size=40,
)


@settings(max_examples=25)
@given(
    offers=OFFERS,
    crowd=st.tuples(st.integers(1, 5_000_00), st.integers(40, 1_500), st.integers(0, 60)),
    by=st.sampled_from(["dollar_per_carat", "dollar_value"]),
    lab_grown=st.booleans(),
    target=st.integers(3, 40),
    fewest=st.integers(1, 10),
)
def test_whatever_the_stones_cost_each_is_found_by_a_partition(  # noqa: PLR0917 - drawn
    offers: list[Offer], crowd: tuple[int, int, int], by: Any, lab_grown: Any, target: int, fewest: int
) -> None:
    """Found by the query that goes to the source, not by the range: whole bounds, both included, prices with cents."""
    price, weight, many = crowd
    offers = offers + [(price, weight + number % 30, "D", "ROUND") for number in range(many)]
    frontier: Frontier = nivoda_heatmap(lab_grown=lab_grown, by=by, target=target, fewest=fewest).start()
    while not frontier.finished:
        frontier = frontier.learn({it.name: _count(it, offers) for it in frontier.ask()})
    plan = frontier.plan()

    queries = [diamond_query(BASE, it.range, None) for it in plan.partitions]
    assert plan.gap is None
    assert [it for it in offers if not any(_finds(query, it) for query in queries)] == []
    assert all(it[by]["from"] <= it[by]["to"] for it in queries), "an inverted range finds anything"
    assert len({str(it) for it in queries}) == len(queries)


def _count(part: Range, offers: list[Offer]) -> int:
    query = diamond_query(BASE, part, None)
    return sum(_finds(query, it) for it in offers)


def _finds(query: dict[str, Any], offer: Offer) -> bool:
    """What the source does with a query."""
    cents, weight, color, shape = offer
    prices = {"dollar_value": cents / 100, "dollar_per_carat": cents / weight}
    (sizes,) = query["sizes"]
    return (
        all(query[it]["from"] <= price <= query[it]["to"] for it, price in prices.items() if it in query)
        and sizes["from"] <= weight / 100 <= sizes["to"]
        and color in query.get("color", (color,))
        and shape in query["shapes"]
    )


def test_the_constants_are_those_of_the_specification() -> None:
    assert DENSE["dollar_per_carat", False] == (5_000, 50)
    assert DENSE["dollar_per_carat", True] == (1_000, 10)
    assert DENSE["dollar_value", False] == (20_000, 100)
    assert DEAREST == {"dollar_per_carat": 100_000, "dollar_value": 500_000}
    assert [it.name for it in nivoda_heatmap(lab_grown=True).dimensions] == [
        "dollar_per_carat", "carats", "color", "shapes",
    ]  # fmt: skip


def _values(part: Range, price: float, stone: Any) -> dict[str, Any]:
    known = {"carats": stone.carats, "color": stone.color, "shapes": stone.shape}
    return {name: known.get(name, price) for name, _ in part.parts}


def test_a_small_catalogue_is_divided_into_pages() -> None:
    """Then no order matters: a partition is one answer."""
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        plan = planned(sim)

    assert all(it.estimate is not None and it.estimate <= 30 for it in plan.partitions)
    assert plan.gap is None


def test_a_large_one_is_divided_so_that_few_stones_of_an_upload_meet() -> None:
    with Simulator("50k", seed=7, faults="none", speed=0) as sim:
        plan = planned(sim)

    assert FEWEST * 0.9 <= len(plan.partitions) <= FEWEST * 1.1
    assert off_target(plan, (plan.baseline or 0) // FEWEST) == []


def test_an_empty_feed_is_one_partition_without_stones() -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        plan = planned(sim, lab_grown=True)

    assert (plan.baseline, len(plan.partitions), plan.gap) == (0, 1, None)


def test_over_http_the_same_plan_comes_out() -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        asked = preview(settings_for(sim), nivoda_heatmap(lab_grown=False), lab_grown=False).plan()

        assert asked == planned(sim)


def run(sim: Simulator | None, *words: str, code: int = 0, **more: Any) -> str:
    """What it says, on both streams. Without a database of its own it must not find one by chance."""
    environment: dict[str, str | None] = dict.fromkeys(("NIVODA_USERNAME", "NIVODA_PASSWORD", "NIVODA_URL"))
    if sim is not None:
        environment = {
            "NIVODA_URL": sim.url,
            "NIVODA_USERNAME": sim.username,
            "NIVODA_PASSWORD": sim.password,
            "NIVODA_RATE": "0",
        }
    environment |= {"STEPFAST_DATABASE_URL": None, **more}
    result = CliRunner().invoke(program, ["diamonds", "heatmap", *words], env=environment)
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit | None), "what it meets it says in a sentence"
    return result.output


def test_the_command_draws_lists_and_prints_the_plan() -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        drawn = run(sim, "nivoda-natural", "--preview", "--lines", "6")
        listed = run(sim, "nivoda-natural", "--target", "1000")
        told = json.loads(run(sim, "nivoda-natural", "--json", "--by", "dollar_value"))

    assert len(drawn.splitlines()) == 8
    assert "█" in drawn
    assert str(LARGEST_INT) not in drawn, "the last one has no end"
    assert "dollar_per_carat 0.." in listed
    assert told["gap"] is None
    assert told["stones"] <= sum(it["stones"] for it in told["partitions"])
    assert all(it["range"].startswith("dollar_value") for it in told["partitions"])


def test_the_command_says_what_it_lacks() -> None:
    assert "no feed of Nivoda" in run(None, "shop", code=2)
    assert "is no price" in run(None, "nivoda-natural", "--by", "carats", code=2)
    assert "set NIVODA_USERNAME and NIVODA_PASSWORD" in run(None, "nivoda-natural", code=1)


def test_beside_an_application_it_keeps_to_the_rate_and_uses_the_token_of_its_workers(
    app: Stepfast, database_url: str
) -> None:
    prepare(app)
    with Simulator("100", seed=7, faults="none", speed=0) as sim:
        workers = open_source(settings_for(sim, secret_key=KEY), app)
        asyncio.run(workers.count(Range(), lab_grown=False))
        beside: Any = {
            "STEPFAST_DATABASE_URL": database_url,
            "STEPFAST_SECRET_KEY": KEY,
            "NIVODA_RATE": "500",
        }

        told = json.loads(run(sim, "nivoda-natural", "--json", "--target", "60", **beside))

        asked = sim.statistics()
    assert asked["logins"] == 1, "the workers' token is good enough"
    assert asked["counts"] == told["counts"] + 1
    (row,) = rows.query(app, "SELECT id, arrival_at, gap FROM stepfast_limit")
    assert row["id"] == "rate:nivoda per 1s"
    assert row["arrival_at"] > 0, "each count had its place in the stream"


def test_beside_an_application_that_leaves_the_source_alone_it_is_not_asked(
    app: Stepfast, database_url: str
) -> None:
    prepare(app)
    with Simulator("100", seed=7, faults="none", speed=0) as sim:
        pace = PaceInDatabase(app, sim.url)
        pace.change(lambda it, now: it.slowed(now, 40_000, 60_000_000))

        said = run(sim, "nivoda-natural", code=1, STEPFAST_DATABASE_URL=database_url)

        assert "requests" not in sim.statistics()
    assert "Nivoda wanted fewer requests; it is left alone for" in said


def test_a_firewall_that_stops_it_stops_nobody_else(app: Stepfast, database_url: str) -> None:
    """A look at the heatmap gets an error, and the feeds get no pause."""
    prepare(app)
    with Simulator("100", seed=7, faults="none,requests_per_s=0.01,burst=1,limit_answer=waf", speed=0) as sim:
        for key in (KEY, KEY[::-1]):  # first at a count; then at the login, with nobody's token
            beside: Any = {"STEPFAST_DATABASE_URL": database_url, "STEPFAST_SECRET_KEY": key}
            said = run(sim, "nivoda-natural", code=1, **beside)

            assert "firewall answered 403" in said
            assert "no feed is paused" in said
            assert len(said.splitlines()) == 1, "one sentence, and no line of a log"
        pace, _ = PaceInDatabase(app, sim.url).read()

    assert (pace.gap, pace.quiet_until) == (0, 0)
    assert rows.query(app, "SELECT 1 FROM nivoda_tokens WHERE turn_until > changed_at") == []


def test_an_empty_feed_is_told_in_a_sentence() -> None:
    with Simulator("100", seed=7, faults="none", speed=0) as sim:
        said = run(sim, "nivoda-labgrown", code=1)

    assert "Nivoda has no stone for nivoda-labgrown: ask whether the account may see them" in said


def test_an_answer_that_cannot_be_right_is_told_in_a_sentence() -> None:
    with Simulator("100", seed=7, faults="none,truncated_prob=1", speed=0) as sim:
        said = run(sim, "nivoda-natural", code=1)

    assert "is no JSON" in said
    assert "Traceback" not in said
