"""Sums of the usage ledger: for pages, reports, CSV and the API.

    totals = usage_totals(session, scope, Period(since, until), by=UsageBy.USER)

Hours are indivisible: a period takes those that begin in it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, String, func, select
from sqlalchemy import cast as cast_to
from sqlalchemy.orm import Session

from core.csv_cells import csv_text, guarded
from core.db import SessionFactory, transaction
from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Column, Page, paginate, sorted_by
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES
from jobqueue.usage.models import UsageEntry
from tenants.models import Appliance, Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope

JOULES_PER_KILOWATT_HOUR = 3_600_000
USAGE_SORTS = (
    "key",
    "allocated_gpu_seconds",
    "used_gpu_seconds",
    "idle_gpu_seconds",
    "energy_kilowatt_hours",
)


class UsageBy(StrEnum):
    """What a sum is grouped by."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"
    APPLIANCE = "appliance"
    GPU_MODEL = "gpu_model"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Period:
    """The hours from `since` to before `until`."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """The sum of a group; `key` is its id, `name` is "" if it was deleted.

    GPU-seconds count each GPU: `allocated` is the sum of `used`, `idle` and what was not measured.
    """

    key: str
    name: str
    allocated_gpu_seconds: float
    used_gpu_seconds: float
    idle_gpu_seconds: float
    energy_kilowatt_hours: float

    @property
    def unmeasured_gpu_seconds(self) -> float:
        """Allocated GPU time without samples, such as the start of a job."""
        return self.allocated_gpu_seconds - self.used_gpu_seconds - self.idle_gpu_seconds

    @property
    def used_ratio(self) -> float | None:
        """The used share of the measured time; None if nothing was measured."""
        measured = self.used_gpu_seconds + self.idle_gpu_seconds
        return self.used_gpu_seconds / measured if measured else None


_SUMS = (
    func.sum(UsageEntry.allocated_milliseconds),
    func.sum(UsageEntry.used_milliseconds),
    func.sum(UsageEntry.idle_milliseconds),
    func.sum(UsageEntry.energy_joules),
)
_KEYS: dict[UsageBy, Column] = {
    UsageBy.TENANT: UsageEntry.tenant_id,
    UsageBy.USER: func.coalesce(UsageEntry.user_id, ""),
    UsageBy.JOB: UsageEntry.job_id,
    UsageBy.APPLIANCE: UsageEntry.appliance_id,
    UsageBy.GPU_MODEL: UsageEntry.gpu_model,
    UsageBy.DAY: cast_to(func.date(UsageEntry.hour_at), String(10)),
}
_NAMES: dict[UsageBy, Any] = {
    UsageBy.TENANT: (Tenant.id, Tenant.name),
    UsageBy.USER: (User.id, User.email),
    UsageBy.APPLIANCE: (Appliance.id, Appliance.name),
}


def usage_totals(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    by: UsageBy,
    appliances: Collection[str] | None = None,
    sort: str = "-allocated_gpu_seconds",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[UsageTotal]:
    """Return the sums of the groups that the scope may see, the largest first by default.

    `appliances` selects by id; None is all.

    Raises:
        InvalidInputError: the sort has an unknown field.
    """
    ordered = _ordered(scope, period, by, appliances, sort=sort or "-allocated_gpu_seconds")
    found = paginate(session, ordered, number=page, size=page_size)
    return found.of(_named(session, by, found.items))


def usage_groups(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    by: UsageBy,
    appliances: Collection[str] | None = None,
    most: int,
) -> list[UsageTotal]:
    """Return the sums of `most` groups, the largest first, in one pass over the ledger."""
    ordered = _ordered(scope, period, by, appliances, sort="-allocated_gpu_seconds")
    return _named(session, by, session.execute(ordered.limit(most)).all())


def _ordered(
    scope: Scope,
    period: Period,
    by: UsageBy,
    appliances: Collection[str] | None,
    *,
    sort: str,
) -> Select[Any]:
    scope.require(Permission.VIEW)
    key = _KEYS[by]
    job_name = func.max(UsageEntry.job_name)
    statement = _within(select(key, job_name, *_SUMS).group_by(key), scope, period, appliances)
    columns = dict(zip(USAGE_SORTS, (key, *_SUMS), strict=True))
    return sorted_by(statement, sort, columns, last=key)


def _named(session: Session, by: UsageBy, rows: Sequence[Any]) -> list[UsageTotal]:
    names = _names(session, by, [row[0] for row in rows])
    return [
        _total(ident, name if by is UsageBy.JOB else names.get(ident, ""), sums)
        for ident, name, *sums in rows
    ]


def usage_sum(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    appliances: Collection[str] | None = None,
) -> UsageTotal:
    """Return the sum of everything that the scope may see; `appliances` selects by id."""
    scope.require(Permission.VIEW)
    statement = _within(select(*_SUMS), scope, period, appliances)
    return _total("", "", session.execute(statement).one())


def allocated_now(session: Session, scope: Scope) -> tuple[int, int]:
    """Return how many GPUs are allocated at this moment, and to how many attempts."""
    scope.require(Permission.VIEW)
    statement: Any = (
        select(func.coalesce(func.sum(Job.gpus), 0), func.count())
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.state.in_(ALLOCATED_STATES), Job.gpus > 0)
    )
    gpus, attempts = session.execute(scope.select(statement, Attempt)).one()
    return int(gpus), attempts


_CSV_FIGURES = (
    "allocated_gpu_seconds",
    "used_gpu_seconds",
    "idle_gpu_seconds",
    "unmeasured_gpu_seconds",
    "energy_kilowatt_hours",
)


def usage_csv(
    sessions: SessionFactory, scope: Scope, period: Period, *, by: UsageBy
) -> Iterator[str]:
    """Yield the lines of a CSV file with all groups; pages are read in short transactions."""
    yield csv_text([[by.value, "name", *_CSV_FIGURES]])
    number, is_last = 1, False
    while not is_last:
        with transaction(sessions) as session:
            page = usage_totals(
                session, scope, period, by=by, sort="key", page=number, page_size=MAX_PAGE_SIZE
            )
        yield csv_text(
            [
                guarded(one.key),
                guarded(one.name),
                *(f"{getattr(one, name):.6f}" for name in _CSV_FIGURES),
            ]
            for one in page.items
        )
        is_last, number = number >= page.count, number + 1


def _within(
    statement: Select[*tuple[Any, ...]],
    scope: Scope,
    period: Period,
    appliances: Collection[str] | None,
) -> Select[Any]:
    statement = statement.where(
        UsageEntry.hour_at >= period.since, UsageEntry.hour_at < period.until
    )
    if appliances is not None:
        statement = statement.where(UsageEntry.appliance_id.in_(appliances))
    return scope.select(statement, UsageEntry)


def _names(session: Session, by: UsageBy, keys: Sequence[str]) -> dict[str, str]:
    if by in {UsageBy.GPU_MODEL, UsageBy.DAY}:
        return {key: key for key in keys}
    if by is UsageBy.JOB:
        return {}
    ident, name = _NAMES[by]
    return {row[0]: row[1] for row in session.execute(select(ident, name).where(ident.in_(keys)))}


def _total(key: str, name: str, sums: Sequence[Any]) -> UsageTotal:
    # MySQL's sums are decimals, and sums of nothing are NULL.
    allocated, used, idle, joules = (int(one or 0) for one in sums)
    return UsageTotal(
        key=key,
        name=name,
        allocated_gpu_seconds=allocated / 1000,
        used_gpu_seconds=used / 1000,
        idle_gpu_seconds=idle / 1000,
        energy_kilowatt_hours=joules / JOULES_PER_KILOWATT_HOUR,
    )
