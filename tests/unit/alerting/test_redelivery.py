"""Notifications that a user sends again."""

from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from alerting.notification.undelivered import redeliver
from alerting.states import NotificationState
from core.errors import ConflictError, ForbiddenError, NotFoundError
from tenants.models import Role
from tests.cast import NOON, Cast, scope_of


def notification(session: Session, cast: Cast, state: NotificationState) -> Notification:
    row = Notification(
        tenant_id=cast.acme.id,
        address="ops@acme.example",
        group_key="group",
        payload={"kind": "notice"},
        state=state,
        tries=7,
        sent_at=NOON if state is NotificationState.SENT else None,
        next_try_at=NOON,
        created_at=NOON,
    )
    session.add(row)
    session.flush()
    return row


@pytest.mark.parametrize("state", [NotificationState.SENT, NotificationState.FAILED])
def test_a_finished_notification_waits_again_outside_its_group(
    session: Session, cast: Cast, state: NotificationState
) -> None:
    delivered = notification(session, cast, state)
    redelivered = redeliver(session, scope_of(cast.bob), delivered.id, now=NOON)
    assert redelivered.id == delivered.id
    assert (redelivered.state, redelivered.tries, redelivered.sent_at) == (
        NotificationState.WAITING,
        0,
        None,
    )
    assert redelivered.group_key == ""


@pytest.mark.parametrize(
    "state",
    [NotificationState.WAITING, NotificationState.SILENCED, NotificationState.SUPPRESSED],
)
def test_an_unfinished_notification_is_left_alone(
    session: Session, cast: Cast, state: NotificationState
) -> None:
    undelivered = notification(session, cast, state)
    with pytest.raises(ConflictError):
        redeliver(session, scope_of(cast.bob), undelivered.id, now=NOON)
    assert (undelivered.state, undelivered.tries) == (state, 7)


def test_a_viewer_and_another_tenant_may_not_redeliver(session: Session, cast: Cast) -> None:
    delivered = notification(session, cast, NotificationState.SENT)
    with pytest.raises(ForbiddenError):
        redeliver(session, replace(scope_of(cast.bob), role=Role.VIEWER), delivered.id, now=NOON)
    with pytest.raises(NotFoundError):
        redeliver(session, scope_of(cast.charlie), delivered.id, now=NOON)
