"""Revoking: what an agent proved with who it is, is refused from now on.

An appliance's *identity* is its agent's secret and its certificates. Where certificates are asked
for, the secret alone gets one as long as none was used; after that it is of no use without one. An
appliance that was off until its certificate ran out is let in again here, by an admin.
"""

from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError
from tenants.entry.agents import give_secret, lock_appliance
from tenants.entry.roll import shut_out
from tenants.fleet.events import EventKind, add_event, by_whom
from tenants.models import Appliance, ApplianceCertificate
from tenants.permissions import Permission
from tenants.scope import Scope

_MAX_REASON_LENGTH = 500


def revoke_certificate(
    session: Session, scope: Scope, certificate_id: str, *, reason: str = "", now: datetime
) -> ApplianceCertificate:
    """Refuse a certificate from now on.

    Where it is in force its agent's other proofs go with it, or the agent would come back with
    them: its secret, and certificates that it has not used yet. It must be enrolled again then.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    found = scope.get(session, ApplianceCertificate, certificate_id, kind="certificate")
    appliance = lock_appliance(session, found.appliance_id)
    session.refresh(found)
    if found.revoked_at is not None:
        return found
    if found.replaced_at is None:
        revoke_identity(session, appliance, reason=reason, now=now)
    else:
        _revoke(found, reason=reason, now=now)
    message = f"Certificate {found.serial} was revoked. {reason}".strip()
    add_event(session, appliance, "certificate_revoked", message, now=now)
    shut_out(session, appliance_id=appliance.id)
    session.flush()
    return found


def let_in_again(session: Session, scope: Scope, appliance_id: str, *, now: datetime) -> Appliance:
    """Let an agent whose certificate ran out get a new one by its secret, once.

    The certificate that ran out is revoked, so that the secret counts as on the first day: until
    the new certificate is used.

    Raises:
        ConflictError: no certificate of the appliance ran out.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    scope.get(session, Appliance, appliance_id, kind="appliance")
    appliance = lock_appliance(session, appliance_id)
    held = used_certificate(session, appliance_id)
    if held is None or held.not_after > now:
        raise ConflictError(
            f"No certificate of {appliance.name!r} ran out, so its agent needs not be let in "
            "again. If it has lost its certificate, enrol it again.",
            code="certificate_not_expired",
        )
    _revoke(held, reason="It ran out; the agent may get another by its secret.", now=now)
    message = "Let in again: its agent may get a certificate by its secret, until it uses one."
    add_event(session, appliance, EventKind.LET_IN, message, details=by_whom(session), now=now)
    session.flush()
    return appliance


def used_certificate(session: Session, appliance_id: str) -> ApplianceCertificate | None:
    """Return the certificate that an appliance's agent shows, run out or not; None without."""
    return session.scalars(
        select(ApplianceCertificate)
        .where(
            ApplianceCertificate.appliance_id == appliance_id,
            ApplianceCertificate.first_used_at.is_not(None),
            ApplianceCertificate.replaced_at.is_(None),
            ApplianceCertificate.revoked_at.is_(None),
        )
        .order_by(ApplianceCertificate.id.desc())
        .execution_options(populate_existing=True)
    ).first()


def revoke_identity(session: Session, appliance: Appliance, *, reason: str, now: datetime) -> None:
    """Take from an appliance's agent all that it could prove with who it is."""
    in_force = session.scalars(
        select(ApplianceCertificate).where(
            ApplianceCertificate.appliance_id == appliance.id,
            ApplianceCertificate.revoked_at.is_(None),
            or_(ApplianceCertificate.not_after > now, ApplianceCertificate.replaced_at.is_(None)),
        )
    )
    for one in in_force:
        _revoke(one, reason=reason, now=now)
    # Of the new secret nobody is told.
    give_secret(appliance)
    session.flush()


def _revoke(certificate: ApplianceCertificate, *, reason: str, now: datetime) -> None:
    certificate.revoked_at = now
    certificate.revocation_reason = reason[:_MAX_REASON_LENGTH]
