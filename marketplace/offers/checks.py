"""Checks of offers and of terms before they are saved, without the database."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from urllib.parse import urlsplit

from core.money import exact
from core.schedule_times import check_time_zone
from core.spec import limit_errors
from marketplace.models import MAX_DESCRIPTION_LENGTH
from marketplace.offers.calendar import calendar_errors, hours_errors, is_date
from marketplace.offers.requests import OfferRequest
from marketplace.terms import MAX_FACTS, MAX_PRICE, ComplianceFact, ServiceLevel, Terms
from tenants.fleet.appliance_changes import label_errors
from tenants.models.rentals import MAX_OFFER_NAME_LENGTH, MAX_REGION_LENGTH

MAX_TEXT_LENGTH = 20_000
MAX_FACT_LENGTH = 40
_MAX_URL_LENGTH = 500
_FACT = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_FACT_LENGTH - 1}}}")
_CURRENCY = re.compile(r"[A-Z]{3}")
Errors = dict[str, list[str]]


def offer_errors(request: OfferRequest, *, currency: str = "") -> Errors:
    """Return what is wrong with an offer, by field; fields of its terms begin with `terms.`.

    Args:
        request: the offer.
        currency: that of the portal, which its prices must have; "" for any.
    """
    errors = Errors()
    if not (1 <= len(request.name.strip()) <= MAX_OFFER_NAME_LENGTH and _is_line(request.name)):
        errors["name"] = [f"The name must have 1 to {MAX_OFFER_NAME_LENGTH} characters, in a line."]
    if len(request.description) > MAX_DESCRIPTION_LENGTH:
        length = f"The description has {len(request.description):,} characters"
        errors["description"] = [f"{length}; use at most {MAX_DESCRIPTION_LENGTH:,}."]
    for field, problem in limit_errors(request):
        errors.setdefault(field, []).append(problem)
    if labels := label_errors(request.labels):
        errors["labels"] = labels
    if not request.appliance_ids and not request.labels:
        errors["appliance_ids"] = ["Choose appliances, or labels of appliances."]
    if problems := list(calendar_errors(request.calendar)):
        errors["calendar"] = problems
    return errors | {
        f"terms.{field}": texts
        for field, texts in terms_errors(request.terms, currency=currency).items()
    }


def terms_errors(terms: Terms, *, currency: str = "") -> Errors:
    """Return what is wrong with terms, by field; see `offer_errors`."""
    errors = Errors()
    # Nothing can be compared with such a number.
    if not all(value.is_finite() for value in _decimals(terms)):
        return {"price": ["A price or percentage is no number."]}
    for field, problem in (
        *_plain_errors(terms, currency),
        *_price_errors(terms),
        *_level_errors(terms.service_level),
        *_fact_errors(terms.facts),
    ):
        errors.setdefault(field, []).append(problem)
    return errors


def _plain_errors(terms: Terms, currency: str) -> Iterator[tuple[str, str]]:
    yield from limit_errors(terms)
    if not _CURRENCY.fullmatch(terms.currency):
        yield "currency", "Enter the ISO code of a currency, such as EUR."
    elif currency and terms.currency != currency:
        yield "currency", f"All prices of this portal are in {currency}, not {terms.currency}."
    try:
        check_time_zone(terms.time_zone)
    except ValueError as error:
        yield "time_zone", str(error)
    if terms.max_seconds and terms.min_seconds > terms.max_seconds:
        yield "min_seconds", f"It is more than max_seconds, which is {terms.max_seconds}."
    if len(terms.region) > MAX_REGION_LENGTH or not _is_line(terms.region):
        yield "region", f"Enter at most {MAX_REGION_LENGTH} characters, in a line."
    if len(terms.text) > MAX_TEXT_LENGTH:
        yield "text", f"It has {len(terms.text):,} characters; use at most {MAX_TEXT_LENGTH:,}."


def _price_errors(terms: Terms) -> Iterator[tuple[str, str]]:
    for field in ("price", "discount_percent"):
        if not _is_exact(getattr(terms, field)):
            yield field, "Use at most 8 decimal places."
    for number, special in enumerate(terms.hourly_prices, 1):
        where = f"Price {number}: "
        yield from (("hourly_prices", where + problem) for _, problem in limit_errors(special))
        if not special.days:
            yield "hourly_prices", f"{where}Choose days."
        for problem in hours_errors(special.days, special.from_hour, special.until_hour):
            yield "hourly_prices", where + problem
        if not _is_exact(special.price):
            yield "hourly_prices", f"{where}Use at most 8 decimal places."


def _level_errors(level: ServiceLevel) -> Iterator[tuple[str, str]]:
    for field, problem in limit_errors(level):
        yield f"service_level.{field}", problem
    if not _is_exact(level.late_start_credit_percent):
        yield "service_level.late_start_credit_percent", "Use at most 8 decimal places."
    if level.late_start_credit_percent and not level.start_within_seconds:
        yield (
            "service_level.late_start_credit_percent",
            "A credit for late starts needs start_within_seconds.",
        )
    limits = [credit.below_percent for credit in level.credits]
    if limits and not level.availability_percent:
        yield "service_level.credits", "Credits need availability_percent."
    if len(set(limits)) < len(limits):
        yield "service_level.credits", "Two credits have the same limit."
    for credit in level.credits:
        yield from (("service_level.credits", problem) for _, problem in limit_errors(credit))
        if not _is_exact(credit.credit_percent):
            yield "service_level.credits", "Use at most 8 decimal places."
        if 0 < level.availability_percent < credit.below_percent:
            promised = f"{level.availability_percent:g} % are promised"
            yield "service_level.credits", f"A credit below {credit.below_percent:g} %: {promised}."


def _fact_errors(facts: Sequence[ComplianceFact]) -> Iterator[tuple[str, str]]:
    names = [fact.name for fact in facts[:MAX_FACTS]]
    if len(set(names)) < len(names):
        yield "facts", "A fact is listed twice."
    for fact in facts[:MAX_FACTS]:
        name = repr(fact.name[:MAX_FACT_LENGTH])
        if not _FACT.fullmatch(fact.name):
            characters = "lower-case letters, digits, dots, hyphens and underscores"
            yield "facts", f"{name} is no name; use 1 to {MAX_FACT_LENGTH} {characters}."
        if fact.valid_until and not is_date(fact.valid_until):
            yield "facts", f"{name}: {fact.valid_until[:20]!r} is no date such as 2027-06-30."
        if fact.evidence_url and not _is_web_address(fact.evidence_url):
            yield "facts", f"{name}: the evidence must be an https:// or http:// address."


def _decimals(terms: Terms) -> Iterator[Decimal]:
    yield from (terms.price, terms.discount_percent, terms.service_level.late_start_credit_percent)
    yield from (special.price for special in terms.hourly_prices)
    yield from (credit.credit_percent for credit in terms.service_level.credits)


def _is_exact(value: Decimal) -> bool:
    # Larger ones are out of their limits, and could not be rounded.
    return abs(value) > MAX_PRICE or exact(value) == value


def _is_line(text: str) -> bool:
    return text.isprintable()


def _is_web_address(text: str) -> bool:
    if len(text) > _MAX_URL_LENGTH or not text.isprintable():
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"https", "http"} and bool(parts.hostname)
