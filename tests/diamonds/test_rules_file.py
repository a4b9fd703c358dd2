"""Rule sets in files: read whole, or refused with everything that is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast_diamonds.pricing import StoneType
from stepfast_diamonds.rule_sets import digest, doubts_of, stones_without_rules
from stepfast_diamonds.rules import default_rules
from stepfast_diamonds.rules_file import RulesError, lines_of, read_rules, written

CSV = """\
priority,stone_type,price_min,price_max,feed,margin_modifier,rating
10,,0,1000,,6,
20,,1000.00,,,-4.5,7
"""


def file(**more: Any) -> str:
    pricing = [{"priority": 10, "price_min": 0, "margin_modifier": 6}]
    return json.dumps({"pricing": pricing, **more})


def refused(text: str, *, as_csv: bool = False) -> list[str]:
    with pytest.raises(RulesError) as error:
        read_rules(text, as_csv=as_csv)
    return error.value.problems


def test_a_file_says_what_a_set_says() -> None:
    assert read_rules(json.dumps(written(default_rules()))) == default_rules()


def test_rating_rules_survive_the_way_through_a_file() -> None:
    rating = [
        {
            "priority": 1,
            "rating": 9,
            "feed": "nivoda-natural",
            "lab_grown": False,
            "ratio": {"max": "1.025"},
            "price": {"min": 500, "max": 1000.5},
            "cut": ["EX", "ID"],
        }
    ]
    rules = read_rules(file(rating=rating, rating_fallback=4, base_margins={"lab": "60.5"}, name="spring"))

    assert read_rules(json.dumps(written(rules))) == rules
    assert (rules.fallback, rules.name, str(rules.margins[StoneType.LAB])) == (4, "spring", "60.5")
    assert {str(it) for it in rules.margins.values()} == {"40", "60.5"}


def test_a_field_that_is_given_twice_is_told() -> None:
    text = '{"pricing": [{"priority": 10, "price_min": 0, "margin_modifier": 1, "margin_modifier": 500}]}'

    assert refused(text) == [
        "margin_modifier: given twice in {priority, price_min, margin_modifier, margin_modifier}"
    ]


def test_csv_has_pricing_rules() -> None:
    rules = read_rules(CSV, as_csv=True)

    assert [(str(it.price_min), str(it.margin_modifier), it.rating) for it in rules.pricing] == [
        ("0", "6", None),
        ("1000.00", "-4.5", 7),
    ]
    assert rules.pricing[1].price_max is None


def test_a_field_too_many_is_a_problem_unless_it_is_empty() -> None:
    assert len(read_rules(CSV.replace("10,,0,1000,,6,", "10,,0,1000,,6,,,"), as_csv=True).pricing) == 2
    assert refused(CSV.replace("10,,0,1000,,6,", "10,,0,1000,,6,,x"), as_csv=True)[0].startswith(
        "pricing rule 1 has 'further columns'"
    )


def test_a_file_with_holes_is_refused_with_each_of_them() -> None:
    holes = CSV.replace("20,,1000.00", "20,,1500")

    assert refused(holes, as_csv=True) == [
        f"no pricing rule is for {kind} stones of any feed from 1000 to 1500"
        for kind in ("natural", "lab", "fancy")
    ]


def test_every_problem_of_a_file_is_said_at_once() -> None:
    found = refused(
        json.dumps(
            {
                "pricing": [
                    {"priority": "first", "price_min": "cheap", "stone_type": "ruby", "margin_modifer": 1},
                    "rule",
                    {"priority": 1.5, "margin_modifier": 0.123, "price_max": True},
                ],
                "rating": [{"rating": 9, "carats": [1, 2], "cut": "EX", "lab_grown": 1}],
                "base_margins": {"ruby": 3},
                "rules": [],
            }
        )
    )

    for part in (
        "the rule set has 'rules'",
        "base_margins has 'ruby'",
        "pricing rule 1 has 'margin_modifer'; did you mean margin_modifier?",
        "pricing rule 1 has no margin_modifier",
        "pricing rule 1: priority 'first' is no whole number",
        "pricing rule 1: price_min 'cheap' is no number",
        "pricing rule 1: stone_type 'ruby' is none of natural, lab, fancy",
        "pricing rule 2 is an object",
        "pricing rule 3: priority '1.5' is no whole number",
        "pricing rule 3: margin_modifier 0.123 has more than 2 decimals",
        "pricing rule 3: price_max 'True' is no number",
        "rating rule 1 has no priority",
        "rating rule 1: carats is a range",
        "rating rule 1: cut is a list of texts",
        "rating rule 1: lab_grown '1' is neither true nor false",
    ):
        assert any(it.startswith(part) for it in found), part


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '"rules"', "[" * 100_000])
def test_what_is_no_rule_set_is_refused(text: str) -> None:
    assert len(refused(text)) == 1


@pytest.mark.parametrize("text", ["", "priority\n", 'a,"b\n'])
def test_what_is_no_table_of_rules_is_refused(text: str) -> None:
    assert refused(text, as_csv=True)


def test_no_number_of_a_file_becomes_a_float() -> None:
    rules = read_rules('{"pricing": [{"priority": 1, "price_min": 0.0, "margin_modifier": 0.10}]}')

    assert str(rules.pricing[0].margin_modifier) == "0.10"


def test_the_same_rules_have_one_digest_however_they_are_written_and_called() -> None:
    one = read_rules('{"name": "a", "pricing": [{"priority": 1, "price_min": 0, "margin_modifier": 6}]}')
    other = read_rules(
        '{"name": "b", "pricing": [{"margin_modifier": "6.00", "priority": 1, "price_min": "0.0"}]}'
    )
    third = read_rules('{"pricing": [{"priority": 1, "price_min": 0, "margin_modifier": 6.01}]}')

    assert digest(one) == digest(other) != digest(third)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["pricing", "rating", "base_margins", "priority", "carats", "cut", "min", "name"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_a_file_holds_it_is_read_or_refused(document: Any) -> None:
    with suppress(RulesError):
        assert read_rules(json.dumps(document)).empty, "nothing of this is a complete set of tiers"


def test_a_mistake_that_was_made_a_thousand_times_is_told_in_a_few_lines() -> None:
    rule = {"priority": 10, "price_min": 0, "margin_modifier": 6}

    found = refused(json.dumps({"pricing": [rule] * 200}))

    assert len(found) < 60
    assert "and more pricing rules overlap" in found


# What is doubted

DOUBTFUL = """\
{
  "pricing": [
    {"priority": 1, "price_min": 0, "margin_modifier": 6},
    {"priority": 0, "price_min": 0, "margin_modifier": 1,
     "feed": "nivoda-naturel"}
  ],
  "rating": [{"priority": 1, "rating": 9, "cut": ["EX", "EXCELENT"], "clarity": ["VS1"], "girdle": ["as you like"]},

    {"priority": 2, "rating": 3, "fluorescence": ["FNT", "STRONG"], "shape": ["ASCHER"], "color": ["blue?"],
     "lab": ["GIA"], "feed": "mine"}
  ]
}
"""


def test_feeds_and_words_that_nobody_knows_are_told_with_their_lines() -> None:
    feeds = {"nivoda-natural", "nivoda-labgrown", "mine"}

    found = list(doubts_of(read_rules(DOUBTFUL), feeds, lines_of(DOUBTFUL, as_csv=False)))

    assert found[:3] == [
        "line 4: pricing rule 2: there is no feed 'nivoda-naturel' here; did you mean nivoda-natural?",
        "line 7: rating rule 1: no stone has the cut 'EXCELENT'; did you mean EXCELLENT?",
        "line 9: rating rule 2: no stone has the shape 'ASCHER'; the catalogue says ASSCHER",
    ]
    assert found[3].startswith("line 9: rating rule 2: no stone has the color 'BLUE?'; ")
    assert found[4] == "line 9: rating rule 2: no stone has the fluorescence 'FNT'; the catalogue says FAINT"
    assert len(found) == 5


def test_lines_of_a_table_are_counted_from_its_head() -> None:
    text = CSV.replace("20,,1000.00,,,-4.5,7", '\n20,,1000.00,,"nivoda\nx",-4.5,7')

    assert lines_of(text, as_csv=True) == {"pricing": [2, 5]}


def test_a_set_for_one_feed_says_that_others_have_stones() -> None:
    rules = read_rules(
        json.dumps(
            {"pricing": [{"priority": 1, "price_min": 0, "margin_modifier": 3, "feed": "nivoda-labgrown"}]}
        )
    )
    present = {("nivoda-labgrown", StoneType.LAB), ("nivoda-natural", StoneType.NATURAL)}

    (told,) = stones_without_rules(rules, present)
    assert told.startswith(
        "no pricing rule is for natural stones of feed nivoda-natural from 0 and above, and"
    )
    assert told.endswith("there are such stones: it cannot be activated as it is")
    assert list(stones_without_rules(rules, {("nivoda-labgrown", StoneType.LAB)})) == []


def test_a_table_with_semicolons_is_refused_with_the_cure() -> None:
    (told,) = refused(CSV.replace(",", ";"), as_csv=True)

    assert told.startswith("its columns are separated by semicolons; save it with commas between them")


def test_rating_rules_of_one_priority_may_not_compete_for_a_stone() -> None:
    def rules(**second: Any) -> str:
        first = {"priority": 5, "rating": 9, "cut": ["EX"], "carats": {"min": 1, "max": 2}}
        return file(rating=[first, {"priority": 5, "rating": 3, **second}])

    assert refused(rules(polish=["GD"])) == [
        "rating rules 1 and 2 may be for the same stones and have the same priority, 5"
    ]
    assert refused(rules(cut=["EXCELLENT", "GD"], carats={"max": "1.01"}))
    for apart in (
        {"cut": ["GD"]},
        {"carats": {"min": 2}},
        {"carats": {"max": 1}},
        {"rating": 9},
        {"priority": 6},
    ):
        assert len(read_rules(rules(**apart)).rating) == 2
