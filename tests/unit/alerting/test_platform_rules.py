"""Rules of the platform: copies for tenants, which see them, and emails to the platform only."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation import Evaluator, evaluate_rules
from alerting.models import Alert, Notification, Rule
from alerting.platform_rules import (
    PlatformRuleRequest,
    copy_platform_rules,
    delete_platform_rule,
    save_platform_rule,
)
from alerting.receivers import list_notifications
from alerting.rule_files import plan_rules
from alerting.service import create_rule, delete_rule, list_rules, set_rule_enabled, update_rule
from core.db import SessionFactory, transaction
from core.errors import ForbiddenError, InvalidInputError
from tenants.models import Tenant, TenantState
from tests.cast import NOON, Cast, scope_of
from tests.unit.alerting.helpers import heat, hot
from timeseries.store import Store

HOT = PlatformRuleRequest(
    name="GPU too hot", expression="max(gpu.temperature_celsius) over 1m by gpu > 80"
)


def rules_of(session: Session, tenant: Tenant) -> dict[str, Rule]:
    return {one.name: one for one in session.scalars(select(Rule).filter_by(tenant_id=tenant.id))}


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
        name="", expression="max(gpu.x) over 5m > 1", tenant_ids=["x"], emails=["nobody"]
    )
    with pytest.raises(InvalidInputError) as caught:
        save_platform_rule(session, scope_of(cast.olivia), wrong, now=NOON)
    assert set(caught.value.errors) == {"name", "tenant_ids", "emails"}


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
