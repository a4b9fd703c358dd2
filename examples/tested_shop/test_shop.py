"""How the shop is tested: on a real database, through the real worker, with a clock that obeys.

Nothing is wired up here: the plugin comes with Stepfast, and pytest.ini names the application.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from examples.tested_shop import shop
from stepfast import PermanentError
from stepfast.testing import (
    POINTS,
    Report,
    assert_enqueued,
    assert_not_enqueued,
    crash_at,
    enqueued,
    kill_worker,
)

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.testing import Clock

Drain = Callable[..., Report]


@pytest.fixture(autouse=True)
def bank(monkeypatch: pytest.MonkeyPatch) -> shop.Bank:
    """Every test has an empty till and a bank without memories."""
    shop.create_tables()
    bank = shop.Bank()
    monkeypatch.setattr(shop, "bank", bank)
    return bank


def balance() -> int:
    with shop.app.reading() as tx:
        return int(tx.query("SELECT balance FROM account")[0]["balance"])


# What is enqueued


def test_an_order_is_charged_in_the_background(bank: shop.Bank) -> None:
    shop.place("A-17", 120)

    assert_enqueued(shop.app, shop.charge, arguments={"number": "A-17"}, queue="payments", count=1)
    assert bank.calls == 0


def test_an_order_that_cannot_be_stored_is_not_charged() -> None:
    shop.place("A-17", 120)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        shop.place("A-17", 300)

    assert_not_enqueued(shop.app, shop.charge, arguments={"amount": 300})


# What the jobs do


def test_a_charge_is_booked(bank: shop.Bank, stepfast_drain: Drain) -> None:
    shop.place("A-17", 120)
    report = stepfast_drain()

    assert report.of("charge").done == 1
    assert list(bank.payments.values()) == [120]
    assert balance() == 120


def test_the_customer_is_asked_for_a_review_after_three_days(
    stepfast_drain: Drain, stepfast_clock: Clock
) -> None:
    shop.place("A-17", 120)
    stepfast_drain()
    stepfast_clock.advance("71h")
    assert stepfast_drain().jobs == ()

    stepfast_clock.advance("1h")
    report = stepfast_drain()

    assert [it.answer for it in report.runs] == ["How do you like your order A-17?"]


def test_a_bank_that_does_not_answer_is_asked_three_times(bank: shop.Bank, stepfast_drain: Drain) -> None:
    bank.out_of_order = True
    shop.place("A-17", 120)
    report = stepfast_drain(with_scheduled=True, raise_errors=False)

    assert (report.failed, report.dead, bank.calls) == (3, 1, 3)
    assert balance() == 0


def test_a_refusal_is_final(stepfast_drain: Drain) -> None:
    shop.place("A-17", 20_000)
    with pytest.raises(PermanentError, match="refuses 20000"):
        stepfast_drain()


@pytest.mark.usefixtures("stepfast_inline")
def test_inline_the_charge_has_run_when_the_order_is_placed(bank: shop.Bank) -> None:
    shop.place("A-17", 120)

    assert len(bank.payments) == 1


def test_the_day_is_closed_page_by_page(stepfast_drain: Drain) -> None:
    for n in range(25):
        shop.place(f"A-{n:02}", 0)
    stepfast_drain()
    shop.close_the_day.enqueue()
    report = stepfast_drain()

    assert (report.continued, report.done) == (2, 1)
    assert balance() == -25


# What a crash does


@pytest.mark.parametrize("point", POINTS)
def test_wherever_the_worker_dies_the_charge_is_booked_once(
    bank: shop.Bank, stepfast_app: Stepfast, stepfast_drain: Drain, point: str
) -> None:
    shop.place("A-17", 120)

    with crash_at(stepfast_app, point):
        stepfast_drain()
    stepfast_drain()

    assert balance() == 120
    assert len(bank.payments) == 1  # perhaps paid twice, under one idempotency key
    assert len(enqueued(stepfast_app, shop.ask_for_review)) == 1


def test_the_same_with_a_process_that_is_really_killed(stepfast_app: Stepfast, stepfast_drain: Drain) -> None:
    shop.place("A-17", 120)
    kill_worker(stepfast_app, "after effects")
    assert balance() == 0

    stepfast_drain()
    assert balance() == 120


@pytest.mark.parametrize("page", [1, 2, 3])
def test_whatever_page_the_worker_dies_on_every_fee_is_booked_once(
    stepfast_app: Stepfast, stepfast_drain: Drain, page: int
) -> None:
    for n in range(25):
        shop.place(f"A-{n:02}", 0)
    stepfast_drain()
    shop.close_the_day.enqueue()

    with crash_at(stepfast_app, "before commit", nth=page):
        stepfast_drain()
    stepfast_drain()

    assert balance() == -25


@pytest.mark.parametrize(("point", "orders"), [("before commit", 0), ("after commit", 1)])
def test_an_order_and_its_charge_survive_together_or_not_at_all(
    stepfast_app: Stepfast, point: str, orders: int
) -> None:
    with crash_at(stepfast_app, point):
        shop.place("A-17", 120)

    with shop.app.reading() as tx:
        stored = len(tx.query("SELECT number FROM orders"))
    assert (stored, len(enqueued(stepfast_app))) == (orders, orders)
