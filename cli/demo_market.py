"""The marketplace of the demo: two providers, two customers, contracts, and jobs under them.

Offers are made as soon as their appliances have enrolled, through the services. The customers'
past jobs are added like those of `cli.demo_past`, so that the ledger and bills come from them.
"""

import logging
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from cli.database import open_database
from cli.demo_users import JOBS, DemoUser
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.errors import VedetteError
from core.ids import new_id
from core.settings import load_server_settings
from jobqueue.queue.past_jobs import PastJob, add_past_jobs
from jobqueue.states import JobState
from marketplace.contracts.service import propose_contract, take_offer
from marketplace.models import Offer
from marketplace.offers.requests import OfferRequest
from marketplace.offers.service import create_offer, set_offer_state
from marketplace.reputation.opinions import RatingRequest, rate
from marketplace.states import OfferState
from marketplace.terms import (
    ComplianceFact,
    Credit,
    HourlyPrice,
    ServiceLevel,
    Terms,
    terms_hash,
)
from protocol.job_spec import JobKind
from tenants.fleet.events import EventKind, add_event
from tenants.models import (
    Appliance,
    ApplianceState,
    Membership,
    Role,
    Tenant,
    User,
    Verification,
)
from tenants.scope import Scope
from vedette.client import Client

log = logging.getLogger(__name__)

RENTED_LABELS = {"pool": "rent"}
# The tenant of each customer, and who submits its jobs.
CUSTOMERS = (("initech", "dora@initech.example"), ("hooli", "erin@hooli.example"))
# Last month is in it, so that there is an invoice.
PAST_DAYS = 40
PAST = timedelta(days=PAST_DAYS)
JOB_HOURS = (2, 9)
MAX_GPU_HOUR_PRICE = 5.0
RUNNING_JOBS = 2
POLL_SECONDS = 3.0
GRACE = timedelta(days=7)
GIB = 1024**3
_WORKDAYS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOffer:
    """An offer of a tenant, on the appliance of this name, and who rents it."""

    tenant: str
    appliance: str
    name: str
    description: str
    terms: Mapping[str, Any]
    customer: str
    rating: RatingRequest


OFFERS: Sequence[DemoOffer] = (
    DemoOffer(
        tenant="acme",
        appliance="rent-01",
        name="H100 in Lyon",
        description="Four H100 with NVLink, in our own hall. Cheaper at night and on weekends.",
        customer="initech",
        rating=RatingRequest(stars=5, comment="Fast, and cheap at night. Jobs start at once."),
        terms={
            "price": Decimal("1.90"),
            "hourly_prices": (
                HourlyPrice(days=_WORKDAYS, from_hour=8, until_hour=20, price=Decimal("2.60")),
            ),
            "time_zone": "Europe/Paris",
            "region": "eu-west",
            "min_seconds": 60,
            "notice_days": 14,
            "service_level": ServiceLevel(
                availability_percent=99.0,
                start_within_seconds=120,
                credits=(
                    Credit(below_percent=99.0, credit_percent=Decimal(10)),
                    Credit(below_percent=95.0, credit_percent=Decimal(30)),
                ),
            ),
            "facts": (ComplianceFact(name="iso27001"), ComplianceFact(name="gdpr")),
        },
    ),
    DemoOffer(
        tenant="globex",
        appliance="rent-a1",
        name="H200 in Austin",
        description="Four H200 for large models.",
        customer="hooli",
        rating=RatingRequest(stars=3, comment="Good GPUs, slow disks."),
        terms={
            "price": Decimal("3.40"),
            "region": "us-south",
            "discount_percent": Decimal(5),
            "notice_days": 30,
            "service_level": ServiceLevel(availability_percent=98.0),
            "facts": (ComplianceFact(name="soc2"),),
        },
    ),
)


class DemoMarket:
    """Opens the market once the appliances on offer have enrolled."""

    def run(self, stop: threading.Event) -> None:
        """Try until it is open, or `stop` is set."""
        settings = load_server_settings()
        with open_database(settings) as (_engine, sessions):
            while not stop.is_set():
                try:
                    if open_market(sessions, settings.billing_currency, now=utc_now()):
                        return
                except VedetteError as error:
                    log.warning("the market is not open yet: %s", error.message)
                stop.wait(POLL_SECONDS)


class Customer(DemoUser):
    """A user of a tenant without appliances, who keeps jobs running on rented ones."""

    def submit(self, client: Client) -> None:
        """Submit a job if too few are active."""
        active = [
            job
            for state in ("running", "starting", "queued")
            for job in client.get("/jobs", state=state, page_size=100)["items"]
        ]
        if len(active) < RUNNING_JOBS:
            request = self._next_job()
            gpus = min(request["gpus"], 2)
            client.post(
                "/jobs",
                {
                    **request,
                    "gpus": gpus,
                    "cpus": 4.0 * gpus,
                    "memory_bytes": 24 * gpus * GIB,
                    "max_gpu_hour_price": MAX_GPU_HOUR_PRICE,
                },
            )


def open_market(sessions: SessionFactory, currency: str, *, now: datetime) -> bool:
    """Make offers, contracts and past jobs, unless they exist; return whether the market is open.

    Args:
        sessions: of the database.
        currency: of the portal.
        now: the current time.
    """
    with transaction(sessions) as session:
        appliances = {
            row.appliance: _appliance(session, row.tenant, row.appliance) for row in OFFERS
        }
        if not all(appliances.values()):
            return False
        if session.scalar(select(Offer.id).limit(1)):
            return True
        began_at = now - PAST
        scopes = {
            slug: admin_scope(session, Tenant.slug == slug)
            for slug in ("acme", "globex", "initech", "hooli")
        }
        made = []
        for row in OFFERS:
            appliance = appliances[row.appliance]
            if appliance is None:  # never: all are there
                return False
            _backdate(session, appliance, began_at)
            offer = _publish(session, scopes[row.tenant], row, currency, now=began_at)
            contract = take_offer(
                session,
                scopes[row.customer],
                offer.id,
                terms_hash=terms_hash(offer.decoded_terms),
                now=began_at,
            )
            jobs = list(rented_jobs(appliance, began_at, now, seed=row.name))
            add_past_jobs(
                session,
                scopes[row.customer],
                appliance.id,
                jobs,
                now=now,
                contract_id=contract.id,
            )
            rate(session, scopes[row.customer], contract.id, row.rating, now=now)
            made.append(offer)
        # Something to answer.
        terms = Terms(currency=currency, **{**OFFERS[0].terms, "price": Decimal("1.70")})
        note = "We would rent at night only. Is a lower price possible?"
        propose_contract(session, scopes["hooli"], made[0].id, terms, note, now=now)
    return True


def rented_jobs(
    appliance: Appliance, start_at: datetime, end_at: datetime, *, seed: str
) -> Iterator[PastJob]:
    """Yield a job on most days, which never use a GPU at the same time."""
    numbers = random.Random(seed)  # noqa: S311 - not for security
    uuids = [gpu["uuid"] for gpu in appliance.inventory.get("gpus", [])]
    trainings = [job for job in JOBS if not job.exit_code]
    began_at = start_at + timedelta(hours=1)
    while uuids and began_at + timedelta(hours=JOB_HOURS[1]) < end_at:
        template = numbers.choice(trainings)
        gpus = uuids[: min(len(uuids), numbers.choice(template.gpus))]
        seconds = numbers.randint(3600 * JOB_HOURS[0], 3600 * JOB_HOURS[1])
        if numbers.random() < 0.8:  # noqa: PLR2004 - of the days
            yield PastJob(
                id=new_id(),
                name=f"{template.name}-{numbers.randint(100, 999)}",
                kind=JobKind.BATCH,
                image=template.image,
                command=template.command,
                gpu_uuids=gpus,
                cpus=4.0 * len(gpus),
                memory_bytes=24 * len(gpus) * GIB,
                submitted_at=began_at - timedelta(minutes=1),
                started_at=began_at,
                finished_at=began_at + timedelta(seconds=seconds),
                state=JobState.SUCCEEDED,
            )
        began_at += timedelta(days=1)


def _backdate(session: Session, appliance: Appliance, began_at: datetime) -> None:
    """Let an appliance be there since its first past job, so that fleet advice has weeks."""
    appliance.enrolled_at = began_at
    details = {"before": ApplianceState.ENROLLED.value, "after": ApplianceState.ONLINE.value}
    add_event(session, appliance, EventKind.STATE, "Now online", now=began_at, details=details)


def _publish(
    session: Session, scope: Scope, row: DemoOffer, currency: str, *, now: datetime
) -> Offer:
    request = OfferRequest(
        name=row.name,
        description=row.description,
        appliance_ids=[row.appliance],
        terms=Terms(currency=currency, **row.terms),
    )
    offer = create_offer(session, scope, request, now=now, currency=currency)
    set_offer_state(session, scope, offer.id, OfferState.PUBLISHED, now=now)
    # It was published long ago, and is on offer now until its first challenge has run.
    covered = Verification.tenant_id == offer.tenant_id
    session.execute(update(Verification).where(covered).values(grace_until=now + PAST + GRACE))
    return offer


def _appliance(session: Session, slug: str, name: str) -> Appliance | None:
    statement = select(Appliance).join(Tenant).where(Tenant.slug == slug, Appliance.name == name)
    return session.scalars(statement).unique().one_or_none()


def admin_scope(session: Session, is_tenant: ColumnElement[bool]) -> Scope:
    """Return the scope of the first admin of the tenant that meets a condition."""
    statement = (
        select(User.id, Tenant.id)
        .join(Membership, Membership.user_id == User.id)
        .join(Tenant, Tenant.id == Membership.tenant_id)
        .where(is_tenant, Membership.role == Role.ADMIN)
        .order_by(User.id)
        .limit(1)
    )
    user_id, tenant_id = session.execute(statement).one()
    return Scope(user_id=user_id, role=Role.ADMIN, tenant_id=tenant_id)
