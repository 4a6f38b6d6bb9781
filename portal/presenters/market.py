"""Offers, terms and prices as pages and the public API show them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeVar
from zoneinfo import ZoneInfo

from flask import request
from sqlalchemy.orm import Session

from core.money import cents, format_amount, parse_amount
from core.paging import Page
from core.quantities import format_duration, parse_size
from marketplace.catalogue import Capacity, CatalogueEntry, CatalogueFilter, capacity, search
from marketplace.offers.calendar import Window
from marketplace.terms import HourlyPrice, Terms
from portal.context import portal
from portal.presenters.display import NOTHING
from portal.query_string import PAGE_SIZE, ignore_value, page_number

DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOURS = range(24)
# Of a price within the prices of a week, from the lowest to the highest.
LEVELS = 4
MAX_SEARCH_LENGTH = 200
MAX_COUNT = 1_000_000
T = TypeVar("T")
SORTS = {
    "price": "Lowest price",
    "-free_gpus": "Most free GPUs",
    "-reputation": "Best reputation",
    "-availability_percent": "Highest availability",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of terms that differs between two versions, as text."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PriceCell:
    """The price of an hour of the week, and its level: 0 for the lowest of the week."""

    price: Decimal
    level: int


@dataclass(frozen=True, slots=True)
class GPUModel:
    """What is on offer of a GPU model, in all regions."""

    gpu_model: str
    gpus: int
    free_gpus: int
    lowest_price: Decimal
    regions: Sequence[Capacity]


def money(value: Decimal | None, currency: str = "") -> str:
    """Return an amount in the currency of the portal."""
    return NOTHING if value is None else format_amount(value, currency or currency_here())


def currency_here() -> str:
    """Return the currency of the portal."""
    return portal().settings.billing_currency


def percent(value: Decimal | float) -> str:
    """Return a percentage without needless zeros: `99.5 %`."""
    return f"{Decimal(str(value)).normalize():f} %"


def gpu_models(rows: Sequence[Capacity]) -> list[GPUModel]:
    """Return what is on offer by GPU model, by name."""
    by_model: dict[str, list[Capacity]] = {}
    for row in rows:
        by_model.setdefault(row.gpu_model, []).append(row)
    return [
        GPUModel(
            gpu_model=model,
            gpus=sum(row.gpus for row in regions),
            free_gpus=sum(row.free_gpus for row in regions),
            lowest_price=min(row.lowest_price for row in regions),
            regions=sorted(regions, key=lambda row: row.region),
        )
        for model, regions in sorted(by_model.items())
    ]


@dataclass(frozen=True, slots=True)
class Choices:
    """The GPU models and regions that are on offer now."""

    models: Sequence[GPUModel]

    @classmethod
    def read(cls, session: Session) -> "Choices":
        """Return those of the catalogue."""
        return cls(gpu_models(capacity(session)))

    @property
    def regions(self) -> list[str]:
        """The regions, by name."""
        return sorted({row.region for model in self.models for row in model.regions if row.region})


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A page of the catalogue, as the address asks for it, and what can be chosen."""

    page: Page[CatalogueEntry]
    choices: Choices
    sort: str
    has_filter: bool

    @classmethod
    def read(cls, session: Session) -> "Catalogue":
        """Return what the address asks for."""
        values = filters_here()
        sort = request.args.get("sort", "")
        if sort not in SORTS:
            ignore_value("sort", sort, f"Use {', '.join(SORTS)}.")
            sort = next(iter(SORTS))
        number = page_number()
        wanted = catalogue_filter(values)
        entries, total = search(session, wanted, sort=sort, page=number, page_size=PAGE_SIZE)
        page = Page(entries, total, number, PAGE_SIZE)
        return cls(page, Choices.read(session), sort, any(values.values()))


def catalogue_filter(values: Mapping[str, str]) -> CatalogueFilter:
    """Return what query parameters look for; the page reports values that are ignored."""

    def read(name: str, parse: Callable[[str], T], default: T, advice: str) -> T:
        text = values.get(name, "").strip()
        try:
            return parse(text) if text else default
        except (ValueError, LookupError):
            ignore_value(name, text, advice)
            return default

    return CatalogueFilter(
        gpu_model=values.get("gpu_model", "").strip(),
        min_gpu_memory_bytes=read("memory", parse_size, 0, "Write it as 80 GiB."),
        min_free_gpus=read("free", _count, 0, "Use a number from 0."),
        max_price=read("max_price", _price, None, "Write it as 2.45."),
        region=values.get("region", "").strip(),
        facts=tuple(values.get("facts", "").replace(",", " ").split()),
        min_availability_percent=read("availability", _percentage, 0.0, "Use 0 to 100."),
        text=values.get("search", "").strip()[:MAX_SEARCH_LENGTH],
        allows_slices=read("slices", {"yes": True, "no": False}.__getitem__, None, "Use yes, no."),
    )


def _price(text: str) -> Decimal | None:
    return parse_amount(text)


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_COUNT:
        raise ValueError(text)
    return number


def _percentage(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 100:  # noqa: PLR2004 - percent
        raise ValueError(text)
    return number


def filters_here() -> dict[str, str]:
    """Return the parameters of a catalogue in the address."""
    names = (
        *("gpu_model", "memory", "free", "max_price", "region", "facts", "availability"),
        *("search", "slices"),
    )
    return {name: request.args.get(name, "") for name in names}


def term_rows(terms: Terms) -> list[tuple[str, str]]:
    """Return terms by name, as text, without those that promise or limit nothing."""
    return [(name, text) for name, text in _rows(terms) if text]


def differences(before: Terms, after: Terms) -> list[Difference]:
    """Return what differs between two versions of terms."""
    present = dict(_rows(before))
    return [
        Difference(name, present[name] or NOTHING, text or NOTHING)
        for name, text in _rows(after)
        if present[name] != text
    ]


def price_grid(terms: Terms) -> list[tuple[str, list[PriceCell]]]:
    """Return the price of every hour of a week after the discount, in the terms' time zone."""
    zone = ZoneInfo(terms.time_zone)
    monday = datetime(2024, 1, 1, tzinfo=zone)
    prices = [
        [terms.net_price_at((monday + timedelta(days=day)).replace(hour=hour)) for hour in HOURS]
        for day in range(len(DAY_NAMES))
    ]
    distinct = sorted({price for row in prices for price in row})
    levels = {
        price: round(index * LEVELS / max(1, len(distinct) - 1))
        for index, price in enumerate(distinct)
    }
    return [
        (name, [PriceCell(price, levels[price]) for price in row])
        for name, row in zip(DAY_NAMES, prices, strict=True)
    ]


def prices_of(grid: Sequence[tuple[str, list[PriceCell]]]) -> list[PriceCell]:
    """Return the different prices of a week, the lowest first."""
    cells = {cell.price: cell for _, row in grid for cell in row}
    return [cells[price] for price in sorted(cells)]


def format_days(days: Sequence[int]) -> str:
    """Return days of the week as `Mon-Fri, Sun`."""
    runs: list[list[int]] = []
    for day in sorted(set(days)):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return ", ".join(
        DAY_NAMES[run[0]] if len(run) == 1 else f"{DAY_NAMES[run[0]]}-{DAY_NAMES[run[-1]]}"
        for run in runs
    )


def plain_amount(value: Decimal) -> str:
    """Return an amount as it is entered, in cents or as exact as it is: `2.50`."""
    rounded = cents(value)
    return f"{rounded:f}" if rounded == value else f"{value.normalize():f}"


def format_hourly_price(special: HourlyPrice) -> str:
    """Return a price at certain hours as `Mon-Fri 08-20 3.10`."""
    hours = f"{special.from_hour:02}-{special.until_hour:02}"
    return f"{format_days(special.days).replace(', ', ',')} {hours} {plain_amount(special.price)}"


def format_window(window: Window) -> str:
    """Return a window of a calendar as `closed Mon-Fri 08-20 from 2026-12-24 until 2026-12-27`."""
    days, is_all_day = format_days(window.days).replace(", ", ","), window.until_hour == len(HOURS)
    hours = (
        ""
        if is_all_day and not window.from_hour
        else (f"{window.from_hour:02}-{window.until_hour:02}")
    )
    dates = (
        f"from {window.from_date}" if window.from_date else "",
        f"until {window.until_date}" if window.until_date else "",
    )
    state = "closed" if window.is_closed else "open"
    return " ".join(word for word in (state, days, hours, *dates) if word)


def _rows(terms: Terms) -> Iterator[tuple[str, str]]:
    """Yield each field of terms by name, as text; "" for none."""
    level, currency = terms.service_level, terms.currency
    yield "Price of a GPU for an hour", money(terms.price, currency)
    yield (
        "At certain hours",
        "; ".join(
            f"{format_days(special.days)} {special.from_hour:02}:00-{special.until_hour:02}:00 "
            f"{money(special.price, currency)}"
            for special in terms.hourly_prices
        ),
    )
    yield "Hours are in", terms.time_zone if terms.hourly_prices else ""
    yield "Discount", percent(terms.discount_percent) if terms.discount_percent else ""
    yield "Parts of GPUs", "allowed" if terms.allows_slices else "whole GPUs only"
    yield "Region", terms.region
    yield "Shortest time charged", _duration(terms.min_seconds)
    yield "Longest time limit of a job", _duration(terms.max_seconds)
    yield "GPUs at once", f"at most {terms.max_gpus:,}" if terms.max_gpus else ""
    yield (
        "Commitment",
        f"{terms.commitment_gpu_hours:,} GPU-hours a month" if terms.commitment_gpu_hours else "",
    )
    yield "Prices are fixed for", _days(terms.term_days)
    yield "Notice", _days(terms.notice_days) or "at once"
    yield (
        "Cancelled reservations",
        f"what is reserved within {terms.cancellation_hours} hours is charged"
        if terms.cancellation_hours
        else "free",
    )
    yield (
        "Availability",
        f"{percent(level.availability_percent)} of a month" if level.availability_percent else "",
    )
    yield (
        "Credits",
        "; ".join(
            f"below {percent(credit.below_percent)}: {percent(credit.credit_percent)} of the month"
            for credit in level.credits
        ),
    )
    yield "Jobs start within", _duration(level.start_within_seconds)
    yield (
        "Credit for a late start",
        f"{percent(level.late_start_credit_percent)} of the attempt"
        if level.late_start_credit_percent
        else "",
    )
    yield "Support answers within", _duration(level.support_response_seconds)
    yield (
        "Compliance",
        "; ".join(
            fact.name + (f" until {fact.valid_until}" if fact.valid_until else "")
            for fact in terms.facts
        ),
    )
    yield "Also agreed", terms.text


def _duration(seconds: int) -> str:
    return format_duration(seconds) if seconds else ""


def _days(count: int) -> str:
    return f"{count:,} day{'' if count == 1 else 's'}" if count else ""


def month_of(at: datetime) -> tuple[datetime, datetime]:
    """Return the month of a time in UTC: its start, and that of the next."""
    start = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)
