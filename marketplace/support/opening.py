"""New tickets: who takes part, and how many a tenant may open."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, OverloadedError
from marketplace.accounts import account_of
from marketplace.support.desk import Desk
from marketplace.support.models import SubjectKind, Ticket
from marketplace.support.requests import TicketRequest
from marketplace.support.states import ACTIVE, Party, Recipient
from marketplace.support.subjects import Subject, find_subject
from tenants.models import Role, Tenant
from tenants.scope import Scope

# Of a tenant.
MAX_ACTIVE_TICKETS = 200
MAX_NEW_TICKETS_PER_DAY = 50


def sides_of(session: Session, scope: Scope, request: TicketRequest, desk: Desk) -> dict[str, Any]:
    """Return the columns that say who takes part in a new ticket.

    Raises:
        InvalidInputError: the subject does not exist here, or has nobody like the recipient.
    """
    if scope.tenant_id is None:
        return _of_operator(session, request, desk)
    if request.tenant_id:
        message = "Only an operator names the tenant. Leave tenant_id empty."
        raise InvalidInputError(message, errors={"tenant_id": [message]})
    subject = find_subject(
        session,
        scope,
        request.subject_kind,
        request.subject_id,
        desk=desk,
    )
    columns = {"tenant_id": scope.tenant_id, "subject_name": subject.name[:254]}
    if subject.party is Party.PROVIDER and request.recipient is not Recipient.OPERATOR:
        return columns | _between(subject) | {"requester": Party.PROVIDER}
    # Invoices are the portal's, also those for what providers rent out.
    is_portals = request.subject_kind is SubjectKind.INVOICE
    usual = Recipient.OPERATOR if is_portals else Recipient.PROVIDER
    asked = request.recipient or usual
    asks_provider = subject.provider_id is not None and asked is Recipient.PROVIDER
    if request.recipient is Recipient.PROVIDER and not asks_provider:
        kind = request.subject_kind.value
        message = f"This {kind} has no provider to ask. Ask the operator."
        raise InvalidInputError(message, errors={"recipient": [message]})
    own = session.get_one(Tenant, scope.tenant_id).name
    columns |= {"requester": Party.CUSTOMER, "customer_id": scope.tenant_id}
    if not asks_provider:
        return columns | {"customer_name": own, "has_operator": True}
    if subject.contract is not None:
        return columns | _between(subject)
    shown = account_of(session, scope.tenant_id).public_name or "another tenant"
    return columns | {
        "customer_name": shown,
        "provider_id": subject.provider_id,
        "provider_name": subject.provider_name,
    }


def _between(subject: Subject) -> dict[str, Any]:
    contract = subject.contract
    if contract is None:  # providers have contracts
        return {}
    return {
        "contract_id": contract.id,
        "customer_id": contract.customer_id,
        "customer_name": contract.customer_name,
        "provider_id": contract.provider_id,
        "provider_name": contract.provider_name,
    }


def _of_operator(session: Session, request: TicketRequest, desk: Desk) -> dict[str, Any]:
    """Return the same of a ticket that an operator opens with a tenant."""
    tenant = session.get(Tenant, request.tenant_id)
    if tenant is None:
        message = "Name the tenant that you write to by its ID."
        raise InvalidInputError(message, errors={"tenant_id": [message]})
    kind = request.subject_kind
    columns: dict[str, Any] = {
        "tenant_id": tenant.id,
        "customer_id": tenant.id,
        "customer_name": tenant.name,
        "has_operator": True,
        "requester": Party.OPERATOR,
    }
    if kind in {SubjectKind.CONTRACT, SubjectKind.OFFER}:
        message = "An operator's ticket is about a job, appliance, invoice or something else."
        raise InvalidInputError(message, errors={"subject_kind": [message]})
    as_tenant = Scope(user_id="", role=Role.ADMIN, tenant_id=tenant.id)
    subject = find_subject(session, as_tenant, kind, request.subject_id, desk=desk)
    return columns | {"subject_name": subject.name[:254]}


def check_room(session: Session, tenant_id: str, *, now: datetime) -> None:
    """Refuse more tickets of a tenant than the other sides could read.

    Raises:
        ConflictError: it has too many that are not solved.
        OverloadedError: it opened too many today.
    """
    active = select(func.count()).where(Ticket.tenant_id == tenant_id, Ticket.state.in_(ACTIVE))
    if (session.scalar(active) or 0) >= MAX_ACTIVE_TICKETS:
        raise ConflictError(
            f"There are {MAX_ACTIVE_TICKETS} tickets that are not solved. Solve one first."
        )
    recent = select(func.count()).where(
        Ticket.tenant_id == tenant_id, Ticket.created_at > now - timedelta(days=1)
    )
    if (session.scalar(recent) or 0) >= MAX_NEW_TICKETS_PER_DAY:
        raise OverloadedError(
            f"Your tenant opened {MAX_NEW_TICKETS_PER_DAY} tickets within a day. Try again later.",
            retry_after_seconds=3600,
        )
