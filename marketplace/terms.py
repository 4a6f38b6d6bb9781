"""Terms of an offer and of a contract: prices, times, service level; their canonical form and hash.

An offer has the terms that it proposes to everybody. A version of a contract has a copy, which
never changes: its hash is what both sides accepted.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec

from core.money import exact, plain
from core.spec import About

MAX_PRICE = 1_000_000
MAX_PRICES = 50
MAX_CREDITS = 10
MAX_FACTS = 20
MAX_CANCELLATION_HOURS = 30 * 24
_DAY_SECONDS = 24 * 3600
_HUNDRED = Decimal(100)


class HourlyPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A price that differs from the usual one at certain hours."""

    days: Annotated[tuple[int, ...], About("0 for Monday to 6 for Sunday.", maximum=7)]
    from_hour: Annotated[int, About("The first hour of the day, 0 to 23.", maximum=23)]
    until_hour: Annotated[int, About("The first hour after it, 1 to 24.", minimum=1, maximum=24)]
    price: Annotated[Decimal, About("Of a GPU for an hour.", maximum=MAX_PRICE)]


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """The credit of a month in which the availability was below a limit."""

    below_percent: Annotated[
        float, About("The limit; of several that are met, the lowest counts.", maximum=100)
    ]
    credit_percent: Annotated[
        Decimal, About("Of what the contract's jobs cost in the month.", maximum=100)
    ]


class ServiceLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider promises; 0 is no promise."""

    availability_percent: Annotated[
        float, About("The time of a month in which the appliances are online.", maximum=100)
    ] = 0.0
    start_within_seconds: Annotated[
        int,
        About(
            "From the placement of a job to its start, without the pull of its image.",
            maximum=_DAY_SECONDS,
        ),
    ] = 0
    support_response_seconds: Annotated[
        int, About("To the first answer of a support request.", maximum=30 * _DAY_SECONDS)
    ] = 0
    credits: Annotated[
        tuple[Credit, ...], About("For months with less availability.", maximum=MAX_CREDITS)
    ] = ()
    late_start_credit_percent: Annotated[
        Decimal, About("Of the cost of a job that started too late.", maximum=100)
    ] = Decimal(0)


class ComplianceFact(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of the provider about compliance."""

    name: Annotated[str, About("Such as `iso27001`.")]
    valid_until: Annotated[str, About("The last date, such as 2027-06-30; empty for no end.")] = ""
    evidence_url: Annotated[str, About("Where the evidence is.")] = ""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of an offer or of a version of a contract."""

    currency: Annotated[str, About("Of all prices, by its ISO code.")]
    price: Annotated[
        Decimal, About("Of a GPU for an hour; a slice costs its share of it.", maximum=MAX_PRICE)
    ]
    hourly_prices: Annotated[
        tuple[HourlyPrice, ...],
        About("At certain hours; the first that matches counts.", maximum=MAX_PRICES),
    ] = ()
    time_zone: Annotated[str, About("Of the hours of prices, and of the offer's calendar.")] = "UTC"
    allows_slices: Annotated[bool, About("Whether jobs may have parts of GPUs.")] = False
    min_seconds: Annotated[
        int, About("The shortest time that is charged for a job.", maximum=_DAY_SECONDS)
    ] = 0
    max_seconds: Annotated[
        int, About("The longest time limit of a job; 0: any.", maximum=3650 * _DAY_SECONDS)
    ] = 0
    max_gpus: Annotated[
        int, About("GPUs that the customer may have at once; 0: any.", maximum=100_000)
    ] = 0
    region: Annotated[str, About("Where the appliances are.")] = ""
    discount_percent: Annotated[Decimal, About("Off all prices.", maximum=100)] = Decimal(0)
    commitment_gpu_hours: Annotated[
        int, About("That the customer pays in each month, used or not.", maximum=10_000_000)
    ] = 0
    term_days: Annotated[
        int,
        About(
            "For how long prices are fixed, and the contract lasts; 0: until notice.", maximum=3650
        ),
    ] = 0
    notice_days: Annotated[int, About("Between notice and end.", maximum=3650)] = 0
    cancellation_hours: Annotated[
        int,
        About(
            "Of a cancelled reservation, what is reserved within so many hours is charged.",
            maximum=MAX_CANCELLATION_HOURS,
        ),
    ] = 24
    service_level: Annotated[ServiceLevel, About("What the provider promises.")] = msgspec.field(
        default_factory=ServiceLevel
    )
    facts: Annotated[tuple[ComplianceFact, ...], About("About compliance.", maximum=MAX_FACTS)] = ()
    text: Annotated[str, About("Anything else that both sides agree on.")] = ""

    def price_at(self, at: datetime) -> Decimal:
        """Return the price of a GPU for an hour at a time, before the discount."""
        local = at.astimezone(ZoneInfo(self.time_zone))
        for special in self.hourly_prices:
            if local.weekday() in special.days and (
                special.from_hour <= local.hour < special.until_hour
            ):
                return special.price
        return self.price

    def net_price_at(self, at: datetime) -> Decimal:
        """Return the price of a GPU for an hour at a time, after the discount."""
        return exact(self.price_at(at) * (_HUNDRED - self.discount_percent) / _HUNDRED)

    def net_prices(self) -> tuple[Decimal, Decimal]:
        """Return the lowest and the highest price, after the discount."""
        prices = [self.price, *(special.price for special in self.hourly_prices)]
        factor = (_HUNDRED - self.discount_percent) / _HUNDRED
        return exact(min(prices) * factor), exact(max(prices) * factor)


def canonical(terms: Terms) -> bytes:
    """Return the JSON of terms that is hashed: all fields, sorted by name, decimals as text."""
    return msgspec.json.encode(stored(terms), order="sorted")


def terms_hash(terms: Terms) -> str:
    """Return the SHA-256 of terms in hexadecimal."""
    return hashlib.sha256(canonical(terms)).hexdigest()


def stored(terms: Terms) -> dict[str, Any]:
    """Return terms as they are stored: decimals are texts without trailing zeros.

    So the same price is the same text, and has the same hash, however it was entered.
    """
    return plain_document(terms)


def plain_document(value: msgspec.Struct) -> dict[str, Any]:
    """Return a struct as JSON; decimals are texts without trailing zeros."""
    document: dict[str, Any] = _plain(msgspec.to_builtins(value, builtin_types=(Decimal,)))
    return document


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part of a document
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def decoded(document: Mapping[str, Any]) -> Terms:
    """Return stored terms.

    Those of before cancellations were charged say nothing about them: they are free there.

    Raises:
        msgspec.ValidationError: they are not valid.
    """
    return msgspec.convert({"cancellation_hours": 0, **document}, Terms)


def differences(before: Terms, after: Terms) -> list[tuple[str, Any, Any]]:
    """Return the fields that differ between two terms, with the stored values of both.

    Fields of the service level are named such as `service_level.availability_percent`.
    """
    earlier, later = _flat(stored(before)), _flat(stored(after))
    return [(name, earlier[name], later[name]) for name in later if earlier[name] != later[name]]


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    level = {f"service_level.{name}": value for name, value in document["service_level"].items()}
    return {name: value for name, value in document.items() if name != "service_level"} | level
