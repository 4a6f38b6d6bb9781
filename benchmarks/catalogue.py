"""The catalogue of the marketplace: searches with filters, and the refresh that it is made by.

Providers offer appliances with eight GPUs by labels, a few to an offer; half of the appliances run
jobs. Each search is timed with its page of 50 entries, beside a plain `SELECT count(*)` of the
appliances on offer.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.shared.document import (
    MILLISECONDS,
    Figures,
    Outcome,
    Promise,
    median,
    rounded,
    seconds_of,
)
from benchmarks.shared.filling import appliance_rows, insert_rows, running_job
from benchmarks.shared.fleet import GIB, gpu_uuid
from benchmarks.shared.servers import mariadb
from core.clock import utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory, transaction
from core.ids import hash_secret, new_id
from core.migrations import upgrade_database
from marketplace.catalogue import CatalogueFilter, capacity, search
from marketplace.models import Account, Offer
from marketplace.offers.coverage import providers, refresh_provider
from marketplace.states import AccountState, OfferState
from marketplace.terms import ComplianceFact, ServiceLevel, Terms, stored
from tenants.models import Appliance
from tenants.models.rentals import OfferedAppliance
from tenants.tenants import create_tenant

MOST_MILLISECONDS = 100.0
REPETITIONS = 15
REGIONS = ("eu-north", "eu-west", "us-east", "us-west")
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
FILTERS = {
    "no filter": CatalogueFilter(),
    "model, price, free": CatalogueFilter(
        gpu_model="H100", max_price=Decimal("2.5"), min_free_gpus=8, is_open=True
    ),
    "memory, region": CatalogueFilter(min_gpu_memory_bytes=40 * GIB, region="eu-north"),
    "facts, availability": CatalogueFilter(
        facts=("gdpr", "iso27001"), min_availability_percent=99.5
    ),
    "text": CatalogueFilter(text="provider 7"),
    "nothing matches": CatalogueFilter(gpu_model="B300"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of appliances, of providers, and of the offers of each."""

    appliances: int = 10_000
    providers: int = 50
    offers: int = 20


FULL = Plan()
QUICK = Plan(appliances=200, providers=5, offers=4)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Search the catalogue on both databases."""
    results = {"sqlite": _searches(f"sqlite:///{folder / 'catalogue.db'}", plan)}
    with mariadb(folder / "mariadb") as server:
        results["mariadb"] = _searches(server.new_database(), plan)
    promises = [
        Promise(f"search, {name}, {database}", figures["milliseconds"], MOST_MILLISECONDS, "ms")
        for database, result in results.items()
        for name, figures in result.items()
        if name in FILTERS
    ]
    return Outcome({"catalogue": results}, promises)


def _searches(url: str, plan: Plan) -> dict[str, Figures]:
    engine = create_database_engine(url)
    upgrade_database(engine)
    sessions = create_session_factory(engine)
    now = utc_now()
    drawn = random.Random(1)  # noqa: S311 - a benchmark
    for number in range(plan.providers):
        with transaction(sessions) as session:
            _add_provider(session, number, plan, drawn, now=now)
    first, second = (_refresh(sessions, now=utc_now()) for _ in range(2))
    figures: dict[str, Figures] = {
        "first refresh": {"seconds": rounded(first)},
        "refresh": {"seconds": rounded(second)},
        "plain count": _timed(
            sessions, lambda session: session.scalar(select(func.count(OfferedAppliance.offer_id)))
        ),
        "capacity": _timed(sessions, lambda session: len(capacity(session))),
    }
    for name, wanted in FILTERS.items():
        figures[name] = _timed(sessions, partial(_matches, wanted=wanted))
    engine.dispose()
    return figures


def _matches(session: Session, wanted: CatalogueFilter) -> int:
    """Search a page of 50 entries; return how many match."""
    return search(session, wanted, page_size=50)[1]


def _timed(sessions: SessionFactory, action: Callable[[Session], Any]) -> Figures:
    """Return the median time of an action in a transaction of its own, and what it counts."""
    took, cpu, count = [], [], 0
    for _ in range(REPETITIONS):
        began, cpu_began = time.perf_counter(), time.process_time()
        with transaction(sessions) as session:
            count = action(session)
        took.append(MILLISECONDS * (time.perf_counter() - began))
        cpu.append(MILLISECONDS * (time.process_time() - cpu_began))
    return {
        "milliseconds": rounded(median(took) or 0.0),
        "milliseconds_max": rounded(max(took)),
        "cpu_milliseconds": rounded(median(cpu) or 0.0),
        "entries": count,
    }


def _refresh(sessions: SessionFactory, *, now: datetime) -> float:
    """Refresh what is on offer as the scheduler does."""

    def refresh() -> None:
        with transaction(sessions) as session:
            idents = providers(session)
        for ident in idents:
            with transaction(sessions) as session:
                refresh_provider(session, ident, now=now)

    return seconds_of(refresh)


def _add_provider(
    session: Session, number: int, plan: Plan, drawn: random.Random, *, now: datetime
) -> None:
    """Add a provider with its appliances, half of which are busy, and its offers."""
    tenant = create_tenant(session, name=f"Provider {number}", now=now)
    session.add(
        Account(
            tenant_id=tenant.id,
            public_name=tenant.name,
            provider_state=AccountState.ACTIVE,
            updated_at=now,
        )
    )
    rows = list(appliance_rows(tenant.id, plan.appliances // plan.providers, now=now))
    for index, row in enumerate(rows):
        model = MODELS[index % len(MODELS)]
        row["secret_hash"] = hash_secret(new_id())
        row["labels"] = {"offer": str(index % plan.offers)}
        for gpu in row["inventory"]["gpus"]:
            gpu["model"] = model
        row["gpu_model"] = model
    insert_rows(session, Appliance, rows)
    for index, row in enumerate(rows[::2]):
        uuids = [gpu_uuid(2 * index, slot) for slot in range(drawn.randrange(1, 9))]
        job = running_job(tenant.id, row["id"], now=now, name="train", gpu_uuids=uuids)
        session.add(job)
    for index in range(plan.offers):
        terms = Terms(
            currency="EUR",
            price=Decimal(drawn.randrange(100, 500)) / 100,
            region=drawn.choice(REGIONS),
            facts=tuple(
                ComplianceFact(name=name)
                for name in ("gdpr", "iso27001", "soc2")
                if drawn.random() < 0.5  # noqa: PLR2004 - half of them
            ),
            service_level=ServiceLevel(availability_percent=drawn.choice([0.0, 99.0, 99.9])),
        )
        session.add(
            Offer(
                tenant_id=tenant.id,
                name=f"Offer {index}",
                description=f"GPUs of provider {number}, in racks with NVLink",
                state=OfferState.PUBLISHED,
                labels={"offer": str(index)},
                terms=stored(terms),
                created_at=now,
                updated_at=now,
            )
        )
    session.flush()
