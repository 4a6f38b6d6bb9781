"""What a ticket is about: who is asked, under which contract, and what happened to it.

A provider sees of a customer's job what `jobqueue.rentals` shows of it: never its name, its reasons
or its messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, lazyload

from core.errors import InvalidInputError, NotFoundError
from jobqueue.models import Attempt, Job
from jobqueue.queue.service import get_job, job_events
from jobqueue.states import Reason
from marketplace.catalogue import published_offer
from marketplace.contracts.scope import read_contract, side_of
from marketplace.invoices.items import decoded
from marketplace.invoices.models import BillingDocument
from marketplace.invoices.service import get_document
from marketplace.models import Contract, Offer
from marketplace.service_levels.credits import describe
from marketplace.service_levels.service import breaches_of
from marketplace.states import Side
from marketplace.support.desk import Desk
from marketplace.support.models import SubjectKind, Ticket
from marketplace.support.states import Party
from tenants.fleet.appliances import get_appliance
from tenants.fleet.events import list_events
from tenants.scope import Scope

MAX_EVENTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a ticket is about, as it is opened.

    Attributes:
        name: for its owner.
        contract: with the other side, if there is one.
        provider_id: whom a customer may ask, if anybody but the operator.
        party: which the scope's tenant is.
    """

    name: str = ""
    contract: Contract | None = None
    provider_id: str | None = None
    provider_name: str = ""
    party: Party = Party.CUSTOMER


@dataclass(frozen=True, slots=True)
class SubjectEvent:
    """Something that happened to what a ticket is about."""

    at: datetime
    text: str


def find_subject(
    session: Session, scope: Scope, kind: SubjectKind, ident: str, *, desk: Desk
) -> Subject:
    """Return what a new ticket is about.

    Raises:
        InvalidInputError: it does not exist, or is another tenant's; both look the same.
    """
    if kind is SubjectKind.OTHER:
        if ident:
            message = "A ticket about something else has no subject_id; leave it empty."
            raise InvalidInputError(message, errors={"subject_id": [message]})
        return Subject()
    try:
        return _FINDERS[kind](session, scope, ident, desk)
    except NotFoundError as error:
        message = f"There is no {kind.value} {ident[:100]!r} here. Use its ID."
        raise InvalidInputError(message, errors={"subject_id": [message]}) from error


def subject_events(
    session: Session, scope: Scope, ticket: Ticket, *, party: Party
) -> list[SubjectEvent]:
    """Return the last events of a ticket's subject that a party may see, the newest first."""
    try:
        events = sorted(
            _events(session, scope, ticket, party), key=lambda event: event.at, reverse=True
        )
    except NotFoundError:  # it is gone
        return []
    return events[:MAX_EVENTS]


def _events(session: Session, scope: Scope, ticket: Ticket, party: Party) -> Iterator[SubjectEvent]:
    kind, ident = ticket.subject_kind, ticket.subject_id
    is_owner = party is not Party.PROVIDER or ticket.provider_id == ticket.tenant_id
    if kind is SubjectKind.JOB:
        if party is Party.PROVIDER:
            yield from _rented_events(session, scope, ident)
        else:
            for event in job_events(session, scope, ident):
                why = "" if event.reason is Reason.NONE else f": {event.reason.value}"
                text = f"Job {event.state.value}{why}".replace("_", " ")
                yield SubjectEvent(event.at, f"{text}. {event.message}".removesuffix(". "))
    elif kind is SubjectKind.APPLIANCE and is_owner:
        page = list_events(session, scope, ident, page_size=MAX_EVENTS)
        yield from (SubjectEvent(event.at, event.message) for event in page.items)
    elif kind is SubjectKind.CONTRACT:
        yield from _contract_events(session, scope, ident)
    elif kind is SubjectKind.INVOICE:
        # The other side knows the number alone: its statement is another document.
        document = session.get(BillingDocument, ident)
        if document is not None:
            yield SubjectEvent(document.issued_at, f"{document.title} {document.number} issued")


def _rented_events(session: Session, scope: Scope, job_id: str) -> Iterator[SubjectEvent]:
    """Yield what a provider sees of a job: the times of its attempts on its own appliances."""
    for attempt in session.scalars(_rented_attempts(job_id, scope.require_tenant())):
        number = f"Attempt {attempt.number}"
        for at, text in (
            (attempt.assigned_at, f"{number} assigned to {len(attempt.gpu_uuids)} GPUs"),
            (attempt.started_at, f"{number} started"),
            (attempt.finished_at, f"{number} {attempt.state.value}"),
        ):
            if at is not None:
                yield SubjectEvent(at, text)


def _contract_events(session: Session, scope: Scope, ident: str) -> Iterator[SubjectEvent]:
    contract = read_contract(session, scope, ident)
    yield SubjectEvent(contract.created_at, "Contract made")
    for version in contract.versions:
        if version.applies_from is not None:
            yield SubjectEvent(version.applies_from, f"Version {version.number} applies")
    if contract.noticed_at is not None and contract.noticed_by is not None:
        yield SubjectEvent(contract.noticed_at, f"Notice given by the {contract.noticed_by.value}")
    for breach in breaches_of(session, contract)[:MAX_EVENTS]:
        yield SubjectEvent(breach.detected_at, f"Service level: {describe(breach)}")


def _rented_attempts(job_id: str, provider_id: str) -> Select[Attempt]:
    contracts = select(Contract.id).where(Contract.provider_id == provider_id)
    return (
        select(Attempt)
        .where(Attempt.job_id == job_id, Attempt.contract_id.in_(contracts))
        .order_by(Attempt.id.desc())
        .limit(MAX_EVENTS)
        .options(lazyload("*"))
    )


def _job(session: Session, scope: Scope, ident: str, desk: Desk) -> Subject:
    job = session.get(Job, ident)
    if desk.has_marketplace and job is not None and scope.tenant_id not in {None, job.tenant_id}:
        attempt = session.scalars(_rented_attempts(ident, scope.require_tenant())).first()
        contract = None if attempt is None else session.get(Contract, attempt.contract_id)
        if contract is not None:
            return Subject(contract=contract, party=Party.PROVIDER)
    job = get_job(session, scope, ident)
    latest = (
        select(Contract)
        .join(Attempt, Attempt.contract_id == Contract.id)
        .where(Attempt.job_id == job.id)
        .order_by(Attempt.id.desc())
        .limit(1)
    )
    contract = session.scalars(latest).first() if desk.has_marketplace else None
    return _asking(job.name, contract)


def _appliance(session: Session, scope: Scope, ident: str, _desk: Desk) -> Subject:
    return Subject(name=get_appliance(session, scope, ident).name)


def _invoice(session: Session, scope: Scope, ident: str, desk: Desk) -> Subject:
    document = get_document(session, scope, ident)
    contracts = {item.contract_id for item in decoded(document.items)} - {""}
    contract = session.get(Contract, contracts.pop()) if len(contracts) == 1 else None
    is_customer = contract is not None and contract.customer_id == document.tenant_id
    return _asking(document.number, contract if desk.has_marketplace and is_customer else None)


def _contract(session: Session, scope: Scope, ident: str, desk: Desk) -> Subject:
    if not desk.has_marketplace:
        raise NotFoundError.of("contract", ident)
    contract = read_contract(session, scope, ident)
    if side_of(contract, scope) is Side.PROVIDER:
        return Subject(name=contract.offer_name, contract=contract, party=Party.PROVIDER)
    return _asking(contract.offer_name, contract)


def _offer(session: Session, scope: Scope, ident: str, desk: Desk) -> Subject:
    if not desk.has_marketplace:
        raise NotFoundError.of("offer", ident)
    offer = session.get(Offer, ident)
    if offer is not None and scope.owns(offer):
        return Subject(name=offer.name)
    published = published_offer(session, ident)
    owner_id = session.get_one(Offer, ident).tenant_id
    return Subject(name=published.name, provider_id=owner_id, provider_name=published.provider_name)


def _asking(name: str, contract: Contract | None) -> Subject:
    """Return a subject of a customer, whose contract is with a provider."""
    if contract is None:
        return Subject(name=name)
    return Subject(
        name=name,
        contract=contract,
        provider_id=contract.provider_id,
        provider_name=contract.provider_name,
    )


_FINDERS = {
    SubjectKind.JOB: _job,
    SubjectKind.APPLIANCE: _appliance,
    SubjectKind.INVOICE: _invoice,
    SubjectKind.CONTRACT: _contract,
    SubjectKind.OFFER: _offer,
}
