"""What the pages and resources of operators share: figures of a minute, use against limits."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from dash_app.queries.platform import PlatformFigures, platform_figures, ratio_of
from jobqueue.service import active_jobs
from portal.context import current_scope, database, now, portal
from tenants.customers.quotas import WARN_RATIO, Limits, count_appliances, count_gpus, limits_of
from tenants.customers.series import series_counts
from tenants.customers.usage import latest_usage
from tenants.permissions import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How much of one thing a tenant has; None is not known, or without a limit.

    `is_refused` says what happens at the limit, for people.
    """

    name: str
    used: int | None
    most: int | None
    is_bytes: bool = False
    is_refused: str = ""

    @property
    def percent(self) -> float | None:
        """Which share of the limit is used."""
        if self.most is None or self.used is None:
            return None
        return 100 * ratio_of(self.used, self.most)

    @property
    def is_near(self) -> bool:
        """Whether the limit is nearly reached."""
        return self.percent is not None and self.percent >= 100 * WARN_RATIO

    @property
    def is_reached(self) -> bool:
        """Whether no more fits."""
        return self.percent is not None and self.percent >= 100  # noqa: PLR2004 - the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """What a tenant has against its quotas; storage is of `measured_at`."""

    limits: Limits
    uses: tuple[Use, ...]
    measured_at: datetime | None


def figures() -> PlatformFigures:
    """Return the platform's figures; for operators."""
    scope, store, at = current_scope(), portal().store, now()
    scope.require(Permission.OPERATE)

    def find() -> PlatformFigures:
        with database() as session:
            return platform_figures(session, store, scope, now=at)

    return portal().minute.get("figures", find)


def tenant_use(session: Session, tenant_id: str) -> TenantUse:
    """Return what a tenant has; the caller has checked who asks."""
    limits = limits_of(session, tenant_id)
    measured = latest_usage(session, [tenant_id]).get(tenant_id)
    series = series_counts(session, [tenant_id], now=now()).get(tenant_id)
    most_series = limits.max_series
    if most_series is None:
        most_series = portal().settings.max_series_per_tenant or None
    uses = (
        Use(name="Appliances", used=count_appliances(session, tenant_id),
            most=limits.max_appliances, is_refused="No more appliances can enrol."),
        Use(name="GPUs", used=count_gpus(session, tenant_id), most=limits.max_gpus,
            is_refused="No appliance with GPUs can enrol."),
        Use(name="Jobs at a time", used=active_jobs(session, tenant_id),
            most=limits.max_active_jobs, is_refused="New jobs are refused until one ends."),
        Use(name="Storage", used=None if measured is None else measured.storage_bytes,
            most=limits.max_storage_bytes, is_bytes=True,
            is_refused="New samples are refused; agents keep them and try again."),
        Use(name="Series", used=series, most=most_series,
            is_refused="Samples of further series are refused; those of the others are taken."),
    )  # fmt: skip
    return TenantUse(
        limits=limits, uses=uses, measured_at=None if measured is None else measured.measured_at
    )
