"""Corrections that operators enter: lines of their own, never changes of others."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.money import MAX_AMOUNT, ZERO, cents
from core.spec import About
from marketplace.charges.models import MAX_NOTE_LENGTH, BillingLine, LineKind
from marketplace.charges.service import add_line
from marketplace.models import Contract
from marketplace.prices.service import MAX_BACK, user_email
from tenants.auditing.recording import record
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_REFERENCE_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRequest:
    """A correction of what a contract, or a tenant's own use, cost."""

    amount: Annotated[Decimal, About("In cents; negative is in favor of who pays.")]
    note: Annotated[str, About("Why; both sides see it.")]
    reference: Annotated[str, About("What it is about, such as a ticket; unique.")]
    contract_id: Annotated[str, About("Of rented appliances.")] = ""
    tenant_id: Annotated[str, About("Without a contract: whose own use.")] = ""
    at: Annotated[datetime | None, About("The time that it corrects; null is now.")] = None


def correct(
    session: Session, scope: Scope, request: CorrectionRequest, *, now: datetime
) -> BillingLine:
    """Add a correction; operators only.

    Raises:
        InvalidInputError: with the errors by field.
        NotFoundError: there is no such contract or tenant.
        ConflictError: the reference was used before.
    """
    scope.require(Permission.OPERATE)
    errors = _errors(request, now=now)
    if errors:
        raise InvalidInputError(" ".join(map(" ".join, errors.values())), errors=errors)
    tenant_id, provider_id = request.tenant_id, None
    if request.contract_id:
        contract = session.get(Contract, request.contract_id)
        if contract is None:
            raise NotFoundError.of("contract", request.contract_id)
        tenant_id, provider_id = contract.customer_id, contract.provider_id
    elif session.get(Tenant, tenant_id) is None:
        raise NotFoundError.of("tenant", tenant_id)
    line = add_line(
        session,
        kind=LineKind.CORRECTION,
        tenant_id=tenant_id,
        provider_id=provider_id,
        contract_id=request.contract_id or None,
        at=request.at or now,
        amount=request.amount,
        source_id=f"correction:{request.reference.strip()}",
        note=request.note.strip(),
        created_by=user_email(session, scope),
        now=now,
    )
    if line is None:
        raise ConflictError(f"The reference {request.reference.strip()!r} was used before.")
    record(
        session,
        action="billing.corrected",
        target_kind="billing_line",
        target_id=line.id,
        target_name=request.reference.strip(),
        tenant_id=tenant_id,
        after={"amount": str(request.amount), "contract_id": request.contract_id},
        reason=line.note,
        now=now,
    )
    return line


def _errors(request: CorrectionRequest, *, now: datetime) -> dict[str, list[str]]:
    errors: dict[str, list[str]] = {}
    amount = request.amount
    if amount == ZERO or abs(amount) > MAX_AMOUNT or amount != cents(amount):
        errors["amount"] = [f"Enter an amount in cents up to {MAX_AMOUNT:,}, such as -12.50."]
    if not 0 < len(request.note.strip()) <= MAX_NOTE_LENGTH:
        errors["note"] = [f"Enter the reason, up to {MAX_NOTE_LENGTH} letters."]
    if not 0 < len(request.reference.strip()) <= MAX_REFERENCE_LENGTH:
        errors["reference"] = [f"Enter a reference, up to {MAX_REFERENCE_LENGTH} letters."]
    if bool(request.contract_id) == bool(request.tenant_id):
        errors["contract_id"] = ["Enter either a contract or, for own use, a tenant."]
    if request.at is not None and not now - MAX_BACK <= request.at <= now:
        errors["at"] = ["Enter a time of the last five years."]
    return errors
