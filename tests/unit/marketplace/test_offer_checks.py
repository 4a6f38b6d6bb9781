"""What is wrong with offers, their terms and calendars, field by field."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from marketplace.offers.calendar import Window, is_open
from marketplace.offers.checks import offer_errors, terms_errors
from marketplace.terms import ComplianceFact, Credit, HourlyPrice, ServiceLevel
from tests.unit.marketplace.builders import request, terms

ISO = ComplianceFact(name="iso27001")
NIGHT: dict[str, Any] = {"days": (0, 1), "from_hour": 0, "until_hour": 6, "price": Decimal(1)}


def test_a_plain_offer_is_right() -> None:
    assert offer_errors(request("dgx-01"), currency="EUR") == {}


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"price": Decimal(-1)}, {"price": ["price is -1; enter 0 to 1000000."]}),
        ({"price": Decimal("NaN")}, {"price": ["A price or percentage is no number."]}),
        ({"price": Decimal("1e-9")}, {"price": ["Use at most 8 decimal places."]}),
        ({"price": Decimal("1e999999")}, {"price": ["price is 1e+999999; enter 0 to 1000000."]}),
        ({"currency": "euro"}, {"currency": ["Enter the ISO code of a currency, such as EUR."]}),
        (
            {"currency": "USD"},
            {"currency": ["All prices of this portal are in EUR, not USD."]},
        ),
        (
            {"time_zone": "Oslo"},
            {"time_zone": ["'Oslo' is not a time zone; enter one such as 'Europe/Oslo' or 'UTC'."]},
        ),
        (
            {"min_seconds": 90, "max_seconds": 60},
            {"min_seconds": ["It is more than max_seconds, which is 60."]},
        ),
        ({"max_gpus": -1}, {"max_gpus": ["max_gpus is -1; enter 0 to 100000."]}),
        ({"region": "a\nb"}, {"region": ["Enter at most 100 characters, in a line."]}),
        (
            {"discount_percent": Decimal(101)},
            {"discount_percent": ["discount_percent is 101; enter 0 to 100."]},
        ),
        ({"term_days": 3651}, {"term_days": ["term_days is 3651; enter 0 to 3650."]}),
        ({"notice_days": -1}, {"notice_days": ["notice_days is -1; enter 0 to 3650."]}),
        ({"text": "x" * 20_001}, {"text": ["It has 20,001 characters; use at most 20,000."]}),
        ({"facts": (ISO, ISO)}, {"facts": ["A fact is listed twice."]}),
        (
            {"facts": (ComplianceFact(name="ISO, 27001"),)},
            {
                "facts": [
                    (
                        "'ISO, 27001' is no name; use 1 to 40 lower-case letters, digits, dots, "
                        "hyphens and underscores."
                    )
                ]
            },
        ),
        (
            {"facts": (ComplianceFact(name="gdpr", valid_until="soon"),)},
            {"facts": ["'gdpr': 'soon' is no date such as 2027-06-30."]},
        ),
        (
            {"facts": (ComplianceFact(name="gdpr", evidence_url="javascript:alert(1)"),)},
            {"facts": ["'gdpr': the evidence must be an https:// or http:// address."]},
        ),
    ],
)
def test_wrong_terms_are_named(changes: dict[str, Any], errors: dict[str, list[str]]) -> None:
    assert terms_errors(terms(**changes), currency="EUR") == errors


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"days": ()}, "Price 1: Choose days."),
        ({"days": (0, 7)}, "Price 1: 7 is no day; use 0 for Monday to 6 for Sunday."),
        ({"days": (1, 1)}, "Price 1: A day is listed twice."),
        ({"price": Decimal(-1)}, "Price 1: price is -1; enter 0 to 1000000."),
        ({"until_hour": 25}, "Price 1: until_hour is 25; enter 1 to 24."),
        (
            {"from_hour": 22},
            "Price 1: It ends at 6:00, which is not after 22:00. Split hours past midnight in two.",
        ),
    ],
)
def test_wrong_prices_by_the_hour_are_named(changes: dict[str, Any], error: str) -> None:
    special = HourlyPrice(**(NIGHT | changes))
    assert terms_errors(terms(hourly_prices=(special,))) == {"hourly_prices": [error]}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"availability_percent": 101.0}, "availability_percent is 101; enter 0 to 100."),
        ({"availability_percent": float("nan")}, "availability_percent is nan; enter 0 to 100."),
        (
            {"late_start_credit_percent": Decimal(5)},
            "A credit for late starts needs start_within_seconds.",
        ),
        (
            {"credits": (Credit(below_percent=99.0, credit_percent=Decimal(10)),)},
            "Credits need availability_percent.",
        ),
        (
            {
                "availability_percent": 95.0,
                "credits": (Credit(below_percent=99.0, credit_percent=Decimal(10)),),
            },
            "A credit below 99 %: 95 % are promised.",
        ),
        (
            {
                "availability_percent": 99.0,
                "credits": (
                    Credit(below_percent=99.0, credit_percent=Decimal(10)),
                    Credit(below_percent=99.0, credit_percent=Decimal(20)),
                ),
            },
            "Two credits have the same limit.",
        ),
    ],
)
def test_wrong_service_levels_are_named(changes: dict[str, Any], error: str) -> None:
    errors = terms_errors(terms(service_level=ServiceLevel(**changes)))
    assert list(errors.values()) == [[error]]
    assert all(name.startswith("service_level.") for name in errors)


@pytest.mark.parametrize(
    ("changes", "field", "error"),
    [
        ({"name": " "}, "name", "The name must have 1 to 100 characters, in a line."),
        ({"name": "x" * 101}, "name", "The name must have 1 to 100 characters, in a line."),
        (
            {"description": "x" * 2001},
            "description",
            "The description has 2,001 characters; use at most 2,000.",
        ),
        ({"appliance_ids": []}, "appliance_ids", "Choose appliances, or labels of appliances."),
        (
            {"appliance_ids": ["x"] * 1001},
            "appliance_ids",
            "appliance_ids has 1001 entries; use at most 1000.",
        ),
        (
            {"labels": {"": "x"}},
            "labels",
            (
                "The label '' is invalid. Use 1 to 63 letters, digits, dots, hyphens, slashes and "
                "underscores, starting with a letter or digit."
            ),
        ),
        (
            {"calendar": [Window(), Window(from_hour=9, until_hour=9)]},
            "calendar",
            (
                "Window 2: It ends at 9:00, which is not after 9:00. Split hours past midnight in "
                "two."
            ),
        ),
        (
            {"calendar": [Window(from_date="2026-12-27", until_date="2026-12-24")]},
            "calendar",
            "Window 1: It ends on 2026-12-24, before 2026-12-27.",
        ),
        (
            {"calendar": [Window(from_date="2026-2-1")]},
            "calendar",
            "Window 1: '2026-2-1' is no date; enter one such as 2026-12-24.",
        ),
    ],
)
def test_wrong_offers_are_named(changes: dict[str, Any], field: str, error: str) -> None:
    fields = {"appliance_ids": ["dgx-01"]} | changes
    assert offer_errors(request(**fields))[field] == [error]


def test_errors_of_terms_are_named_as_such() -> None:
    assert offer_errors(request("dgx-01", terms=terms(max_gpus=-1))).keys() == {"terms.max_gpus"}


EVENING = Window(days=(0, 1, 2, 3, 4), from_hour=18)
WEEKEND = Window(days=(5, 6))
CHRISTMAS = Window(from_date="2026-12-24", until_date="2026-12-26", is_closed=True)


@pytest.mark.parametrize(
    ("windows", "at", "expected"),
    [
        ([], "2026-12-24T12:00", True),
        ([EVENING, WEEKEND], "2026-03-02T16:59", False),
        ([EVENING, WEEKEND], "2026-03-02T17:00", True),  # 18:00 in Oslo, a Monday
        ([EVENING, WEEKEND], "2026-03-02T22:59", True),
        ([EVENING, WEEKEND], "2026-03-02T23:00", False),
        ([EVENING, WEEKEND], "2026-03-06T23:00", True),  # Saturday there
        ([CHRISTMAS], "2026-12-23T22:59", True),
        ([CHRISTMAS], "2026-12-23T23:00", False),
        ([CHRISTMAS], "2026-12-26T22:59", False),
        ([CHRISTMAS], "2026-12-26T23:00", True),
        ([EVENING, WEEKEND, CHRISTMAS], "2026-12-26T12:00", False),
    ],
)
def test_a_calendar_is_in_the_time_zone_of_the_terms(
    windows: list[Window], at: str, *, expected: bool
) -> None:
    instant = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert is_open(windows, "Europe/Oslo", instant) is expected
