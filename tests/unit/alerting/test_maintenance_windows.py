"""Maintenance windows: each occurrence is a silence, in the window's time zone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert, Silence
from alerting.notification.maintenance_windows import (
    WindowRequest,
    add_occurrences,
    create_window,
    delete_window,
    get_window,
    list_windows,
    update_window,
)
from alerting.notification.models import Notification
from alerting.notification.silences import (
    active_silences,
    expire_silence,
    labels_of_silences,
    silenced_until,
    silences_by_alert,
)
from alerting.rules.service import create_rule
from alerting.states import AlertState, Severity
from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import Appliance, Role, Tenant
from tenants.scope import Scope
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.unit.alerting.helpers import PAYLOAD, hot

HOUR = timedelta(hours=1)
# NOON is a Monday.
SUNDAYS = WindowRequest(
    name="Updates",
    matchers=["label.rack=b12"],
    schedule="0 22 * * 0",
    duration_seconds=4 * 3600.0,
    time_zone="Europe/Oslo",
)


def silences(session: Session) -> list[tuple[datetime, datetime]]:
    order = select(Silence).order_by(Silence.starts_at, Silence.id)
    return [(silence.starts_at, silence.ends_at) for silence in session.scalars(order).unique()]


def sunday(month: int, day: int, hour: int) -> tuple[datetime, datetime]:
    start = datetime(2026, month, day, hour, tzinfo=UTC)
    return start, start + 4 * HOUR


def test_the_next_occurrence_is_made_when_one_begins_also_after_a_gap(
    session: Session, cast: Cast
) -> None:
    window = create_window(session, scope_of(cast.bob), SUNDAYS, now=NOON)
    first, second = sunday(3, 8, 21), sunday(3, 15, 21)
    assert silences(session) == [first]
    assert add_occurrences(session, now=first[0] - HOUR) == 0
    assert add_occurrences(session, now=first[0]) == 1
    assert add_occurrences(session, now=first[0]) == 0
    assert silences(session) == [first, second]
    # Nobody was there on March 15th and 22nd; on the 29th the clocks have changed.
    session.refresh(window)
    during = datetime(2026, 3, 29, 21, tzinfo=UTC)
    assert add_occurrences(session, now=during) == 2
    assert silences(session)[2:] == [sunday(3, 29, 20), sunday(4, 5, 20)]


def test_an_occurrence_that_goes_on_applies_at_once_and_ends_with_its_window(
    session: Session, cast: Cast
) -> None:
    bob = scope_of(cast.bob)
    during = sunday(3, 8, 21)[0] + HOUR
    window = create_window(session, bob, SUNDAYS, now=during)
    assert silences(session) == [sunday(3, 8, 21), sunday(3, 15, 21)]
    (active,) = active_silences(session, now=during)
    expire_silence(session, bob, active.id, now=during)
    assert add_occurrences(session, now=during + HOUR) == 0

    shorter = WindowRequest(
        name="Updates", matchers=["rule=x"], schedule=SUNDAYS.schedule, duration_seconds=3 * 3600
    )
    update_window(session, bob, window.id, shorter, now=during)
    assert [silence.matchers for silence in active_silences(session, now=during)] == [["rule=x"]]
    delete_window(session, bob, window.id, now=during)
    assert active_silences(session, now=during) == []
    assert all(end <= during for _, end in silences(session))


def test_alerts_of_appliances_with_the_label_are_silenced(session: Session, cast: Cast) -> None:
    bob, during = scope_of(cast.bob), sunday(3, 8, 21)[0]
    create_window(session, bob, SUNDAYS, now=during)
    acme = session.get_one(Tenant, cast.acme.id)
    racked, other = (make_appliance(session, acme, name) for name in ("a", "b"))
    racked.labels = {"rack": "b12"}
    rule = create_rule(session, bob, hot(), now=NOON)
    alerts = [alert(session, rule.id, appliance) for appliance in (racked, other)]
    silences_of = silences_by_alert(session, bob, alerts, now=during)
    assert [len(silences_of[silenced_alert.id]) for silenced_alert in alerts] == [1, 0]
    active = active_silences(session, now=during)
    for appliance, until in ((racked, during + 4 * HOUR), (other, None)):
        about = Notification(tenant_id=acme.id, payload=PAYLOAD | {"appliance_id": appliance.id})
        assert silenced_until(about, active, labels_of_silences(session, active)) == until


def alert(session: Session, rule_id: str, appliance: Appliance) -> Alert:
    row = Alert(
        rule_id=rule_id,
        tenant_id=appliance.tenant_id,
        group_key=appliance.id,
        tags={"appliance": appliance.id},
        state=AlertState.FIRING,
        severity=Severity.WARNING,
        observed_at=NOON,
        updated_at=NOON,
    )
    session.add(row)
    session.flush()
    return row


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"matchers": ["rule"]}, "matchers"),
        ({"schedule": "every day"}, "schedule"),
        ({"schedule": "0 0 31 2 *"}, "schedule"),
        ({"schedule": "0 * * * *"}, "schedule"),
        ({"time_zone": "Mars"}, "time_zone"),
        ({"duration_seconds": 1}, "duration_seconds"),
        ({"duration_seconds": float("inf")}, "duration_seconds"),
        ({"duration_seconds": -1e17}, "duration_seconds"),
    ],
)
def test_what_is_wrong_is_reported_by_field(
    session: Session, cast: Cast, changes: dict[str, Any], field: str
) -> None:
    values = {name: getattr(SUNDAYS, name) for name in SUNDAYS.__slots__} | changes
    with pytest.raises(InvalidInputError) as caught:
        create_window(session, scope_of(cast.bob), WindowRequest(**values), now=NOON)
    assert set(caught.value.errors) == {field}


def test_windows_are_their_tenants_and_change_by_members(session: Session, cast: Cast) -> None:
    window = create_window(session, scope_of(cast.bob), SUNDAYS, now=NOON)
    with pytest.raises(InvalidInputError, match="already exists"):
        create_window(session, scope_of(cast.bob), SUNDAYS, now=NOON)
    charlie = scope_of(cast.charlie)
    assert list_windows(session, charlie).items == []
    with pytest.raises(NotFoundError):
        get_window(session, charlie, window.id)
    viewer = Scope(user_id=cast.bob.id, role=Role.VIEWER, tenant_id=cast.acme.id)
    with pytest.raises(ForbiddenError):
        delete_window(session, viewer, window.id, now=NOON)
