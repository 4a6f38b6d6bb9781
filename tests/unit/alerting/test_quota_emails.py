"""A tenant's admins get an email that a quota is nearly used up."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.messages import render
from alerting.notification.models import Notification
from alerting.notification.quota_emails import email_admins
from alerting.states import NotificationState, ReceiverKind
from tenants.lifecycle.quota_warnings import Crossing
from tenants.models import FillingQuota, Membership
from tests.cast import NOON, Cast

URL = "https://portal.example"


def crossing(cast: Cast, quota: FillingQuota = FillingQuota.STORAGE) -> Crossing:
    return Crossing(
        tenant_id=cast.acme.id, quota=quota, level_percent=80, used=8 * 2**30, limit=10 * 2**30
    )


def test_each_admin_of_the_tenant_gets_one_email(session: Session, cast: Cast) -> None:
    assert email_admins(session, [crossing(cast)], public_url=URL, now=NOON) == 1
    email = session.scalars(select(Notification)).one()
    assert (email.address, email.state) == (cast.alice.email, NotificationState.WAITING)
    assert (email.destination.kind, email.destination.target) == (
        ReceiverKind.EMAIL,
        cast.alice.email,
    )


def test_a_deactivated_admin_gets_none(session: Session, cast: Cast) -> None:
    for membership in session.scalars(
        select(Membership).where(Membership.user_id == cast.alice.id)
    ):
        membership.is_active = False
    session.flush()
    assert email_admins(session, [crossing(cast)], public_url=URL, now=NOON) == 0


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        (FillingQuota.STORAGE, ("8 GiB of 10 GiB of storage", "Agents buffer")),
        (
            FillingQuota.SERIES,
            ("8,589,934,592 of 10,737,418,240 series", "new series are rejected"),
        ),
    ],
)
def test_the_email_has_the_usage_and_the_consequence(
    session: Session, cast: Cast, quota: FillingQuota, words: tuple[str, ...]
) -> None:
    email_admins(session, [crossing(cast, quota)], public_url=URL, now=NOON)
    message = render(session.scalars(select(Notification)).one())
    assert message.subject == f"Acme uses 80 % of its {quota.value} quota"
    for word in words:
        assert word in message.text
    assert f"{URL}/usage" in message.text
    assert f'href="{URL}/usage"' in message.html
