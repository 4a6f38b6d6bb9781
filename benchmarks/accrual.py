"""The usage ledger charged from nothing, replayed, and its first month closed, on each database.

A year of rows in all hours: half under contracts with a discount and prices by hour, half of own
appliances with a price list.
"""

import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import func, select

from benchmarks.shared.document import BenchmarkError, Figures, Outcome, Promise, rounded
from benchmarks.shared.filling import insert_rows
from benchmarks.shared.servers import mariadb
from core.db import SessionFactory, create_database_engine, create_session_factory, transaction
from core.ids import new_id
from core.migrations import upgrade_database
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry, UsageHour
from marketplace.charges.models import BillingLine
from marketplace.charges.replay import replay
from marketplace.charges.service import accrue
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import Issuing
from marketplace.models import Contract, ContractVersion
from marketplace.prices.models import PriceList
from marketplace.states import ContractState, Side, VersionState
from marketplace.terms import HourlyPrice, Terms, terms_hash
from tenants.models import Tenant
from tenants.tenants import create_tenant

MOST_SECONDS = 300.0
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A10", "NVIDIA L40S")
HOUR, HOURS = timedelta(hours=1), 365 * 24
FIRST_AT = datetime(2025, 1, 1, tzinfo=UTC)
END_AT = FIRST_AT + timedelta(days=365)
# The ledger's hour in milliseconds.
_WHOLE = 3_600_000
_PART = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ledger: its rows are spread over the hours of a year."""

    rows: int = 1_000_000
    contracts: int = 200
    tenants: int = 20


FULL = Plan()
QUICK = Plan(rows=20_000, contracts=10, tenants=4)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a ledger on SQLite and MariaDB, charge it, replay it and close its months."""
    results = {"sqlite": _measured(f"sqlite:///{folder / 'vedette.db'}", plan)}
    with mariadb(folder / "mariadb") as server:
        results["mariadb"] = _measured(server.new_database(), plan)
    promises = [
        Promise(
            f"charging {plan.rows:,} rows on {name}",
            figures["charge_seconds"],
            MOST_SECONDS,
            "seconds",
        )
        for name, figures in results.items()
    ]
    return Outcome(results, promises)


def _measured(url: str, plan: Plan) -> Figures:
    engine = create_database_engine(url)
    upgrade_database(engine)
    sessions = create_session_factory(engine)
    _fill(sessions, plan)
    figures: dict[str, float | None] = {}
    begun = time.perf_counter()
    while accrue(sessions, now=END_AT):
        pass
    figures["charge_seconds"] = rounded(time.perf_counter() - begun)
    begun = time.perf_counter()
    result = replay(sessions, Period(FIRST_AT, END_AT))
    figures["replay_seconds"] = rounded(time.perf_counter() - begun)
    with transaction(sessions) as session:
        lines = session.scalar(select(func.count()).select_from(BillingLine))
    if not result.is_equal or result.rows != plan.rows or result.expected != result.charged:
        raise BenchmarkError(f"{result.difference_count} rows of the replay differ.")
    issuing = Issuing("EUR", Decimal(19), Decimal(10), "", "https://portal.example")
    begun = time.perf_counter()
    months = close_months(sessions, issuing, now=END_AT + timedelta(days=2))
    figures["close_seconds_of_a_month"] = rounded((time.perf_counter() - begun) / len(months))
    figures["lines"] = lines
    figures["peak_mebibytes"] = rounded(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    engine.dispose()
    return figures


def _fill(sessions: SessionFactory, plan: Plan) -> None:
    with transaction(sessions) as session:
        tenants = [
            create_tenant(session, name=f"Tenant {number}", slug=f"t-{number}", now=FIRST_AT)
            for number in range(plan.tenants)
        ]
        contracts = [_contract(tenants, number) for number in range(plan.contracts)]
        session.add_all([*contracts, *map(_prices, tenants)])
        session.flush()
        pairs = [(contract.customer_id, contract.id) for contract in contracts]
        idents = [tenant.id for tenant in tenants]
    rows = _rows(plan, pairs, idents)
    while part := list(islice(rows, _PART)):
        with transaction(sessions) as session:
            insert_rows(session, UsageEntry, part)
    hours = [
        {"hour_at": FIRST_AT + number * HOUR, "recorded_at": END_AT, "appends": 1}
        for number in range(HOURS)
    ]
    with transaction(sessions) as session:
        insert_rows(session, UsageHour, hours)


def _contract(tenants: list[Tenant], number: int) -> Contract:
    provider, customer = tenants[number % 2], tenants[2 + number % (len(tenants) - 2)]
    night = HourlyPrice(days=tuple(range(7)), from_hour=0, until_hour=6, price=Decimal("1.1"))
    terms = Terms(
        currency="EUR",
        price=Decimal("2.45"),
        hourly_prices=(night,),
        time_zone="Europe/Oslo",
        discount_percent=Decimal(number % 3),
    )
    version = ContractVersion(
        number=1,
        state=VersionState.ACCEPTED,
        terms=msgspec.to_builtins(terms),
        terms_hash=terms_hash(terms),
        proposed_side=Side.PROVIDER,
        proposed_by="",
        proposed_at=FIRST_AT,
        applies_from=FIRST_AT,
    )
    return Contract(
        id=new_id(),
        offer_id=new_id(),
        offer_name=f"Offer {number}",
        provider_id=provider.id,
        provider_name=provider.name,
        customer_id=customer.id,
        customer_name=customer.name,
        state=ContractState.ACTIVE,
        created_at=FIRST_AT,
        starts_at=FIRST_AT,
        versions=[version],
    )


def _prices(tenant: Tenant) -> PriceList:
    return PriceList(
        tenant_id=tenant.id,
        owner=tenant.id,
        number=1,
        valid_from=FIRST_AT,
        prices=[{"gpu_model": "H100", "price": "1.9"}, {"gpu_model": "", "price": "0.4"}],
        charged_at=FIRST_AT,
        created_by="",
        created_at=FIRST_AT,
    )


def _rows(plan: Plan, pairs: list[tuple[str, str]], idents: list[str]) -> Iterator[dict[str, Any]]:
    chosen = random.Random(1)  # noqa: S311 - the same ledger in each run
    for number in range(plan.rows):
        is_rented = number % 2 == 0
        tenant_id, contract_id = (
            chosen.choice(pairs) if is_rented else (chosen.choice(idents), None)
        )
        yield {
            "id": new_id(),
            "hour_at": FIRST_AT + number * HOURS // plan.rows * HOUR,
            "tenant_id": tenant_id,
            "user_id": None,
            "project_id": None,
            "job_id": new_id(),
            "job_name": "train",
            "attempt_id": new_id(),
            "appliance_id": new_id(),
            "contract_id": contract_id,
            "gpu_model": chosen.choice(MODELS),
            "revision": 0,
            "allocated_milliseconds": chosen.randint(1, 8 * _WHOLE),
            "used_milliseconds": 0,
            "idle_milliseconds": 0,
            "energy_joules": 0,
            "recorded_at": END_AT,
        }
