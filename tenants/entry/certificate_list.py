"""Agents' certificates as people look at them: what each is worth, and lists of them."""

from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.models import Appliance, ApplianceCertificate
from tenants.permissions import Permission
from tenants.scope import Scope

CERTIFICATE_SORTS: Columns = {
    "issued_at": ApplianceCertificate.issued_at,
    "not_after": ApplianceCertificate.not_after,
    "revoked_at": ApplianceCertificate.revoked_at,
}

# Agents renew after two thirds of the lifetime.
OVERDUE_RATIO = 0.25


class CertificateState(StrEnum):
    """What a certificate is worth at a time; an overdue one should have been renewed long ago."""

    NEW = "not used yet"
    IN_FORCE = "in force"
    OVERDUE = "overdue"
    EXPIRED = "expired"
    REPLACED = "replaced"
    REVOKED = "revoked"


def state_of(certificate: ApplianceCertificate, *, now: datetime) -> CertificateState:
    """Return what a certificate is worth now."""
    one = certificate
    if one.revoked_at is not None:
        return CertificateState.REVOKED
    if one.replaced_at is not None:
        return CertificateState.REPLACED
    if one.not_after <= now:
        return CertificateState.EXPIRED
    if one.first_used_at is None:
        return CertificateState.NEW
    is_overdue = one.not_after - now < (one.not_after - one.issued_at) * OVERDUE_RATIO
    return CertificateState.OVERDUE if is_overdue else CertificateState.IN_FORCE


def newest_certificate(
    session: Session, scope: Scope, appliance_id: str
) -> ApplianceCertificate | None:
    """Return the certificate that an appliance's agent shows, or was given last; None without."""
    page = list_certificates(session, scope, appliance_id, page_size=10)
    in_use = [one for one in page.items if one.first_used_at and not one.replaced_at]
    return next(iter([*in_use, *page.items]), None)


def list_certificates(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ApplianceCertificate]:
    """Return the certificates of an appliance, the newest first."""
    scope.require(Permission.VIEW)
    scope.get(session, Appliance, appliance_id, kind="appliance")
    statement = select(ApplianceCertificate).where(
        ApplianceCertificate.appliance_id == appliance_id
    )
    newest_first = statement.order_by(ApplianceCertificate.id.desc())
    return paginate(
        session,
        sorted_by(newest_first, sort, CERTIFICATE_SORTS, last=ApplianceCertificate.id),
        number=page,
        size=page_size,
    )


def expiring_certificates(
    session: Session,
    scope: Scope,
    *,
    within: timedelta,
    now: datetime,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ApplianceCertificate]:
    """Return the certificates in force that run out soon or have: their agents did not renew them.

    Appliances that are out of service are left out.
    """
    scope.require(Permission.VIEW)
    statement = (
        scope.select(select(ApplianceCertificate), ApplianceCertificate)
        .join(Appliance, Appliance.id == ApplianceCertificate.appliance_id)
        .where(
            ApplianceCertificate.not_after <= now + within,
            ApplianceCertificate.first_used_at.is_not(None),
            ApplianceCertificate.replaced_at.is_(None),
            ApplianceCertificate.revoked_at.is_(None),
            Appliance.revoked_at.is_(None),
            Appliance.retired_at.is_(None),
        )
        .order_by(ApplianceCertificate.not_after, ApplianceCertificate.id)
    )
    return paginate(
        session,
        sorted_by(statement, sort, CERTIFICATE_SORTS, last=ApplianceCertificate.id),
        number=page,
        size=page_size,
    )
