"""Terms of an offer and of a contract: prices, times, service level; their canonical form and hash.

An offer has the terms that it proposes to everybody. A version of a contract has a copy, which
never changes: its hash is what both sides accepted.
"""

import hashlib
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import msgspec

_HOURS_PER_WEEK = 7 * 24


class HourlyPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A price that differs from the usual one at certain hours.

    Attributes:
        days: 0 for Monday to 6 for Sunday.
        from_hour: the first hour of the day, 0 to 23.
        until_hour: the first one after it, 1 to 24.
        price: of a GPU for an hour.
    """

    days: tuple[int, ...]
    from_hour: int
    until_hour: int
    price: Decimal


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """The credit of a month in which the availability was below a limit.

    Attributes:
        below_percent: the limit; of several that are met, the lowest counts.
        credit_percent: of what the contract's jobs cost in the month.
    """

    below_percent: float
    credit_percent: Decimal


class ServiceLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider promises; 0 is no promise.

    Attributes:
        availability_percent: the time of a month in which the appliances are online.
        start_within_seconds: from the placement of an attempt to its start.
        support_response_seconds: to the first answer of a support request.
        credits: for months with less availability.
        late_start_credit_percent: of the cost of an attempt that started too late.
    """

    availability_percent: float = 0.0
    start_within_seconds: int = 0
    support_response_seconds: int = 0
    credits: tuple[Credit, ...] = ()
    late_start_credit_percent: Decimal = Decimal(0)


class ComplianceFact(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of the provider, such as `iso27001`, until a date in ISO form; "" for no end."""

    name: str
    valid_until: str = ""
    evidence_url: str = ""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of an offer or of a version of a contract.

    Attributes:
        currency: of all prices.
        price: of a GPU for an hour; a slice costs its share of it.
        hourly_prices: at certain hours; the first that matches counts.
        time_zone: of those hours.
        allows_slices: whether jobs may have parts of GPUs.
        min_seconds: the shortest time that is charged for an attempt.
        max_seconds: the longest time limit of a job; 0 is no limit.
        max_gpus: that the customer may have at once; 0 is no limit.
        region: where the appliances stand.
        discount_percent: off all prices.
        commitment_gpu_hours: that the customer pays in each month, used or not; 0 is none.
        term_days: for how long prices are fixed; 0 is until notice.
        notice_days: between notice and end.
        service_level: what the provider promises.
        facts: about compliance.
        text: anything else that both sides agree on.
    """

    currency: str
    price: Decimal
    hourly_prices: tuple[HourlyPrice, ...] = ()
    time_zone: str = "UTC"
    allows_slices: bool = False
    min_seconds: int = 0
    max_seconds: int = 0
    max_gpus: int = 0
    region: str = ""
    discount_percent: Decimal = Decimal(0)
    commitment_gpu_hours: int = 0
    term_days: int = 0
    notice_days: int = 0
    service_level: ServiceLevel = msgspec.field(default_factory=ServiceLevel)
    facts: tuple[ComplianceFact, ...] = ()
    text: str = ""

    def price_at(self, at: datetime) -> Decimal:
        """Return the price of a GPU for an hour at a time, before the discount."""
        local = at.astimezone(ZoneInfo(self.time_zone))
        for special in self.hourly_prices:
            if local.weekday() in special.days and (
                special.from_hour <= local.hour < special.until_hour
            ):
                return special.price
        return self.price

    def next_price_at(self, at: datetime) -> datetime | None:
        """Return when the price changes next within a week; None if it doesn't."""
        current, hour_at = self.price_at(at), at.replace(minute=0, second=0, microsecond=0)
        for hours in range(1, _HOURS_PER_WEEK + 1 if self.hourly_prices else 1):
            later_at = hour_at + timedelta(hours=hours)
            if self.price_at(later_at) != current:
                return later_at
        return None


def canonical(terms: Terms) -> bytes:
    """Return the JSON of terms that is hashed: all fields, sorted by name, decimals as text."""
    return msgspec.json.encode(msgspec.to_builtins(terms), order="sorted")


def terms_hash(terms: Terms) -> str:
    """Return the SHA-256 of terms in hexadecimal."""
    return hashlib.sha256(canonical(terms)).hexdigest()
