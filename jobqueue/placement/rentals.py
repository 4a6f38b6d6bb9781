"""Rented appliances as placement sees them, and what jobs ask of those.

An appliance of another tenant is in a snapshot through a *grant*, the part of a contract that lets
the tenant's jobs run there. Texts show the name of its offer, never the appliance's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from core.money import exact

# Keys of `JobSpec.rental`.
REGION, COMPLIANCE, AVAILABILITY, REPUTATION = "region", "compliance", "availability", "reputation"
RENTAL_KEYS = (REGION, COMPLIANCE, AVAILABILITY, REPUTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalView:
    """The grant through which an appliance is rented; see `tenants.models.Grant`.

    Attributes:
        is_open: whether jobs may start under it now.
        price: of a GPU for an hour.
        highest_price: the same, in the most expensive hour of the week.
        placement_factor: what the price is divided by to compare offers; 1 for the best providers.
        is_local: whether the tenant has appliances of its own in the region.
        max_gpus: that its jobs may have at once; 0 is no limit.
        max_seconds: the longest time limit of a job; 0 is no limit.
        ends_at: when the contract ends, which is in `ends_in`; None while that is open.
    """

    contract_id: str
    provider_id: str
    offer_name: str
    price: Decimal = Decimal(0)
    highest_price: Decimal = Decimal(0)
    is_open: bool = True
    region: str = ""
    is_local: bool = False
    facts: frozenset[str] = frozenset()
    availability_percent: float = 0.0
    reputation: float = 0.5
    placement_factor: float = 1.0
    allows_slices: bool = False
    max_gpus: int = 0
    max_seconds: int = 0
    ends_at: datetime | None = None
    ends_in: timedelta | None = None

    @property
    def title(self) -> str:
        """Return what texts call the appliance."""
        return f"offer {self.offer_name}" if self.offer_name else "a rented appliance"

    @property
    def price_text(self) -> str:
        """Return the price with two digits after the point, or as many as it has."""
        return price_text(self.price)

    @property
    def rank(self) -> tuple[Decimal, float, bool]:
        """Return the sort key of offers: the best comes first."""
        return order_price(self.price, self.placement_factor), -self.reputation, not self.is_local


class RentalNeed(NamedTuple):
    """What a job asks of rented appliances, where it may run on them.

    Attributes:
        max_price: of a GPU for an hour.
        regions: of which it accepts any; empty for all.
        facts: about compliance that must hold.
        availability_percent: that must be promised.
        reputation: that the provider must have, 0 to 1.
        time_limit: of the job; None without one.
    """

    max_price: Decimal
    regions: frozenset[str] = frozenset()
    facts: frozenset[str] = frozenset()
    availability_percent: float = 0.0
    reputation: float = 0.0
    time_limit: timedelta | None = None


def rental_need(
    max_price: float | str | None, wishes: Mapping[str, str], time_limit: timedelta | None
) -> RentalNeed | None:
    """Return what a job asks of rented appliances; None if it has no highest price.

    Args:
        max_price: the highest price; 0 or None keeps the job on own appliances.
        wishes: `JobSpec.rental`, checked.
        time_limit: of the job.
    """
    if not max_price or not float(max_price):
        return None
    return RentalNeed(
        max_price=exact(Decimal(str(max_price))),
        regions=words_of(wishes.get(REGION, "")),
        facts=words_of(wishes.get(COMPLIANCE, "")),
        availability_percent=float(wishes.get(AVAILABILITY) or 0),
        reputation=float(wishes.get(REPUTATION) or 0),
        time_limit=time_limit,
    )


def order_price(price: Decimal, factor: float) -> Decimal:
    """Return the price by which offers are compared: what work costs that a provider completes."""
    return price if factor == 1 else exact(price / Decimal(str(factor)))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a list with commas, in lower case."""
    return frozenset(filter(None, (word.strip().lower() for word in text.split(","))))


def price_text(price: Decimal) -> str:
    """Return a price with two digits after the point, or as many as it has."""
    rounded = price.quantize(Decimal("0.01"))
    return f"{rounded:,}" if rounded == price else f"{price.normalize():,f}"
