"""The history of all alerts: their transitions, newest first."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from alerting.models import Alert, AlertTransition
from alerting.rules.service import alert_conditions
from alerting.states import AlertState, Severity
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from tenants.permissions import Permission
from tenants.scope import Scope

NOTABLE = (AlertState.FIRING, AlertState.RESOLVED, AlertState.NO_DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which transitions to list; `since` is inclusive, `until` is not."""

    to_states: Collection[AlertState] = NOTABLE
    rule_id: str | None = None
    severity: Severity | None = None
    appliance_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def list_history(
    session: Session,
    scope: Scope,
    wanted: HistoryFilter,
    *,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[AlertTransition]:
    """Return one page of transitions with their alerts, newest first."""
    scope.require(Permission.VIEW)
    statement = (
        scope.select(select(AlertTransition), AlertTransition)
        .join(Alert, Alert.id == AlertTransition.alert_id)
        .where(AlertTransition.to_state.in_(wanted.to_states))
        .where(
            *alert_conditions(
                rule_id=wanted.rule_id, severity=None, appliance_id=wanted.appliance_id
            )
        )
        .options(joinedload(AlertTransition.alert))
        .order_by(AlertTransition.at.desc(), AlertTransition.id.desc())
    )
    if wanted.severity is not None:
        statement = statement.where(AlertTransition.severity == wanted.severity)
    if wanted.since is not None:
        statement = statement.where(AlertTransition.at >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(AlertTransition.at < wanted.until)
    return paginate(session, statement, number=page, size=page_size)
