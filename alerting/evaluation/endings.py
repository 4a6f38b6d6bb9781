"""Alerts that end whatever their value: their rule, its filters or their appliance are gone."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from alerting.evaluation.expression import Group, group_key
from alerting.evaluation.recorder import ACTIVE_STATES, Recorder, view_of
from alerting.machine import resolve
from alerting.models import Alert, Rule
from core.db import SessionFactory, transaction
from tenants.models import Appliance
from timeseries.store import APPLIANCE_TAG

ALERTS_PER_TRANSACTION = 1000


def resolve_alerts(
    session: Session, rule: Rule, *, now: datetime, public_url: str = ""
) -> Recorder:
    """Resolve every active alert of a rule that is disabled, deleted, or has a new query."""
    return _resolve(Recorder(session, rule, now, public_url), _active(session, rule))


def end_alerts_without(recorder: Recorder, groups: Sequence[Group]) -> None:
    """Resolve the active alerts of a rule whose groups have no value since its filters changed."""
    current = {group_key(group.tags) for group in groups}
    alerts = _active(recorder.session, recorder.rule)
    _resolve(recorder, [alert for alert in alerts if alert.group_key not in current])


def resolve_ended(sessions: SessionFactory, *, now: datetime, public_url: str) -> None:
    """Resolve alerts of retired appliances, and of rules that were disabled meanwhile.

    A concurrent evaluation may move an alert while its rule is being disabled. Each transaction has
    alerts of one rule, and not too many: other writers wait for it.
    """
    with sessions() as session:
        rows = session.execute(_ended(Alert.rule_id, Alert.id)).all()
    for _, of_rule in groupby(rows, key=attrgetter("rule_id")):
        idents = [row.id for row in of_rule]
        for start in range(0, len(idents), ALERTS_PER_TRANSACTION):
            part = Alert.id.in_(idents[start : start + ALERTS_PER_TRANSACTION])
            with transaction(sessions) as session:
                alerts = session.scalars(_ended(Alert).where(part)).all()
                if alerts:
                    _resolve(Recorder(session, alerts[0].rule, now, public_url), alerts)


def _ended(*columns: Any) -> Select[Any]:  # noqa: ANN401 - as SQLAlchemy's
    return (
        select(*columns)
        .join(Rule, Rule.id == Alert.rule_id)
        .outerjoin(Appliance, Appliance.id == Alert.tags[APPLIANCE_TAG].as_string())
        .where(
            Alert.state.in_(ACTIVE_STATES),
            or_(Rule.is_enabled.is_(False), Appliance.retired_at.is_not(None)),
        )
        .order_by(Alert.rule_id, Alert.id)
    )


def _active(session: Session, rule: Rule) -> Sequence[Alert]:
    active = select(Alert).where(Alert.rule_id == rule.id, Alert.state.in_(ACTIVE_STATES))
    return session.scalars(active.order_by(Alert.id)).all()


def _resolve(recorder: Recorder, alerts: Sequence[Alert]) -> Recorder:
    for alert in alerts:
        view = view_of(alert)
        recorder.change(alert, view, resolve(view, now=recorder.now))
    recorder.flush()
    recorder.session.flush()
    return recorder
