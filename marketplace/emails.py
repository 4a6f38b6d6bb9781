"""Emails to the admins of a tenant about what the other side, or the operator, did."""

from datetime import datetime

from sqlalchemy.orm import Session

from alerting.notification.notices import add_notice
from alerting.notification.quota_emails import admin_addresses


def email_admins(
    session: Session, tenant_id: str, *, subject: str, text: str, link: str, now: datetime
) -> None:
    """Add an email to each admin of a tenant to the outbox.

    Args:
        session: the session.
        tenant_id: the tenant.
        subject: the subject.
        text: what happened, and what to do.
        link: the page about it; "" if no mail server is configured, then nothing is sent.
        now: the time.
    """
    if not link:
        return
    payload = {"subject": subject, "text": text, "link": link, "link_name": "Marketplace"}
    for address in admin_addresses(session, tenant_id):
        add_notice(session, tenant_id, payload, address=address, now=now)
