"""Rules of the platform: copies for tenants, which see them, and messages to operators only."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation.evaluator import Evaluator
from alerting.models import Alert, PlatformRule, Receiver, Rule
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.receivers import (
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    list_receivers,
    update_receiver,
)
from alerting.notification.silences import SilenceRequest, create_silence
from alerting.rules.files import plan_rules
from alerting.rules.platform_rules import (
    PlatformRuleRequest,
    copy_platform_rules,
    delete_platform_rule,
    save_platform_rule,
)
from alerting.rules.service import (
    create_rule,
    delete_rule,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import Tenant, TenantState
from tenants.scope import Scope
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.alerting.helpers import drain_outbox, evaluate_rules, heat, hot
from timeseries.store import Store

HOT = PlatformRuleRequest(
    name="GPU too hot", expression="max(gpu.temperature_celsius) over 1m by gpu > 80"
)


def rules_of(session: Session, tenant: Tenant) -> dict[str, Rule]:
    return {
        rule.name: rule for rule in session.scalars(select(Rule).filter_by(tenant_id=tenant.id))
    }


def test_each_tenant_gets_a_copy_and_it_follows_the_rule(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.olivia)
    create_rule(session, scope_of(cast.bob), hot(), now=NOON)
    rule = save_platform_rule(session, scope, HOT, now=NOON)
    assert set(rules_of(session, cast.acme)) == {"GPU too hot", "GPU too hot (platform)"}
    assert set(rules_of(session, cast.globex)) == {"GPU too hot"}

    only_acme = PlatformRuleRequest(
        name="Hot", expression=HOT.expression, tenant_ids=[cast.acme.id], is_enabled=False
    )
    save_platform_rule(session, scope, only_acme, rule_id=rule.id, now=NOON)
    assert rules_of(session, cast.globex) == {}
    assert not rules_of(session, cast.acme)["Hot"].is_enabled

    delete_platform_rule(session, scope, rule.id, now=NOON)
    assert set(rules_of(session, cast.acme)) == {"GPU too hot"}


def test_a_tenant_that_comes_back_or_is_new_gets_its_copy(session: Session, cast: Cast) -> None:
    globex = session.get_one(Tenant, cast.globex.id)
    globex.state = TenantState.SUSPENDED
    session.flush()
    save_platform_rule(session, scope_of(cast.olivia), HOT, now=NOON)
    assert rules_of(session, cast.globex) == {}
    globex.state = TenantState.ACTIVE
    assert copy_platform_rules(session, now=NOON) == 1
    assert copy_platform_rules(session, now=NOON) == 0


def test_a_tenant_sees_the_copy_but_can_not_change_it(session: Session, cast: Cast) -> None:
    save_platform_rule(session, scope_of(cast.olivia), HOT, now=NOON)
    alice = scope_of(cast.alice)
    (copy,) = list_rules(session, alice).items
    for change in (
        lambda: update_rule(session, alice, copy.id, hot(), now=NOON),
        lambda: set_rule_enabled(session, alice, copy.id, is_enabled=False, now=NOON),
        lambda: delete_rule(session, alice, copy.id, now=NOON),
        lambda: save_platform_rule(session, alice, HOT, now=NOON),
    ):
        with pytest.raises(ForbiddenError):
            change()
    assert plan_rules(session, alice, [], deletes_others=True) == []


def test_what_is_wrong_with_a_rule_is_reported_by_field(session: Session, cast: Cast) -> None:
    wrong = PlatformRuleRequest(
        name="", expression="max(gpu.x) over 5m > 1", tenant_ids=["x"], receivers=["nobody"]
    )
    with pytest.raises(InvalidInputError) as caught:
        save_platform_rule(session, scope_of(cast.olivia), wrong, now=NOON)
    assert set(caught.value.errors) == {"name", "tenant_ids", "receivers"}


def test_alerts_are_the_tenants_and_notifications_the_platforms(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        save_platform_rule(session, scope_of(cast.olivia), HOT, now=NOON)
    heat(store, tenant=cast.acme.id, celsius=95.0, at=NOON)
    evaluator = Evaluator(sessions=sessions, store=store)
    evaluate_rules(evaluator, now=NOON + timedelta(seconds=1))
    with transaction(sessions) as session:
        (alert,) = session.scalars(select(Alert))
        assert alert.tenant_id == cast.acme.id
        (sent,) = session.scalars(select(Notification))
        assert (sent.tenant_id, sent.address) == (None, cast.olivia.email)
        assert list_notifications(session, scope_of(cast.alice)).items == []


class Inbox:
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def send(self, receiver: Receiver, message: Message) -> None:
        assert message.payload["tenant"] == "Acme"
        self.targets.append(receiver.target)


def test_a_rule_notifies_the_platforms_receivers_which_tenants_can_not_see(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    """Tenants' silences don't hold the message, and their receivers of that name get none."""
    olivia, alice, inbox = scope_of(cast.olivia), scope_of(cast.alice), Inbox()

    def add(session: Session, scope: Scope, target: str, *, is_platform: bool) -> Receiver:
        return create_receiver(
            session,
            scope,
            name="Ops",
            kind=ReceiverKind.EMAIL,
            target=target,
            box=BOX,
            now=NOON,
            is_platform=is_platform,
        )[0]

    with transaction(sessions) as session:
        own = add(session, alice, "ops@acme.example", is_platform=False)
        ops = add(session, olivia, "ops@vedette.example", is_platform=True)
        with pytest.raises(InvalidInputError) as caught:
            add(session, olivia, "more@vedette.example", is_platform=True)
        assert set(caught.value.errors) == {"name"}
        save_platform_rule(session, olivia, replace(HOT, receivers=["Ops"]), now=NOON)
        silence = SilenceRequest(
            matchers=["rule=GPU too hot"], starts_at=NOON, ends_at=NOON + timedelta(hours=1)
        )
        create_silence(session, alice, silence, now=NOON)
    heat(store, tenant=cast.acme.id, celsius=95.0, at=NOON)
    now = NOON + timedelta(seconds=1)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=now)
    drain_outbox(sessions, {ReceiverKind.EMAIL: inbox}, now=now)
    assert inbox.targets == ["ops@vedette.example"]

    with transaction(sessions) as session:
        assert [receiver.id for receiver in list_receivers(session, alice)] == [own.id]
        assert list_notifications(session, alice).items == []
        (sent,) = list_notifications(session, olivia, is_platform=True).items
        assert (sent.receiver_id, sent.state) == (ops.id, NotificationState.SENT)
        for scope, ident, error in (
            (alice, ops.id, ForbiddenError),
            (olivia, own.id, NotFoundError),
        ):
            with pytest.raises(error):
                get_receiver(session, scope, ident, is_platform=True)
            with pytest.raises(error):
                delete_receiver(session, scope, ident, is_platform=True)
        for scope in (alice, olivia):
            with pytest.raises(NotFoundError):
                get_receiver(session, scope, ops.id)
        update_receiver(session, olivia, ops.id, name="Duty", target="", box=BOX, is_platform=True)
        assert session.scalars(select(PlatformRule)).one().receivers == ["Duty"]
        delete_receiver(session, olivia, ops.id, is_platform=True)
        assert session.scalars(select(PlatformRule)).one().receivers == []
