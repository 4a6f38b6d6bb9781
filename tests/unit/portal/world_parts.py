"""Appliances, jobs and other parts of which tests make a world, or take some of."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.rule_request import RuleRequest
from core.ids import new_id
from dash_app.custom.panels import Panel
from jobqueue.advice.models import AdviceDismissal, FleetAdvice
from jobqueue.advice.runner import totals_of
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.images.models import Image
from jobqueue.jobs.shown import shown_job
from jobqueue.models import Job
from jobqueue.queue.service import submit_job
from jobqueue.simulation.models import SimulationState
from marketplace.charges.models import LineKind
from marketplace.consequences.models import Appeal
from marketplace.invoices.items import Item, encoded
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.prices.models import PriceList
from marketplace.prices.service import PriceListRequest, PriceRow, create_price_list
from protocol.attempts import AttemptObservation, ObservedState
from protocol.job_spec import JobRequest
from tenants.models import (
    Appliance,
    ApplianceCertificate,
)
from tenants.pki.certificates import Issuer, issue_certificate
from tests.cast import BOX, Cast, make_appliance, scope_of
from tests.fixtures.signing_requests import signing_request
from tests.unit.jobqueue.advice_builders import ADDITION, SHORT, figures
from tests.unit.jobqueue.builders import append_log, dispatch

GIB = 1024**3


def inventory(host: str = "dgx", gpus: int = 2) -> dict[str, Any]:
    return {
        "hostname": host,
        "cpu_count": 64,
        "memory_bytes": 512 * GIB,
        "gpus": [
            {
                "index": index,
                "uuid": f"GPU-{host}-{index}",
                "model": "H100 80GB",
                "memory_bytes": 80 * GIB,
            }
            for index in range(gpus)
        ],
        "executors": ["simulated"],
    }


def add_appliance(session: Session, cast: Cast, name: str, *, now: datetime) -> Appliance:
    return make_appliance(session, cast.acme, name, now=now, inventory=inventory(name))


def run_job(session: Session, cast: Cast, *, now: datetime, log: bytes = b"") -> Job:
    """Submit a job of bob's, place it and let its appliance report that it runs."""
    request = JobRequest(name="train", image="acme/train:1", command=["python", "train.py"], gpus=1)
    job = submit_job(session, scope_of(cast.bob), request, box=BOX, now=now)
    dispatch(session, now=now)
    session.refresh(job)
    attempt = job.attempt
    assert attempt is not None
    seen = AttemptObservation(attempt_id=attempt.id, state=ObservedState.RUNNING)
    apply_report(session, attempt.appliance_id, [seen], now=now)
    if log:
        append_log(session, attempt, log)
    session.flush()
    session.refresh(job)
    return shown_job(session, job)


def make_certificate(
    session: Session, appliance: Appliance, *, now: datetime
) -> ApplianceCertificate:
    issuer = Issuer(BOX, timedelta(days=7))
    issue_certificate(session, issuer, appliance, csr=signing_request(), now=now)
    return session.scalars(select(ApplianceCertificate)).one()


def add_image(
    session: Session, tenant_id: str | None, repository: str, *, tag: str = "1", now: datetime
) -> Image:
    """Add an image of a tenant, or a shared one, as if it had been pushed."""
    image = Image(
        tenant_id=tenant_id,
        repository=repository,
        tag=tag,
        digest=f"sha256:{repository.encode().hex():0<64}",
        media_type="application/vnd.oci.image.manifest.v1+json",
        size_bytes=3_000_000,
        layers=[{"digest": f"sha256:{1:064}", "size_bytes": 2_999_000}],
        pushed_by="bob@acme.example",
        pushed_at=now,
    )
    session.add(image)
    session.flush()
    return image


def hot_gpu_rule(**changes: Any) -> RuleRequest:  # noqa: ANN401 - the rule's own fields
    values: dict[str, Any] = {
        "name": "GPU too hot",
        "measurement": "gpu",
        "field": "temperature_celsius",
        "group_by": ["appliance", "gpu"],
        "warning_threshold": 85.0,
    }
    return RuleRequest(**{**values, **changes})


def add_price_list(session: Session, cast: Cast, *, now: datetime) -> PriceList:
    """Add prices of acme's."""
    request = PriceListRequest(prices=[PriceRow("2.45", "H100")])
    return create_price_list(session, scope_of(cast.alice), request, now=now)


def add_document(session: Session, cast: Cast, *, now: datetime) -> BillingDocument:
    """Add an invoice of acme's, with an item."""
    amounts = dict.fromkeys(("net", "total"), Decimal("2.45"))
    amounts |= dict.fromkeys(("tax_percent", "tax", "fee_percent", "fee", "prepaid"), Decimal(0))
    item = Item(number=1, month="2026-02", kind=LineKind.USAGE, amount=Decimal("2.45"))
    document = BillingDocument(
        kind=DocumentKind.INVOICE,
        tenant_id=cast.acme.id,
        tenant_name=cast.acme.name,
        month_at=datetime(2026, 2, 1, tzinfo=UTC),
        number="INV-2026-00001",
        currency="EUR",
        issued_at=now,
        issuer="",
        party={},
        items=encoded([item]),
        **amounts,
    )
    session.add(document)
    session.flush()
    return document


def add_advice(session: Session, cast: Cast, *, now: datetime) -> AdviceDismissal:
    """Add figures of acme's fleet, and a dismissal of the advice that follows from them."""
    stored = figures(SHORT, additions=[ADDITION], replayed_since=now)
    advice = FleetAdvice(
        tenant_id=cast.acme.id,
        state=SimulationState.SUCCEEDED,
        requested_at=now,
        finished_at=now,
        computed_at=now,
        figures=msgspec.json.encode(stored).decode(),
        **totals_of(stored),
    )
    dismissal = AdviceDismissal(
        tenant_id=cast.acme.id,
        advice_key=f"short:{SHORT.gpu_model}",
        dismissed_at=now,
        dismissed_until=now + timedelta(days=30),
    )
    session.add_all([advice, dismissal])
    session.flush()
    return dismissal


POWER = Panel(title="Power", measurement="gpu", fields=["power_watts"])


def add_appeal(session: Session, cast: Cast, *, now: datetime) -> Appeal:
    """Add an appeal of acme against a suspension that is over."""
    appeal = Appeal(
        tenant_id=cast.acme.id,
        suspension_id=new_id(),
        text="Our carrier was down.",
        created_by=cast.alice.email,
        created_at=now,
    )
    session.add(appeal)
    session.flush()
    return appeal
