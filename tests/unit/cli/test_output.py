"""How values are printed for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from stepfast.cli.options import span
from stepfast.cli.output import as_text, fitting, print_json, print_json_line, print_table
from stepfast.telemetry.masking import one_line, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, ""),
        (0, "0"),
        (0.12345, "0.123"),
        (timedelta(minutes=3), "3 min"),
        (datetime(2026, 1, 23, 21, 0, 5, 999, tzinfo=UTC), "2026-01-23 21:00:05 UTC"),
        (("a", "b"), "a, b"),
        ("a\x1b[31m\n", "a\\x1b[31m\n"),
    ],
)
def test_a_value_is_said_as_a_person_reads_it(value: object, text: str) -> None:
    assert as_text(value) == text


def test_what_moves_the_cursor_is_made_visible() -> None:
    assert visible("a\x1bb\x9bc\rd\te\nf") == "a\\x1bb\\x9bc\\x0dd\te\nf"


def test_json_holds_no_character_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a\x9bb": "c\x7fd\u202ee\u2066f\x1bg\u2028", "n": ["ü🙂"]}

    print_json(value)
    print_json_line(value)

    whole, line = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert [it for it in (whole, line) if not it.replace("\n", "").isprintable()] == []
    assert json.loads(whole) == json.loads(line) == value
    assert "ü🙂" in whole


def test_characters_that_turn_the_direction_of_reading_are_made_visible() -> None:
    assert visible("a\u202eb\u2028c\udc80") == "a\\u202eb\\u2028c\\udc80"
    assert one_line("a\nb\tc") == "a\\nb\\tc"


def test_columns_are_left_out_in_the_order_given_until_the_rest_fits() -> None:
    columns, widths = ("id", "kind", "queue", "error"), (10, 10, 10, 300)

    assert fitting(columns, widths, 100, ("queue", "kind")) == [0, 1, 2, 3]
    assert fitting(columns, widths, 50, ("queue", "kind")) == [0, 1, 3]
    assert fitting(columns, widths, 10, ("queue", "kind")) == [0, 3]


def test_a_bare_number_means_seconds() -> None:
    assert (span("600"), span("1.5"), span("10m"), span(None)) == (600.0, 1.5, "10m", None)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_a_long_error_takes_no_room_from_state_and_kind(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    job = "01a1ef2c-31d7-7000-8000-99ee4e025cac"

    print_table(
        ("id", "state", "kind", "error"),
        [(job, "dead", "charge_card", "x" * 500), (job, "ready", "send_mail", "")],
        empty="none",
    )

    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "state", "kind", "error"]
    assert first.split()[:3] == [job, "dead", "charge_card"]
    assert first.endswith("…")
    assert len(first) <= width
    assert second.split() == [job, "ready", "send_mail"]
