"""Letting certificates in: what one is worth when it is shown, and when it replaces another.

A new certificate takes the place of the others of its appliance when it is first *used*: before
that its agent may not have got it, and asks again with the old one. For `GRACE` after that the old
one is still taken, because connections and requests under way go on with it. Used later, it shows
that two agents have the same identity, and the appliance is fenced.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from tenants.entry.agents import lock_appliance, refusal_of
from tenants.entry.fencing import OLD_CERTIFICATE, fence_appliance
from tenants.models import Appliance, ApplianceCertificate

GRACE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a certificate lets its agent in, and until when; or the sentence why not."""

    until: datetime
    appliance: Appliance | None = None
    refusal: str = ""


def admit_certificate(session: Session, fingerprint: str, *, now: datetime) -> Admission:
    """Say whether the holder of a certificate may come in, and note that it is in use.

    A refusal is returned and not raised, because what led to it may have to be kept: the use of a
    certificate that was replaced fences its appliance.
    """
    found = session.scalars(
        select(ApplianceCertificate).where(ApplianceCertificate.fingerprint == fingerprint),
        execution_options={"populate_existing": True},
    ).first()
    if found is None:
        return Admission(now, refusal=_UNKNOWN)
    # Whoever changes which certificate is in force holds the appliance's row.
    appliance = lock_appliance(session, found.appliance_id)
    session.refresh(found)
    refusal = _refusal(found, appliance, now=now)
    if refusal:
        return Admission(now, refusal=refusal)
    if found.replaced_at is not None and now - found.replaced_at > GRACE:
        fence_appliance(session, appliance, reason=OLD_CERTIFICATE, now=now)
        return Admission(now, refusal=refusal_of(appliance))
    if found.first_used_at is None and found.replaced_at is None:
        _put_in_force(session, found, now=now)
    return Admission(good_until(found.not_after, found.replaced_at), appliance=appliance)


def good_until(not_after: datetime, replaced_at: datetime | None) -> datetime:
    """Return until when a certificate lets in that is not revoked."""
    return not_after if replaced_at is None else min(not_after, replaced_at + GRACE)


def _put_in_force(session: Session, certificate: ApplianceCertificate, *, now: datetime) -> None:
    certificate.first_used_at = now
    session.flush()
    one = ApplianceCertificate
    # A later one that was not used yet is on its way to the agent, and takes over in its turn.
    is_before = or_(one.id < certificate.id, one.first_used_at.is_not(None))
    session.execute(
        update(one)
        .where(
            one.appliance_id == certificate.appliance_id,
            one.id != certificate.id,
            one.replaced_at.is_(None),
            is_before,
        )
        .values(replaced_at=now)
    )


def _refusal(certificate: ApplianceCertificate, appliance: Appliance, *, now: datetime) -> str:
    if certificate.revoked_at is not None:
        return (
            f"The certificate of the appliance {appliance.name!r} was revoked. Enrol it again with "
            "a new enrolment token."
        )
    if certificate.not_after <= now:
        return (
            f"The certificate of the appliance {appliance.name!r} ran out at "
            f"{certificate.not_after:%Y-%m-%d %H:%M} UTC. Its agent renews it by itself; check the "
            "appliance's clock."
        )
    return refusal_of(appliance)


_UNKNOWN = "This certificate is unknown here. Enrol the appliance again with a new enrolment token."
