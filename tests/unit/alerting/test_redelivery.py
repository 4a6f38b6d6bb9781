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
    found = Notification(
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
    session.add(found)
    session.flush()
    return found


@pytest.mark.parametrize("state", [NotificationState.SENT, NotificationState.FAILED])
def test_one_that_is_done_waits_again_by_itself(
    session: Session, cast: Cast, state: NotificationState
) -> None:
    found = notification(session, cast, state)
    again = redeliver(session, scope_of(cast.bob), found.id, now=NOON)
    assert again.id == found.id
    assert (again.state, again.tries, again.sent_at) == (NotificationState.WAITING, 0, None)
    assert again.group_key == ""


@pytest.mark.parametrize(
    "state",
    [NotificationState.WAITING, NotificationState.SILENCED, NotificationState.SUPPRESSED],
)
def test_one_that_is_not_done_is_left_alone(
    session: Session, cast: Cast, state: NotificationState
) -> None:
    found = notification(session, cast, state)
    with pytest.raises(ConflictError):
        redeliver(session, scope_of(cast.bob), found.id, now=NOON)
    assert (found.state, found.tries) == (state, 7)


def test_a_viewer_and_another_tenant_may_not(session: Session, cast: Cast) -> None:
    found = notification(session, cast, NotificationState.SENT)
    with pytest.raises(ForbiddenError):
        redeliver(session, replace(scope_of(cast.bob), role=Role.VIEWER), found.id, now=NOON)
    with pytest.raises(NotFoundError):
        redeliver(session, scope_of(cast.charlie), found.id, now=NOON)
