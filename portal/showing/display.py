"""How values look on pages: instants, sizes, durations, states; filters and globals of Jinja."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from flask import Flask, request, url_for
from markupsafe import Markup

from alerting.service import rule_expression
from alerting.states import AlertState, NotificationState, Severity
from core.units import format_value
from jobqueue.states import JobState, Reason
from portal.context import now, visitor
from portal.showing.quantities import format_duration
from tenants.entry.certificate_list import CertificateState
from tenants.fleet.life import LifeState
from tenants.models import ApplianceState, HealthState, Role, TenantState
from tenants.people.sessions import tenants_to_choose
from tenants.permissions import Permission
from tenants.visitors import Visitor

TONES: dict[StrEnum, str] = {
    ApplianceState.ENROLLED: "idle", ApplianceState.ONLINE: "good", ApplianceState.STALE: "warn",
    ApplianceState.UNREACHABLE: "bad", ApplianceState.LOST: "bad",
    JobState.SUBMITTED: "idle", JobState.QUEUED: "idle", JobState.STARTING: "busy",
    JobState.RUNNING: "busy", JobState.SUCCEEDED: "good", JobState.FAILED: "bad",
    JobState.STOPPED: "off", JobState.LOST: "bad",
    AlertState.INACTIVE: "off", AlertState.PENDING: "warn", AlertState.FIRING: "bad",
    AlertState.RESOLVED: "good", AlertState.NO_DATA: "idle",
    NotificationState.WAITING: "idle", NotificationState.SENT: "good",
    NotificationState.FAILED: "bad",
    HealthState.HEALTHY: "good", HealthState.DEGRADED: "warn", HealthState.FAILED: "bad",
    CertificateState.NEW: "idle", CertificateState.IN_FORCE: "good",
    CertificateState.OVERDUE: "warn", CertificateState.EXPIRED: "bad",
    CertificateState.REPLACED: "off", CertificateState.REVOKED: "bad",
    LifeState.DRAINED: "idle", LifeState.FENCED: "bad", LifeState.RETIRED: "off",
    LifeState.REVOKED: "off",
    TenantState.ACTIVE: "good", TenantState.SUSPENDED: "bad", TenantState.CLOSED: "off",
}  # fmt: skip
# Members of different enums may be equal as text (`lost`), but they then have the same tone.
NOTHING = "\N{EN DASH}"


def install_display(app: Flask) -> None:
    """Give the filters and globals to the app's templates."""
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        ago=ago, tone=tone, words=words, bytes=size, expression=rule_expression
    )
    app.jinja_env.globals.update(
        page_url=page_url,
        value_text=value_text,
        elapsed=elapsed,
        Severity=Severity,
        current_time=now,
    )
    app.context_processor(_common)


def ago(instant_at: datetime | None, missing: str = "never") -> Markup:
    """Return an instant as relative time, the absolute one in its tooltip."""
    if instant_at is None:
        return Markup('<span class="text-body-tertiary">{}</span>').format(missing)
    utc = instant_at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(
        utc.isoformat(timespec="milliseconds"),
        utc.strftime("%Y-%m-%d %H:%M:%S UTC"),
        _relative((now() - utc).total_seconds()),
    )


def elapsed(start_at: datetime | None, end_at: datetime | None) -> str:
    """Return how long something took, or has taken until now."""
    if start_at is None:
        return NOTHING
    seconds = ((end_at or now()) - start_at).total_seconds()
    return format_duration(seconds) if seconds >= 1 else "under 1s"


def tone(state: StrEnum) -> str:
    """Return the colour word of a state: good, busy, warn, bad, idle or off."""
    return TONES.get(state, "idle")


def words(name: str) -> str:
    """Return a stable word as people read it: `waiting_for_appliance` with spaces."""
    return str(name).replace("_", " ")


def size(size_bytes: float | None) -> str:
    """Return bytes with their unit."""
    return NOTHING if not size_bytes else format_value("size_bytes", size_bytes)


def value_text(field: str, value: float | None) -> str:
    """Return a value of a field with its unit, or a dash."""
    return NOTHING if value is None else format_value(field, value)


def page_url(**changes: object) -> str:
    """Return this page's address with some of its query string changed; None removes a name."""
    query = {**request.args.to_dict(), **changes}
    # Names with an underscore before them are orders to `url_for`, such as for another scheme.
    kept = {
        key: value
        for key, value in query.items()
        if value not in {None, ""} and not key.startswith("_")
    }
    return url_for(str(request.endpoint), **{**kept, **(request.view_args or {})})


def _relative(seconds: float) -> str:
    if seconds < 0:
        return f"in {format_duration(-seconds).split()[0]}"
    return "just now" if seconds < 5 else f"{format_duration(seconds).split()[0]} ago"  # noqa: PLR2004 - seconds


def _other_tenants(here: Visitor | None) -> list[tuple[str, str]]:
    """Return what else this browser may look at: id and name; no id is the operator's view."""
    if here is None or here.visit is not None:
        return []
    found = [(one.id, one.name) for one in tenants_to_choose(here.user)]
    if here.user.is_operator:
        found.insert(0, ("", "All tenants"))
    present = "" if here.tenant is None else here.tenant.id
    return [one for one in found if one[0] != present]


def _common() -> dict[str, Any]:
    here = visitor()
    scope = None if here is None else here.scope

    def can(permission: Permission) -> bool:
        return scope is not None and scope.allows(permission)

    return {
        "user": None if here is None else here.user,
        "role": None if scope is None else scope.role,
        "tenant_here": None if here is None else here.tenant,
        "visit": None if here is None else here.visit,
        "other_tenants": _other_tenants(here),
        "can": can,
        "Permission": Permission,
        "Reason": Reason,
        "is_operator": scope is not None and scope.role is Role.OPERATOR,
    }
