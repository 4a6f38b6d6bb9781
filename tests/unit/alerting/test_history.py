"""The history of all alerts, with its filters, and the notifications about one alert."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertTransition
from alerting.notification.models import Notification
from alerting.notification.receivers import list_notifications
from alerting.rules.history import HistoryFilter, list_history
from alerting.rules.service import create_rule, list_alerts
from alerting.states import AlertState, NotificationState, Severity
from tests.cast import NOON, Cast, scope_of
from tests.unit.alerting.helpers import HOT


@pytest.fixture
def alerts(session: Session, cast: Cast) -> dict[str, Alert]:
    """An alert on each of two appliances of acme, each fired at noon and resolved at one."""
    rule = create_rule(session, scope_of(cast.bob), HOT, now=NOON)
    alerts_by_name = {}
    for name, severity in (("a1", Severity.WARNING), ("a2", Severity.CRITICAL)):
        alert = Alert(
            rule_id=rule.id,
            tenant_id=rule.tenant_id,
            group_key=name,
            tags={"appliance": name, "gpu": "0"},
            state=AlertState.RESOLVED,
            severity=severity,
            observed_at=NOON,
            updated_at=NOON,
        )
        session.add(alert)
        session.flush()
        for hour, before, after in (
            (0, AlertState.INACTIVE, AlertState.FIRING),
            (1, AlertState.FIRING, AlertState.RESOLVED),
            (2, AlertState.RESOLVED, AlertState.PENDING),
        ):
            session.add(
                AlertTransition(
                    alert_id=alert.id,
                    tenant_id=alert.tenant_id,
                    from_state=before,
                    to_state=after,
                    severity=severity,
                    value=91.0,
                    at=NOON + timedelta(hours=hour),
                )
            )
        alerts_by_name[name] = alert
    session.flush()
    return alerts_by_name


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (HistoryFilter(), ["a2 resolved", "a1 resolved", "a2 firing", "a1 firing"]),
        (HistoryFilter(appliance_id="a1"), ["a1 resolved", "a1 firing"]),
        (HistoryFilter(severity=Severity.CRITICAL), ["a2 resolved", "a2 firing"]),
        (HistoryFilter(to_states=(AlertState.PENDING,), appliance_id="a2"), ["a2 pending"]),
        (HistoryFilter(until=NOON + timedelta(hours=1)), ["a2 firing", "a1 firing"]),
        (HistoryFilter(since=NOON + timedelta(hours=1)), ["a2 resolved", "a1 resolved"]),
        (HistoryFilter(rule_id="other"), []),
    ],
)
@pytest.mark.usefixtures("alerts")
def test_the_history_is_filtered_newest_first(
    session: Session, cast: Cast, wanted: HistoryFilter, expected: list[str]
) -> None:
    page = list_history(session, scope_of(cast.bob), wanted)
    assert [
        f"{transition.alert.tags['appliance']} {transition.to_state}" for transition in page.items
    ] == expected
    assert page.total == len(expected)


def test_alerts_of_one_appliance_or_severity_are_listed(
    session: Session, cast: Cast, alerts: dict[str, Alert]
) -> None:
    scope = scope_of(cast.bob)
    assert list_alerts(session, scope, appliance_id="a1").items == [alerts["a1"]]
    assert list_alerts(session, scope, severity=Severity.CRITICAL).items == [alerts["a2"]]
    assert list_alerts(session, scope, appliance_id="a").items == []


def test_another_tenant_sees_no_history(
    session: Session, cast: Cast, alerts: dict[str, Alert]
) -> None:
    assert list_history(session, scope_of(cast.charlie), HistoryFilter()).total == 0
    assert list_notifications(session, scope_of(cast.charlie), alert_id=alerts["a1"].id).total == 0


def test_the_notifications_are_those_of_the_alert_newest_first(
    session: Session, cast: Cast, alerts: dict[str, Alert]
) -> None:
    notifications = [
        Notification(
            tenant_id=cast.acme.id,
            alert_id=alerts[name].id,
            address="ops@acme.example",
            state=NotificationState.SENT,
            next_try_at=NOON,
            created_at=NOON,
        )
        for name in ("a1", "a2", "a1")
    ]
    for notification in notifications:
        session.add(notification)
        session.flush()
    page = list_notifications(session, scope_of(cast.bob), alert_id=alerts["a1"].id)
    assert [listed.id for listed in page.items] == [notifications[2].id, notifications[0].id]
