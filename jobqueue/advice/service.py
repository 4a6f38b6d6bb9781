"""Fleet advice as users see it: ask for it, read it, dismiss it, and the totals of all tenants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Unpack

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, undefer

from core.errors import ConflictError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from jobqueue.advice.figures import FleetFigures
from jobqueue.advice.models import AdviceDismissal, FleetAdvice
from jobqueue.advice.rules import Advice, Prices, advise, too_little
from jobqueue.advice.runner import request
from jobqueue.simulation.models import SimulationState
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

DISMISSED_FOR = timedelta(days=30)
ReadPrices = Callable[[FleetFigures], Prices]
TOTAL_SORTS: Columns = {
    "tenant_name": Tenant.name,
    "gpus": FleetAdvice.gpus,
    "capacity_gpu_hours": FleetAdvice.capacity_gpu_hours,
    "allocated_gpu_hours": FleetAdvice.allocated_gpu_hours,
    "idle_gpu_hours": FleetAdvice.idle_gpu_hours,
    "short_gpu_hours": FleetAdvice.short_gpu_hours,
    "computed_at": FleetAdvice.computed_at,
}
DISMISSAL_SORTS: Columns = {
    "key": AdviceDismissal.advice_key,
    "dismissed_at": AdviceDismissal.dismissed_at,
    "dismissed_until": AdviceDismissal.dismissed_until,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """The advice for a tenant with its figures.

    Attributes:
        state: of the latest computation; None if there was none.
        progress_percent: the part of it that is done.
        message: why it failed.
        computed_at: of which time the figures are.
        figures: None before the first computation has succeeded.
        prices: that the advice compares with.
        too_little: why there is no advice yet.
        advice: in the order of kinds.
        dismissed: advice that is not shown for a while.
    """

    state: SimulationState | None = None
    progress_percent: int = 0
    message: str = ""
    computed_at: datetime | None = None
    figures: FleetFigures | None = None
    prices: Prices = field(default_factory=Prices)
    too_little: str = ""
    advice: Sequence[Advice] = ()
    dismissed: Sequence["Dismissed"] = ()

    @property
    def is_computing(self) -> bool:
        """Return whether new figures are on their way."""
        return self.state is not None and not self.state.is_final


@dataclass(frozen=True, slots=True)
class Dismissed:
    """Advice that is not shown until a time; the id is that of the dismissal."""

    id: str
    advice: Advice
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTotals:
    """The sums of a tenant's fleet."""

    tenant_id: str
    tenant_name: str
    state: SimulationState
    computed_at: datetime | None
    gpus: int
    capacity_gpu_hours: float
    allocated_gpu_hours: float
    idle_gpu_hours: float
    short_gpu_hours: float


def read_report(
    session: Session, scope: Scope, *, prices: ReadPrices, zone: tzinfo, now: datetime
) -> FleetReport:
    """Return the advice for the tenant of the scope.

    Args:
        session: the session.
        scope: of a user who manages appliances.
        prices: returns the prices that figures are compared with.
        zone: of hours in texts.
        now: the time.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    row = session.get(FleetAdvice, tenant_id, options=[undefer(FleetAdvice.figures)])
    if row is None:
        return FleetReport()
    latest: dict[str, Any] = {
        "state": row.state,
        "progress_percent": row.progress_percent,
        "message": row.message,
        "computed_at": row.computed_at,
    }
    if row.figures is None:
        return FleetReport(**latest)
    figures = msgspec.json.decode(row.figures, type=FleetFigures)
    current = prices(figures)
    listed = advise(figures, current, zone=zone)
    dismissals = _dismissals(session, tenant_id, now=now)
    return FleetReport(
        **latest,
        figures=figures,
        prices=current,
        too_little=too_little(figures),
        advice=[advice for advice in listed if advice.key not in dismissals],
        dismissed=[
            Dismissed(dismissals[advice.key].id, advice, dismissals[advice.key].dismissed_until)
            for advice in listed
            if advice.key in dismissals
        ],
    )


def request_advice(session: Session, scope: Scope, *, now: datetime) -> None:
    """Let the figures of the scope's tenant be computed now; nothing if they are already."""
    scope.require(Permission.MANAGE_APPLIANCES)
    try:
        with session.begin_nested():
            request(session, scope.require_tenant(), now=now)
    except IntegrityError as error:
        message = "The advice was requested at the same time. Wait for its end."
        raise ConflictError(message) from error


def dismiss_advice(
    session: Session, scope: Scope, advice_key: str, *, now: datetime
) -> AdviceDismissal:
    """Don't show advice for `DISMISSED_FOR`.

    Raises:
        NotFoundError: the current figures lead to no such advice.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    stored = session.get(FleetAdvice, tenant_id, options=[undefer(FleetAdvice.figures)])
    if stored is None or stored.figures is None:
        raise NotFoundError.of("advice", advice_key)
    figures = msgspec.json.decode(stored.figures, type=FleetFigures)
    # Which advice there is does not depend on prices or time zones.
    if advice_key not in {advice.key for advice in advise(figures, Prices(), zone=UTC)}:
        raise NotFoundError.of("advice", advice_key)
    of_key = (AdviceDismissal.tenant_id == tenant_id, AdviceDismissal.advice_key == advice_key)
    dismissal = session.scalar(select(AdviceDismissal).where(*of_key))
    if dismissal is None:
        dismissal = AdviceDismissal(tenant_id=tenant_id, advice_key=advice_key)
    dismissal.dismissed_at, dismissal.dismissed_by = now, scope.user_id or None
    dismissal.dismissed_until = now + DISMISSED_FOR
    try:
        with session.begin_nested():
            session.add(dismissal)
    except IntegrityError as error:
        raise ConflictError("The advice was dismissed at the same time.") from error
    return dismissal


def list_dismissals(
    session: Session, scope: Scope, **paging: Unpack[Paging]
) -> Page[AdviceDismissal]:
    """Return the dismissals of the scope, the latest first."""
    scope.require(Permission.MANAGE_APPLIANCES)
    ordered = scope.select(select(AdviceDismissal), AdviceDismissal).order_by(
        AdviceDismissal.dismissed_at.desc(), AdviceDismissal.id
    )
    return list_page(session, ordered, DISMISSAL_SORTS, last=AdviceDismissal.id, **paging)


def get_dismissal(session: Session, scope: Scope, dismissal_id: str) -> AdviceDismissal:
    """Return a dismissal of the scope."""
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, AdviceDismissal, dismissal_id, kind="dismissal")


def restore_advice(session: Session, scope: Scope, dismissal_id: str) -> None:
    """Show dismissed advice again."""
    session.delete(get_dismissal(session, scope, dismissal_id))
    session.flush()


def expire_dismissals(session: Session, *, now: datetime) -> None:
    """Delete dismissals that have ended."""
    session.execute(delete(AdviceDismissal).where(AdviceDismissal.dismissed_until <= now))


def list_totals(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[TenantTotals]:
    """Return the sums of all tenants, those with the most GPU-hours that are short first."""
    scope.require(Permission.OPERATE)
    names = (
        *("state", "computed_at", "gpus", "capacity_gpu_hours"),
        *("allocated_gpu_hours", "idle_gpu_hours", "short_gpu_hours"),
    )
    columns = [getattr(FleetAdvice, name) for name in names]
    statement: Any = (
        select(FleetAdvice.tenant_id, Tenant.name.label("tenant_name"), *columns)
        .join(Tenant, Tenant.id == FleetAdvice.tenant_id)
        .order_by(FleetAdvice.short_gpu_hours.desc(), FleetAdvice.tenant_id)
    )
    return list_page(session, statement, TOTAL_SORTS, last=FleetAdvice.tenant_id, **paging)


def _dismissals(session: Session, tenant_id: str, *, now: datetime) -> dict[str, AdviceDismissal]:
    """Return the dismissals that last, by the key of the advice."""
    statement = select(AdviceDismissal).where(
        AdviceDismissal.tenant_id == tenant_id, AdviceDismissal.dismissed_until > now
    )
    return {row.advice_key: row for row in session.scalars(statement)}
