"""What a row of the usage ledger costs: by the terms of its contract, else by a price list.

An hour has the price of its beginning. The first hour of a contract, which began in it, has the
price of its first terms; a new version applies from the next full hour.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from core.money import exact
from marketplace.models import Contract, ContractVersion
from marketplace.prices.models import PriceList
from marketplace.prices.service import read_lists, valid_list
from marketplace.terms import Terms

log = logging.getLogger(__name__)

HOUR = timedelta(hours=1)
MILLISECONDS_PER_HOUR = 3_600_000
# Of a replay of years, in memory.
MAX_RATES = 50_000
_HUNDRED = Decimal(100)


class Use(NamedTuple):
    """Whose use of what, and when: all that its price depends on."""

    tenant_id: str
    contract_id: str | None
    gpu_model: str
    hour_at: datetime


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of a GPU for an hour.

    Attributes:
        price: before the discount.
        discount_percent: of the contract.
        version_number: of the terms or the price list.
        provider_id: who is paid; None for own appliances.
        min_seconds: the shortest time that is charged for an attempt.
    """

    price: Decimal
    version_number: int
    discount_percent: Decimal = Decimal(0)
    provider_id: str | None = None
    min_seconds: int = 0

    @property
    def net_price(self) -> Decimal:
        """The price less the discount."""
        return exact(self.price * (_HUNDRED - self.discount_percent) / _HUNDRED)

    def discount_of(self, amount: Decimal) -> Decimal:
        """Return the discount of an amount, which is negative."""
        return exact(-amount * self.discount_percent / _HUNDRED)


def charge(unit_price: Decimal, gpu_milliseconds: int) -> Decimal:
    """Return what a time costs, with eight places, half to even."""
    return exact(unit_price * gpu_milliseconds / MILLISECONDS_PER_HOUR)


class Pricing:
    """Finds the rates of uses; reads each contract and price list once.

    Contracts and lists that were added after it read them are not seen: it is made anew for each
    run. Contracts whose terms can't be read have no rates.

    Attributes:
        unreadable: the sides of these, by their id.
    """

    def __init__(self) -> None:
        self.unreadable: dict[str, tuple[str, str]] = {}
        self._contracts: dict[str, tuple[Contract, list[tuple[ContractVersion, Terms]]] | None] = {}
        self._lists: dict[str, list[PriceList]] = {}
        self._read_owners: set[str] = set()
        self._rates: dict[Use, Rate | None] = {}

    def read(self, session: Session, uses: Iterable[tuple[str, str | None]]) -> None:
        """Read what the uses of tenants under contracts need."""
        pairs = set(uses)
        contract_ids = {ident for _, ident in pairs if ident} - self._contracts.keys()
        for idents in chunked(sorted(contract_ids)):
            self._contracts |= dict.fromkeys(idents)
            for contract in session.scalars(select(Contract).where(Contract.id.in_(idents))):
                try:
                    versions = [
                        (version, _usable(version.decoded_terms))
                        for version in contract.versions
                        if version.applies_from is not None
                    ]
                except (msgspec.MsgspecError, ValueError, KeyError):
                    log.exception("can't read the terms of contract %s", contract.id)
                    self.unreadable[contract.id] = contract.customer_id, contract.provider_id
                    continue
                self._contracts[contract.id] = contract, versions
        owners = {tenant for tenant, ident in pairs if ident is None} - self._read_owners
        for tenant_ids in chunked(sorted(owners)):
            self._lists |= read_lists(session, set(tenant_ids))
        self._read_owners |= owners

    def rate(self, use: Use) -> Rate | None:
        """Return the rate of a use whose contract or tenant was read; None if it has no price."""
        if len(self._rates) >= MAX_RATES:
            self._rates.clear()
        if use not in self._rates:
            self._rates[use] = self._rate(use)
        return self._rates[use]

    def contract(self, contract_id: str) -> Contract | None:
        """Return a contract that was read."""
        row = self._contracts[contract_id]
        return None if row is None else row[0]

    def _rate(self, use: Use) -> Rate | None:
        if use.contract_id is None:
            valid = valid_list(self._lists, use.tenant_id, use.hour_at)
            price = None if valid is None else valid.price_of(use.gpu_model)
            return None if valid is None or price is None else Rate(price, valid.number)
        entry = self._contracts[use.contract_id]
        version, terms = (None, None) if entry is None else version_of_hour(entry[1], use.hour_at)
        if entry is None or version is None or terms is None:
            return None
        return Rate(
            price=exact(terms.price_at(use.hour_at)),
            version_number=version.number,
            discount_percent=terms.discount_percent,
            provider_id=entry[0].provider_id,
            min_seconds=terms.min_seconds,
        )


def _usable(terms: Terms) -> Terms:
    """Return terms, whose prices depend on their time zone.

    Raises:
        KeyError: there is no such time zone.
        ValueError: its name is none.
    """
    ZoneInfo(terms.time_zone)
    return terms


def version_of_hour(
    versions: Iterable[tuple[ContractVersion, Terms]], hour_at: datetime
) -> tuple[ContractVersion, Terms] | tuple[None, None]:
    """Return the accepted version that applies at an hour's beginning, else the first one in it."""
    applying: tuple[ContractVersion, Terms] | None = None
    for version, terms in versions:
        begins_at = version.applies_from
        if begins_at is None or begins_at >= hour_at + HOUR:
            continue
        if begins_at <= hour_at or applying is None:
            applying = version, terms
    return applying or (None, None)
