"""Rules, alerts and receivers: who may see and change them, and what a change does to alerts."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertTransition, Rule
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.receivers import (
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    list_receivers,
    signing_key,
)
from alerting.rules.service import (
    alert_counts,
    alert_transitions,
    create_rule,
    delete_rule,
    get_alert,
    get_rule,
    list_alerts,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from alerting.states import AlertState, NotificationState, ReceiverKind, Severity
from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import Role
from tenants.scope import Scope
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.alerting.helpers import HOT, add_mail, hot


def alert(
    session: Session,
    rule: Rule,
    state: AlertState,
    *,
    gpu: str = "0",
    **columns: Any,  # noqa: ANN401
) -> Alert:
    row = Alert(
        rule_id=rule.id,
        tenant_id=rule.tenant_id,
        group_key=gpu,
        tags={"appliance": "a1", "gpu": gpu},
        state=state,
        severity=columns.pop("severity", Severity.WARNING),
        value=85.0,
        active_since_at=NOON,
        fired_at=NOON if state is AlertState.FIRING else None,
        observed_at=NOON,
        updated_at=NOON,
        **columns,
    )
    session.add(row)
    session.flush()
    return row


def delivered(session: Session, row: Alert, receiver_id: str) -> None:
    """The receiver was notified of a firing alert."""
    session.add(
        DeliveredAlert(
            tenant_id=row.tenant_id,
            alert_id=row.id,
            recipient=receiver_id,
            receiver_id=receiver_id,
            state=row.state,
            severity=row.severity,
            delivered_at=NOON,
        )
    )
    session.flush()


@pytest.fixture
def rule(session: Session, cast: Cast) -> Rule:
    """Acme's rule, which tells acme's receiver `ops`."""
    scope = scope_of(cast.bob)
    request = hot(receiver_ids=[add_mail(session, scope).id])
    return create_rule(session, scope, request, now=NOON)


def test_a_rule_is_saved_as_requested(cast: Cast, rule: Rule) -> None:
    assert (rule.tenant_id, rule.created_by, rule.name) == (cast.acme.id, cast.bob.id, HOT.name)
    assert (rule.group_by, rule.warning_threshold, rule.is_enabled) == (["gpu"], 80.0, True)


@pytest.mark.usefixtures("rule")
def test_an_invalid_rule_is_refused_with_every_error(session: Session, cast: Cast) -> None:
    foreign = add_mail(session, scope_of(cast.charlie))
    request = hot(window_seconds=0.0, receiver_ids=[foreign.id])
    with pytest.raises(InvalidInputError) as caught:
        create_rule(session, scope_of(cast.bob), request, now=NOON)
    assert sorted(caught.value.errors) == ["name", "receiver_ids", "window_seconds"]


def test_a_name_is_free_in_another_tenant(session: Session, cast: Cast, rule: Rule) -> None:
    assert create_rule(session, scope_of(cast.charlie), HOT, now=NOON).name == rule.name


def test_a_rule_keeps_its_own_name_at_a_change(session: Session, cast: Cast, rule: Rule) -> None:
    changed = update_rule(
        session, scope_of(cast.bob), rule.id, hot(warning_threshold=75.0), now=NOON
    )
    assert changed.warning_threshold == 75.0


def test_charlie_sees_nothing_of_acmes_alerts(session: Session, cast: Cast, rule: Rule) -> None:
    alert(session, rule, AlertState.FIRING)
    scope = scope_of(cast.charlie)
    assert list_rules(session, scope).items == []
    assert list_alerts(session, scope).items == []
    assert list_receivers(session, scope) == []
    assert list_notifications(session, scope).items == []
    assert alert_counts(session, scope) == dict.fromkeys(Severity, 0)


def test_the_operator_sees_everyones_alerts(session: Session, cast: Cast, rule: Rule) -> None:
    fired = alert(session, rule, AlertState.FIRING)
    assert list_alerts(session, scope_of(cast.olivia)).items == [fired]


READS: dict[str, Callable[[Session, Scope, str], object]] = {
    "get_rule": get_rule,
    "get_alert": get_alert,
    "alert_transitions": alert_transitions,
    "get_receiver": get_receiver,
}
CHANGES: dict[str, Callable[[Session, Scope, str], object]] = {
    "update_rule": lambda session, scope, i: update_rule(session, scope, i, HOT, now=NOON),
    "set_rule_enabled": lambda session, scope, i: set_rule_enabled(
        session, scope, i, is_enabled=False, now=NOON
    ),
    "delete_rule": lambda session, scope, i: delete_rule(session, scope, i, now=NOON),
    "delete_receiver": delete_receiver,
}


def _ident(session: Session, rule: Rule, call: str) -> str:
    if "receiver" in call:
        return rule.receiver_ids[0]
    return alert(session, rule, AlertState.FIRING).id if "alert" in call else rule.id


@pytest.mark.parametrize("call", [*READS, *CHANGES])
def test_a_user_of_another_tenant_gets_404_for_every_call(
    session: Session, cast: Cast, rule: Rule, call: str
) -> None:
    function = (READS | CHANGES)[call]
    with pytest.raises(NotFoundError):
        function(session, scope_of(cast.charlie), _ident(session, rule, call))


@pytest.mark.parametrize("call", list(CHANGES))
def test_a_viewer_changes_nothing(session: Session, cast: Cast, rule: Rule, call: str) -> None:
    viewer = Scope(user_id=cast.bob.id, role=Role.VIEWER, tenant_id=cast.acme.id)
    with pytest.raises(ForbiddenError):
        CHANGES[call](session, viewer, _ident(session, rule, call))


def test_switching_a_rule_off_resolves_its_alerts_and_says_so(
    session: Session, cast: Cast, rule: Rule
) -> None:
    fired = alert(session, rule, AlertState.FIRING)
    delivered(session, fired, rule.receiver_ids[0])
    now = NOON + timedelta(minutes=1)
    set_rule_enabled(session, scope_of(cast.bob), rule.id, is_enabled=False, now=now)
    assert (fired.state, fired.resolved_at) == (AlertState.RESOLVED, now)
    (message,) = list_notifications(session, scope_of(cast.bob)).items
    assert (message.state, message.payload["state"]) == (NotificationState.WAITING, "resolved")
    (moved,) = alert_transitions(session, scope_of(cast.bob), fired.id).items
    assert (moved.from_state, moved.to_state) == (AlertState.FIRING, AlertState.RESOLVED)


def test_deleting_a_rule_takes_its_alerts_and_leaves_the_message(
    session: Session, cast: Cast, rule: Rule
) -> None:
    delivered(session, alert(session, rule, AlertState.FIRING), rule.receiver_ids[0])
    delete_rule(session, scope_of(cast.bob), rule.id, now=NOON)
    assert session.scalars(select(Alert)).all() == []
    assert session.scalars(select(AlertTransition)).all() == []
    (message,) = session.scalars(select(Notification))
    session.refresh(message)
    assert (message.alert_id, message.payload["rule"]) == (None, HOT.name)


def test_new_thresholds_leave_the_alerts_to_the_next_evaluation(
    session: Session, cast: Cast, rule: Rule
) -> None:
    fired = alert(session, rule, AlertState.FIRING)
    request = hot(warning_threshold=50.0, receiver_ids=rule.receiver_ids)
    update_rule(session, scope_of(cast.bob), rule.id, request, now=NOON)
    assert fired.state is AlertState.FIRING


def test_a_rule_with_another_query_starts_afresh(session: Session, cast: Cast, rule: Rule) -> None:
    delivered(session, alert(session, rule, AlertState.FIRING), rule.receiver_ids[0])
    request = hot(field="power_watts", receiver_ids=rule.receiver_ids)
    update_rule(session, scope_of(cast.bob), rule.id, request, now=NOON)
    assert session.scalars(select(Alert)).all() == []
    (message,) = session.scalars(select(Notification))
    assert message.payload["state"] == "resolved"


def test_alerts_that_need_attention_come_first(session: Session, cast: Cast, rule: Rule) -> None:
    for gpu, state, severity in (
        ("0", AlertState.RESOLVED, Severity.CRITICAL),
        ("1", AlertState.PENDING, Severity.WARNING),
        ("2", AlertState.FIRING, Severity.WARNING),
        ("3", AlertState.INACTIVE, Severity.WARNING),
        ("4", AlertState.FIRING, Severity.CRITICAL),
    ):
        alert(session, rule, state, gpu=gpu, severity=severity)
    scope = scope_of(cast.bob)
    assert [a.group_key for a in list_alerts(session, scope).items] == ["4", "2", "1", "0"]
    inactive = list_alerts(session, scope, states=[AlertState.INACTIVE], rule_id=rule.id)
    assert [a.group_key for a in inactive.items] == ["3"]
    assert alert_counts(session, scope) == {
        Severity.INFO: 0,
        Severity.WARNING: 1,
        Severity.CRITICAL: 1,
    }
    assert alert_counts(session, scope, appliances={"a1"}) == alert_counts(session, scope)
    assert set(alert_counts(session, scope, appliances={"a2"}).values()) == {0}


def test_a_webhook_gets_a_secret_and_an_email_none(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.bob)
    hook, secret = create_receiver(
        session,
        scope,
        name="hook",
        kind=ReceiverKind.WEBHOOK,
        target="https://acme.example/hook",
        box=BOX,
        now=NOON,
    )
    assert secret.startswith("vdw_")
    assert secret not in hook.secret
    assert signing_key(hook, BOX) == secret
    assert add_mail(session, scope).secret == ""


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (ReceiverKind.EMAIL, "ops"),
        (ReceiverKind.EMAIL, "ops@acme.example, more@acme.example"),
        (ReceiverKind.WEBHOOK, "ftp://acme.example/hook"),
        (ReceiverKind.WEBHOOK, "file:///etc/passwd"),
        (ReceiverKind.WEBHOOK, "https:///hook"),
        (ReceiverKind.WEBHOOK, "http://acme.example:99999/"),
        (ReceiverKind.WEBHOOK, "http://acme.example/a b"),
    ],
)
def test_a_target_must_be_an_address_of_its_kind(
    session: Session, cast: Cast, kind: ReceiverKind, target: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        create_receiver(
            session, scope_of(cast.bob), name="x", kind=kind, target=target, box=BOX, now=NOON
        )
    assert list(caught.value.errors) == ["target"]


def test_a_receivers_name_is_unique_in_its_tenant(session: Session, cast: Cast) -> None:
    add_mail(session, scope_of(cast.bob))
    add_mail(session, scope_of(cast.charlie))
    with pytest.raises(InvalidInputError) as caught:
        add_mail(session, scope_of(cast.alice))
    assert list(caught.value.errors) == ["name"]


def test_a_deleted_receiver_leaves_the_rules_that_named_it(
    session: Session, cast: Cast, rule: Rule
) -> None:
    delete_receiver(session, scope_of(cast.bob), rule.receiver_ids[0])
    assert rule.receiver_ids == []
