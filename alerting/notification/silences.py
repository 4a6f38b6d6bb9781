"""Silences: while one is active, notifications of the alerts that it matches are not sent.

An alert keeps its state. The outbox holds its notifications (state `silenced`) until the silence
ends; see `alerting.notification.outbox`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Unpack

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from alerting.language.matchers import MAX_MATCHERS, match_all, parse_matcher
from alerting.models import Alert, AlertAction, Silence
from alerting.notification.labels import (
    ApplianceLabels,
    alert_labels,
    appliance_labels,
    labels_of_payload,
)
from alerting.notification.models import Notification
from alerting.rule_request import Errors, raise_errors
from alerting.states import ActionState, NotificationState
from core.errors import ConflictError
from core.paging import Columns, Page, Paging, list_page
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_COMMENT_LENGTH = 500
MAX_DURATION = timedelta(days=366)
MAX_SILENCES = 500
SILENCE_SORTS: Columns = {
    "starts_at": Silence.starts_at,
    "ends_at": Silence.ends_at,
    "created_at": Silence.created_at,
}


class SilenceState(StrEnum):
    """State of a silence at a time."""

    ACTIVE = "active"
    PENDING = "pending"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRequest:
    """A silence as a user writes it; see `language.matchers` for the notation of matchers."""

    matchers: Sequence[str]
    starts_at: datetime
    ends_at: datetime
    comment: str = ""


def create_silence(
    session: Session, scope: Scope, request: SilenceRequest, *, now: datetime
) -> Silence:
    """Add a silence to the scope's tenant.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    errors = _errors(request, now=now)
    current = and_(Silence.tenant_id == tenant_id, Silence.ends_at > now)
    count = session.scalar(select(func.count()).select_from(Silence).where(current)) or 0
    if count >= MAX_SILENCES:
        errors["matchers"] = [f"The tenant has {count} silences. Expire some first."]
    raise_errors("silence", errors)
    silence = Silence(
        tenant_id=tenant_id,
        matchers=[str(parse_matcher(text)) for text in request.matchers],
        starts_at=request.starts_at,
        ends_at=request.ends_at,
        comment=request.comment.strip(),
        created_by=scope.user_id,
        created_at=now,
    )
    session.add(silence)
    session.flush()
    session.refresh(silence)  # loads its creator
    return silence


def list_silences(
    session: Session,
    scope: Scope,
    *,
    now: datetime,
    state: SilenceState | None = None,
    **paging: Unpack[Paging],
) -> Page[Silence]:
    """Return silences, those that end last first."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Silence), Silence)
    if state is not None:
        statement = statement.where(_is_in(state, now))
    statement = statement.order_by(Silence.ends_at.desc(), Silence.id)
    return list_page(session, statement, SILENCE_SORTS, last=Silence.id, **paging)


def get_silence(session: Session, scope: Scope, silence_id: str) -> Silence:
    """Return a silence of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, Silence, silence_id, kind="silence")


def expire_silence(session: Session, scope: Scope, silence_id: str, *, now: datetime) -> Silence:
    """End a silence now; held notifications that still apply are sent.

    Raises:
        ConflictError: it has ended before.
    """
    scope.require(Permission.EDIT_ALERTS)
    silence = get_silence(session, scope, silence_id)
    if silence.ends_at <= now:
        raise ConflictError("The silence has ended already.", code="silence_expired")
    silence.starts_at, silence.ends_at = min(silence.starts_at, now), now
    release_held(session, silence.tenant_id, now=now)
    session.flush()
    return silence


def release_held(session: Session, tenant_id: str, *, now: datetime) -> None:
    """Look again at what is held of a tenant: notifications and actions that still apply go on."""
    held = update(Notification).where(
        Notification.tenant_id == tenant_id, Notification.state == NotificationState.SILENCED
    )
    session.execute(held.values(next_try_at=now))
    waiting = update(AlertAction).where(
        AlertAction.tenant_id == tenant_id, AlertAction.state == ActionState.WAITING
    )
    session.execute(waiting.values(due_at=now))


def state_of(silence: Silence, *, now: datetime) -> SilenceState:
    """Return the state of a silence."""
    if silence.ends_at <= now:
        return SilenceState.EXPIRED
    return SilenceState.ACTIVE if silence.starts_at <= now else SilenceState.PENDING


def active_silences(session: Session, *, now: datetime) -> list[Silence]:
    """Return the active silences of all tenants, for the outbox."""
    return list(session.scalars(select(Silence).where(_is_in(SilenceState.ACTIVE, now))))


def silences_by_alert(
    session: Session, scope: Scope, alerts: Sequence[Alert], *, now: datetime
) -> dict[str, list[Silence]]:
    """Return the active silences of each alert, by the alert's ID."""
    scope.require(Permission.VIEW)
    is_active = _is_in(SilenceState.ACTIVE, now)
    active = session.scalars(scope.select(select(Silence), Silence).where(is_active)).all()
    if not active:
        return {alert.id: [] for alert in alerts}
    names = appliance_names(session, scope.tenants)
    labels = labels_of_silences(session, active)
    silences = {}
    for alert in alerts:
        own = alert_labels(alert, names, labels)
        silences[alert.id] = [
            silence
            for silence in active
            if silence.tenant_id == alert.tenant_id and match_all(silence.matchers, own)
        ]
    return silences


def labels_of_silences(session: Session, silences: Sequence[Silence]) -> ApplianceLabels:
    """Return the labels of appliances, where matchers of silences use any."""
    used: dict[str, list[str]] = {}
    for silence in silences:
        used.setdefault(silence.tenant_id, []).extend(silence.matchers)
    return appliance_labels(session, used)


def matchers_of(alert: Alert, names: Mapping[str, str]) -> list[str]:
    """Return matchers for one alert: its rule and each of its tags."""
    labels = alert_labels(alert, names)
    return [f"{label}={labels[label]}" for label in ("rule", *sorted(alert.tags))]


def silenced_until(
    notification: Notification,
    active: Sequence[Silence],
    appliances: ApplianceLabels,
) -> datetime | None:
    """Return when the last of the silences that match a notification ends, if one matches."""
    payload = notification.payload
    if "rule" not in payload:
        return None
    labels = labels_of_payload(payload, appliances)
    ends = [
        silence.ends_at
        for silence in active
        if silence.tenant_id == notification.tenant_id and match_all(silence.matchers, labels)
    ]
    return max(ends, default=None)


def matcher_errors(matchers: Sequence[str]) -> list[str]:
    """Return what is wrong with the matchers of a silence."""
    errors, parsed = [], []
    if not 1 <= len(matchers) <= MAX_MATCHERS:
        errors.append(f"Give 1 to {MAX_MATCHERS} matchers, such as rule=GPU too hot.")
    for text in matchers[:MAX_MATCHERS]:
        try:
            parsed.append(parse_matcher(text))
        except ValueError as error:
            errors.append(str(error))
    if parsed and not errors and all(matcher.matches({}) for matcher in parsed):
        errors.append(
            "These matchers match alerts without any of the labels. Add one that requires a value."
        )
    return errors


def _is_in(state: SilenceState, now: datetime) -> ColumnElement[bool]:
    if state is SilenceState.EXPIRED:
        return Silence.ends_at <= now
    has_started = Silence.starts_at <= now
    is_started = has_started if state is SilenceState.ACTIVE else ~has_started
    return and_(Silence.ends_at > now, is_started)


def _errors(request: SilenceRequest, *, now: datetime) -> Errors:
    errors: Errors = {"matchers": matcher_errors(request.matchers), "ends_at": [], "comment": []}
    if request.ends_at <= max(now, request.starts_at):
        errors["ends_at"].append("The silence must end in the future, after its start.")
    elif request.ends_at - request.starts_at > MAX_DURATION:
        errors["ends_at"].append(f"A silence can last {MAX_DURATION.days} days at most.")
    if len(request.comment) > MAX_COMMENT_LENGTH:
        errors["comment"].append(f"Use at most {MAX_COMMENT_LENGTH} characters.")
    return {name: messages for name, messages in errors.items() if messages}
