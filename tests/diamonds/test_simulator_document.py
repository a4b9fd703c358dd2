"""GraphQL documents: those that clients of this API write are understood, all others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast_diamonds.simulator.graphql import (
    ENUMS,
    INPUTS,
    SCALARS,
    TYPES,
    DocumentError,
    EnumValue,
    Field,
    Variable,
    is_leaf,
    named,
    parse,
    plan,
    read_arguments,
    read_variables,
)
from stepfast_diamonds.simulator.offer import RESOLVERS


def arguments(text: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of the first field."""
    planned = plan(text, None)
    return read_arguments(planned.calls[0], read_variables(planned, variables))


def test_a_document_is_read_with_all_its_parts() -> None:
    document = parse(
        """
        # a comment
        query Search($q: DiamondQuery!, $n: Int = 5) {
          found: diamonds_by_query(query: $q, limit: $n, order: {type: price, direction: ASC}) { total_count ...More }
        }
        fragment More on DiamondList { items { id } }
        """
    )

    (operation,) = document.operations
    assert (operation.kind, operation.name) == ("query", "Search")
    assert [(it.name, it.type, it.default) for it in operation.variables] == [
        ("q", "DiamondQuery!", None),
        ("n", "Int", 5),
    ]
    field = operation.selections[0]
    assert isinstance(field, Field)
    assert (field.alias, field.name) == ("found", "diamonds_by_query")
    assert field.arguments == {
        "query": Variable("q"),
        "limit": Variable("n"),
        "order": {"type": EnumValue("price"), "direction": EnumValue("ASC")},
    }
    assert set(document.fragments) == {"More"}


def test_every_kind_of_value_is_read() -> None:
    (operation,) = parse(
        '{ f(a: -3, b: 1.5e3, c: "q\\"\\u00e9", d: true, e: null, f: [1, [2]], g: {h: $v}, i: """two\nlines""") }'
    ).operations

    field = operation.selections[0]
    assert isinstance(field, Field)
    assert field.arguments == {
        "a": -3, "b": 1500.0, "c": 'q"é', "d": True, "e": None, "f": [1, [2]], "g": {"h": Variable("v")},
        "i": "two\nlines",
    }  # fmt: skip


def test_arguments_may_be_inline_or_variables_or_both() -> None:
    wanted = {
        "query": {"shapes": ["ROUND"], "availability": ["AVAILABLE"], "dollar_value": {"from": 1, "to": 2}}
    }
    inline = (
        '{ diamonds_by_query_count(query: {shapes: ["ROUND"], availability: [AVAILABLE],'
        " dollar_value: {from: 1, to: 2}}) }"
    )
    whole = "query($q: DiamondQuery) { diamonds_by_query_count(query: $q) }"
    mixed = (
        "query($s: [String], $a: [ProductAvailability], $to: Int!) { diamonds_by_query_count("
        "query: {shapes: $s, availability: $a, dollar_value: {from: 1, to: $to}}) }"
    )

    assert arguments(inline) == wanted
    assert arguments(whole, {"q": wanted["query"]}) == wanted
    assert arguments(mixed, {"s": ["ROUND"], "a": ["AVAILABLE"], "to": 2}) == wanted


def test_a_single_value_becomes_a_list_where_one_is_wanted() -> None:
    assert arguments('{ diamonds_by_query_count(query: {shapes: "ROUND"}) }') == {
        "query": {"shapes": ["ROUND"]}
    }


COUNT = "{ diamonds_by_query_count(query: %s) }"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Syntax Error: Unexpected <EOF>."),
        ("{", "Syntax Error: Unexpected <EOF>."),
        ("{ a ~ }", 'Syntax Error: Unexpected "~".'),
        ("subscription { a }", 'Syntax Error: Unexpected "subscription".'),
        ("{ as(token: ) { __typename } }", 'Syntax Error: Unexpected ")".'),
        ("{ diamonds }", 'Cannot query field "diamonds" on type "Query".'),
        ("{ __schema { types { name } } }", "The simulator does not answer introspection."),
        ("{ diamonds_by_query { total_count @skip(if: true) } }", "The simulator knows no directives."),
        ("{ diamonds_by_query }", 'Field "diamonds_by_query" of type "DiamondList!" must have a selection'),
        ("{ diamonds_by_query_count { a } }", 'Field "diamonds_by_query_count" must not have a selection'),
        ("{ diamonds_by_query_count(limits: 1) }", 'Unknown argument "limits" on field "Query.diamonds_by_query_count"'),
        ("{ get_diamond_by_id { id } }", 'Field "get_diamond_by_id" argument "diamond_id" of type "ID!" is required'),
        ("{ diamonds_by_query_count(query: $q) }", 'Variable "$q" is not defined.'),
        ("query($q: Stone) { diamonds_by_query_count(query: $q) }", 'Unknown type "Stone".'),
        ("{ diamonds_by_query { ...Missing } }", 'Unknown fragment "Missing".'),
        ("{ diamonds_by_query { ... on Diamond { id } } }", "Fragment cannot be spread here"),
        ("{ ...A } fragment A on Query { ...A }", "a fragment spreads itself"),
        ("query A { a } query B { b }", "Must provide operation name"),
        (COUNT % "{sizes: {from: 1}}", 'Field "FloatRange.to" of required type "Float!" was not provided.'),
        (COUNT % "{dollar_value: {from: 1.5, to: 2}}", "Int cannot represent a non-integer value: 1.5"),
        (COUNT % "{dollar_value: {from: 1}}", 'Field "IntRange.to" of required type "Int!" was not provided.'),
        (COUNT % "{dollar_value: {from: null, to: 3}}", 'Expected value of type "Int!", found null.'),
        (COUNT % "{prize: 3}", 'Field "prize" is not defined by type "DiamondQuery".'),
        (COUNT % "{availability: [GONE]}", 'Value GONE does not exist in "ProductAvailability" enum.'),
        (COUNT % '{availability: ["SOLD"]}', 'Value "SOLD" does not exist in "ProductAvailability" enum.'),
        (COUNT % "{shapes: [ROUND]}", "String cannot represent a non-string value: ROUND"),
        (COUNT % "{labgrown: 1}", "Boolean cannot represent a non-boolean value: 1"),
        (COUNT % "3", 'Expected value of type "DiamondQuery", found 3.'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_as_graphql_does(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as refused:
        arguments(text)

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, 'Variable "$q" of required type "DiamondQuery!" was not provided.'),
        ({"q": None}, 'Variable "$q" got invalid value: Expected value of type "DiamondQuery!", found null.'),
        ({"q": {"dollar_value": {"from": "1", "to": 2}}}, 'non-integer value: "1"'),
        ({"q": {"dollar_value": {"from": 1, "to": 2**31}}}, "Int cannot represent"),
        ({"q": {"availability": ["GONE"]}}, '"GONE" does not exist in "ProductAvailability"'),
        ([], "Variables must be provided as an object."),
    ],
)
def test_variables_are_checked_against_their_types(given: Any, message: str) -> None:
    planned = plan("query($q: DiamondQuery!) { diamonds_by_query_count(query: $q) }", None)

    with pytest.raises(DocumentError) as refused:
        read_variables(planned, given)

    assert message in str(refused.value)


def test_a_problem_says_where_it_is() -> None:
    with pytest.raises(DocumentError) as refused:
        plan("{\n  diamonds_by_query {\n    sum\n  }\n}", None)

    assert refused.value.location == {"line": 3, "column": 5}


def test_one_operation_of_several_is_chosen_by_its_name() -> None:
    text = "query A { diamonds_by_query_count } query B { diamonds_by_query { total_count } }"

    assert plan(text, "B").calls[0].name == "diamonds_by_query"
    with pytest.raises(DocumentError, match='Unknown operation named "C"'):
        plan(text, "C")


def test_every_field_of_a_stone_has_its_answer_and_every_answer_its_field() -> None:
    for type_, getters in RESOLVERS.items():
        assert set(getters) == set(TYPES[type_])


def test_every_type_that_is_named_exists() -> None:
    known = {*TYPES, *INPUTS, *ENUMS, *SCALARS}
    used = {
        named(type_)
        for fields in (*TYPES.values(), *INPUTS.values())
        for field in fields.values()
        for type_ in (field.type, *field.arguments.values())
    }

    assert used <= known
    assert not is_leaf("Certificate!")
    assert is_leaf("[DiamondColor]")
