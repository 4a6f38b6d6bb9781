"""Jinja filters and globals that format times, sizes, durations and states."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from flask import Flask, request, url_for
from markupsafe import Markup

from alerting.language import annotations
from alerting.language.text import rule_expression
from alerting.models import Rule
from alerting.rule_request import RuleRequest
from alerting.states import ActionState, AlertState, NotificationState, Severity
from core.quantities import format_duration, format_share, format_size, format_value
from core.zones import SECONDS
from datasets.models import VersionState as DatasetState
from jobqueue.simulation.models import SimulationState
from jobqueue.states import JobState, Reason, UpdateState
from marketplace.consequences.states import AppealState, StandingState
from marketplace.states import AccountState, ContractState, OfferState, VersionState
from marketplace.support.states import TicketState
from marketplace.verification.findings import Severity as FindingSeverity
from portal.context import now, portal, principal
from portal.presenters.service_status import ComponentState
from portal.time_zone import ZONE_COOKIE, current_zone_name, local_time, time_text, viewer
from protocol.attempts import Health
from protocol.clusters import NodeState
from protocol.datasets import CopyState
from protocol.health import HealthState
from tenants.fleet.access_points import AccessPointState
from tenants.fleet.states import EffectiveStatus
from tenants.models import (
    ApplianceState,
    ApplianceUpdateState,
    ChallengeOutcome,
    Role,
    RolloutState,
    TenantState,
    VerificationState,
)
from tenants.permissions import Permission
from tenants.pki.certificates import CertificateState
from tenants.principals import Principal
from tenants.users.sessions import available_tenants
from timeseries.store import damage_notice

TONES: dict[StrEnum, str] = {
    ApplianceState.ENROLLED: "idle",
    ApplianceState.ONLINE: "good",
    ApplianceState.STALE: "warn",
    ApplianceState.UNREACHABLE: "bad",
    ApplianceState.LOST: "bad",
    ApplianceState.REPORTING: "good",
    ApplianceState.SILENT: "bad",
    VerificationState.UNVERIFIED: "idle",
    VerificationState.PENDING: "busy",
    VerificationState.PASSED: "good",
    VerificationState.FAILED: "bad",
    ChallengeOutcome.OPEN: "busy",
    ChallengeOutcome.INTERRUPTED: "off",
    ChallengeOutcome.UNANSWERED: "warn",
    FindingSeverity.FAILURE: "bad",
    FindingSeverity.WARNING: "warn",
    FindingSeverity.NOTE: "idle",
    JobState.SUBMITTED: "idle",
    JobState.QUEUED: "idle",
    JobState.ASLEEP: "idle",
    JobState.STARTING: "busy",
    JobState.RUNNING: "busy",
    JobState.SUCCEEDED: "good",
    JobState.FAILED: "bad",
    JobState.STOPPED: "off",
    JobState.LOST: "bad",
    NotificationState.SILENCED: "off",
    NotificationState.SUPPRESSED: "off",
    AlertState.INACTIVE: "off",
    AlertState.PENDING: "warn",
    AlertState.FIRING: "bad",
    AlertState.RESOLVED: "good",
    AlertState.NO_DATA: "idle",
    NotificationState.WAITING: "idle",
    NotificationState.SENT: "good",
    NotificationState.FAILED: "bad",
    ActionState.DONE: "good",
    ActionState.DRY_RUN: "off",
    ActionState.OVER_BUDGET: "warn",
    ActionState.SKIPPED: "off",
    HealthState.HEALTHY: "good",
    HealthState.DEGRADED: "warn",
    HealthState.FAILED: "bad",
    AccessPointState.ANSWERING: "good",
    AccessPointState.SILENT: "bad",
    AccessPointState.NEVER_SEEN: "idle",
    AccessPointState.IN_USE: "good",
    AccessPointState.UNUSED: "off",
    CertificateState.NEW: "idle",
    CertificateState.ACTIVE: "good",
    CertificateState.OVERDUE: "warn",
    CertificateState.EXPIRED: "bad",
    CertificateState.REPLACED: "off",
    CertificateState.REVOKED: "bad",
    RolloutState.PAUSED: "warn",
    RolloutState.COMPLETED: "good",
    RolloutState.CANCELED: "off",
    SimulationState.INTERRUPTED: "warn",
    ApplianceUpdateState.UPDATING: "busy",
    ApplianceUpdateState.UPDATED: "good",
    EffectiveStatus.DRAINED: "idle",
    NodeState.UP: "good",
    NodeState.DOWN: "bad",
    EffectiveStatus.QUARANTINED: "bad",
    EffectiveStatus.FENCED: "bad",
    EffectiveStatus.RETIRED: "off",
    EffectiveStatus.REVOKED: "off",
    Health.HEALTHY: "good",
    Health.UNHEALTHY: "bad",
    Health.RESTARTING: "warn",
    CopyState.FETCHING: "busy",
    CopyState.COMPLETE: "good",
    UpdateState.ROLLING: "busy",
    UpdateState.DONE: "good",
    DatasetState.INDEXING: "busy",
    DatasetState.UPLOADING: "busy",
    DatasetState.READY: "good",
    DatasetState.FAILED: "bad",
    TenantState.ACTIVE: "good",
    TenantState.SUSPENDED: "bad",
    TenantState.CLOSED: "off",
    AccountState.NONE: "off",
    AccountState.REQUESTED: "idle",
    OfferState.DRAFT: "idle",
    OfferState.PUBLISHED: "good",
    OfferState.WITHDRAWN: "off",
    ContractState.PROPOSED: "idle",
    ContractState.NOTICED: "warn",
    ContractState.ENDED: "off",
    ContractState.DECLINED: "bad",
    VersionState.ACCEPTED: "good",
    TicketState.OPEN: "busy",
    TicketState.WAITING_FOR_CUSTOMER: "warn",
    TicketState.WAITING_FOR_PROVIDER: "warn",
    TicketState.WAITING_FOR_OPERATOR: "warn",
    TicketState.SOLVED: "good",
    TicketState.CLOSED: "off",
    StandingState.GOOD: "good",
    StandingState.PROBATION: "warn",
    AppealState.OPEN: "idle",
    AppealState.REJECTED: "bad",
    AppealState.CLOSED: "off",
    ComponentState.OPERATIONAL: "good",
}
# Members of different enums may be equal strings (`lost`), which then have the same tone.
NOTHING = "\N{EN DASH}"
NO_IMAGE = "the cluster's environment"


def install_display(app: Flask) -> None:
    """Install the filters and globals."""
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        ago=ago,
        image=image_text,
        clock_time=clock_time,
        tone=tone,
        words=words,
        bytes=size,
        share_of=format_share,
        duration=format_duration,
        expression=rule_expression,
    )
    app.jinja_env.globals.update(
        page_url=page_url,
        value_text=value_text,
        rule_value=rule_value,
        elapsed=elapsed,
        time_text=time_text,
        local=local_time,
        Severity=Severity,
        current_time=now,
        store_damage=lambda: damage_notice(portal().store),
    )
    app.context_processor(_common)


def image_text(image: str) -> str:
    """Return the image of a job, or what it runs in without one."""
    return image or NO_IMAGE


def ago(instant_at: datetime | None, missing: str = "never") -> Markup:
    """Return a relative time with the absolute time in the reader's time zone as tooltip."""
    if instant_at is None:
        return Markup('<span class="text-body-tertiary">{}</span>').format(missing)
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(
        instant_at.astimezone(UTC).isoformat(timespec="milliseconds"),
        time_text(instant_at, SECONDS),
        _relative((now() - instant_at).total_seconds()),
    )


def clock_time(instant_at: datetime) -> Markup:
    """Return an instant in the reader's time zone, with the name of the zone."""
    return Markup('<time datetime="{}">{}</time>').format(
        instant_at.astimezone(UTC).isoformat(), time_text(instant_at)
    )


def elapsed(start_at: datetime | None, end_at: datetime | None) -> str:
    """Return the duration until `end_at` or now."""
    if start_at is None:
        return NOTHING
    seconds = ((end_at or now()) - start_at).total_seconds()
    return format_duration(seconds) if seconds >= 1 else "under 1s"


def tone(state: StrEnum) -> str:
    """Return the tone of a state: good, busy, warn, bad, idle or off."""
    return TONES.get(state, "idle")


def words(name: str) -> str:
    """Return an identifier such as `waiting_for_appliance` with spaces."""
    return str(name).replace("_", " ")


def size(size_bytes: float | None) -> str:
    """Return a size with its unit."""
    return NOTHING if not size_bytes else format_size(size_bytes)


def value_text(field: str, value: float | None) -> str:
    """Return a field's value with its unit, or a dash."""
    return NOTHING if value is None else format_value(field, value)


def rule_value(rule: Rule | RuleRequest, value: float | None) -> str:
    """Return a value of a rule with its unit or its word, or a dash."""
    return NOTHING if value is None else annotations.value_text(rule, value)


def page_url(**changes: object) -> str:
    """Return this page's URL with changed query parameters; None removes one."""
    query = {**request.args.to_dict(), **changes}
    # Names with a leading underscore are options of `url_for`, such as `_scheme`.
    safe = {
        key: value
        for key, value in query.items()
        if value not in {None, ""} and not key.startswith("_")
    }
    return url_for(str(request.endpoint), **{**safe, **(request.view_args or {})})


def _relative(seconds: float) -> str:
    if seconds < 0:
        return f"in {format_duration(-seconds).split()[0]}"
    return "just now" if seconds < 5 else f"{format_duration(seconds).split()[0]} ago"  # noqa: PLR2004 - seconds


def _other_tenants(current: Principal | None) -> list[tuple[str, str]]:
    """Return ID and name of the other tenants; an empty ID is the operator view."""
    if current is None or current.support_session is not None:
        return []
    tenants = [(tenant.id, tenant.name) for tenant in available_tenants(current.user)]
    if current.user.is_operator:
        tenants.insert(0, ("", "All tenants"))
    present = "" if current.tenant is None else current.tenant.id
    return [tenant for tenant in tenants if tenant[0] != present]


def _common() -> dict[str, Any]:
    current, person = principal(), viewer()
    scope = None if current is None else current.scope

    def can(permission: Permission) -> bool:
        return scope is not None and scope.allows(permission)

    return {
        "user": None if current is None else current.user,
        "role": None if scope is None else scope.role,
        "tenant_here": None if current is None else current.tenant,
        "support_session": None if current is None else current.support_session,
        "other_tenants": _other_tenants(current),
        "can": can,
        "Permission": Permission,
        "Reason": Reason,
        "zone_name": current_zone_name(),
        "browser_zone": request.cookies.get(ZONE_COOKIE, ""),
        "follows_browser": request.method == "GET" and person is not None and not person.time_zone,
        "is_operator": scope is not None and scope.role is Role.OPERATOR,
    }
