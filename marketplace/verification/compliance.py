"""Compliance facts of offers that are about to expire."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from marketplace.emails import email_admins
from marketplace.models import Offer
from marketplace.states import OfferState
from tenants.models import ComplianceNotice

WARN_BEFORE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class ExpiringFact:
    """A fact of an offer that has expired, or soon will."""

    offer_id: str
    offer_name: str
    name: str
    valid_until: date

    def has_expired(self, today: date) -> bool:
        """Return whether it is left out of the catalogue."""
        return self.valid_until < today


def expiring_facts(offers: Sequence[Offer], today: date) -> list[ExpiringFact]:
    """Return the facts of offers that have expired or will within 30 days, by date."""
    facts = [
        ExpiringFact(offer.id, offer.name, fact.name, date.fromisoformat(fact.valid_until))
        for offer in offers
        if offer.state is not OfferState.WITHDRAWN
        for fact in offer.decoded_terms.facts
        if fact.valid_until
    ]
    soon = [fact for fact in facts if fact.valid_until < today + WARN_BEFORE]
    return sorted(soon, key=lambda fact: (fact.valid_until, fact.offer_name, fact.name))


def notify_expiring(session: Session, mail_url: str, *, now: datetime) -> int:
    """Email providers once about each fact that will expire; return how many emails there were."""
    published = select(Offer).where(Offer.state.in_([OfferState.PUBLISHED, OfferState.PAUSED]))
    by_tenant: dict[str, list[Offer]] = {}
    for offer in session.scalars(published):
        by_tenant.setdefault(offer.tenant_id, []).append(offer)
    sent = 0
    for tenant_id, offers in by_tenant.items():
        notices = select(ComplianceNotice).where(ComplianceNotice.tenant_id == tenant_id)
        before = {(row.fact, row.valid_until) for row in session.scalars(notices)}
        for fact in expiring_facts(offers, now.date()):
            key = (fact.name, fact.valid_until.isoformat())
            if key in before or fact.has_expired(now.date()):
                continue
            before.add(key)
            session.add(
                ComplianceNotice(tenant_id=tenant_id, fact=key[0], valid_until=key[1], sent_at=now)
            )
            email_admins(
                session,
                tenant_id,
                subject=f"{fact.name} expires on {key[1]}",
                text=f"The offer {fact.offer_name!r} states {fact.name} until {key[1]}. Then the "
                "catalogue leaves it out. Change the offer once you have the new certificate.",
                link=mail_url and f"{mail_url}/provider/offers/{fact.offer_id}",
                now=now,
            )
            sent += 1
    return sent
