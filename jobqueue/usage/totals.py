"""Sums of the usage ledger: for pages, reports, CSV and the API.

    period = Period(since, until)
    live = live_use(session, store, scope, period, now=now)
    totals = usage_totals(session, scope, period, by=UsageBy.USER, live=live)

This is the only source of GPU-hours: the whole hours of a period are those of the ledger, the rest
is `live`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Any

from sqlalchemy import Select, String, func, select
from sqlalchemy import cast as cast_to
from sqlalchemy.orm import Session

from core.csv_cells import csv_text, guarded
from core.db import SessionFactory, transaction
from core.paging import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_NUMBER,
    MAX_PAGE_SIZE,
    Column,
    Page,
    sort_terms,
    sorted_by,
)
from jobqueue.models import CHARGED_FROM, Attempt, Job
from jobqueue.partitions.measures import gpu_amount
from jobqueue.projects.models import Project
from jobqueue.states import ALLOCATED_STATES
from jobqueue.usage.ledger import WANTS_GPUS, floor_hour
from jobqueue.usage.live import Live
from jobqueue.usage.measuring import Period, Use
from jobqueue.usage.models import UsageEntry
from tenants.fleet.appliances import appliance_names
from tenants.models import Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope

JOULES_PER_KILOWATT_HOUR = 3_600_000
SECONDS_PER_HOUR = 3600
USAGE_SORTS = (
    "key",
    "allocated_gpu_seconds",
    "used_gpu_seconds",
    "idle_gpu_seconds",
    "energy_kilowatt_hours",
)


DEFAULT_SORT = "-allocated_gpu_seconds"
# The places of what a sort names in a row, after the key and the name.
_PLACES = dict(zip(USAGE_SORTS, (0, 2, 3, 4, 5), strict=True))


class UsageBy(StrEnum):
    """The key by which sums are grouped."""

    TENANT = "tenant"
    USER = "user"
    PROJECT = "project"
    BUDGET_LABEL = "budget_label"
    JOB = "job"
    APPLIANCE = "appliance"
    GPU_MODEL = "gpu_model"
    DAY = "day"


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
    def allocated_gpu_hours(self) -> float:
        """Allocated GPU time in hours, as most pages show it."""
        return self.allocated_gpu_seconds / SECONDS_PER_HOUR

    @property
    def unmeasured_gpu_seconds(self) -> float:
        """Allocated GPU time without samples, such as the start of a job."""
        measured = self.used_gpu_seconds + self.idle_gpu_seconds
        # The seconds are whole milliseconds; their difference as floats is not.
        return round(max(0.0, self.allocated_gpu_seconds - measured), 3)

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
    UsageBy.PROJECT: func.coalesce(UsageEntry.project_id, ""),
    UsageBy.BUDGET_LABEL: func.coalesce(Project.budget_label, ""),
    UsageBy.JOB: UsageEntry.job_id,
    # Of a rented appliance its customer knows the contract.
    UsageBy.APPLIANCE: func.coalesce(UsageEntry.contract_id, UsageEntry.appliance_id),
    UsageBy.GPU_MODEL: UsageEntry.gpu_model,
    UsageBy.DAY: cast_to(func.date(UsageEntry.hour_at), String(10)),
}
_NAMES: dict[UsageBy, Any] = {
    UsageBy.TENANT: (Tenant.id, Tenant.name),
    UsageBy.USER: (User.id, User.email),
    UsageBy.PROJECT: (Project.id, Project.name),
}


def usage_totals(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    by: UsageBy,
    live: Live,
    appliances: Collection[str] | None = None,
    sort: str = DEFAULT_SORT,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[UsageTotal]:
    """Return the sums of the groups that the scope may see, the largest first by default.

    Args:
        session: for the ledger.
        scope: whose GPU time.
        period: the time.
        by: the grouping.
        live: what the ledger doesn't have of the same period and appliances.
        appliances: the ids of some; None for all.
        sort: of `USAGE_SORTS`.
        page: from 1.
        page_size: how many groups a page has.

    Raises:
        InvalidInputError: the sort has an unknown field.
    """
    size = max(1, min(page_size, MAX_PAGE_SIZE))
    number = max(1, min(page, MAX_PAGE_NUMBER))
    groups = _Groups(session, _grouped(scope, period, by, appliances, live), by, live)
    rows = groups.read(sort or DEFAULT_SORT, start=(number - 1) * size, count=size)
    return Page(_named(session, by, rows), groups.count(), number, size)


def usage_groups(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    by: UsageBy,
    live: Live,
    appliances: Collection[str] | None = None,
    limit: int,
) -> list[UsageTotal]:
    """Return the sums of up to `limit` groups, the largest first, in one pass over the ledger."""
    groups = _Groups(session, _grouped(scope, period, by, appliances, live), by, live)
    return _named(session, by, groups.read(DEFAULT_SORT, start=0, count=limit))


class _Groups:
    """The groups of the ledger with what is live added; their rows are key, name, and figures.

    Only the groups with live use, which are at most as many as attempts run, are sorted here: a
    page reads as many further ones from the database as it may need.
    """

    def __init__(self, session: Session, statement: Select[Any], by: UsageBy, live: Live) -> None:
        is_label = by is UsageBy.BUDGET_LABEL and live.uses
        labels = _budget_labels(session) if is_label else {}
        added = _live_by_key(live, by, labels)
        is_live = _KEYS[by].in_(added)
        rows = session.execute(statement.where(is_live)).all() if added else []
        recorded = {row[0]: Use(*map(int, row[2:])) for row in rows}
        self._session = session
        self._key = _KEYS[by]
        self._live = [
            (key, name, *(recorded.get(key, Use()) + use).figures)
            for key, (name, use) in added.items()
        ]
        self._recorded = statement.where(~is_live) if added else statement

    def count(self) -> int:
        """Return the number of groups."""
        plain = self._recorded.subquery()
        recorded = self._session.scalar(select(func.count()).select_from(plain)) or 0
        return recorded + len(self._live)

    def read(self, sort: str, *, start: int, count: int) -> list[Sequence[Any]]:
        """Return `count` rows in order from row `start` on."""
        columns = dict(zip(USAGE_SORTS, (self._key, *_SUMS), strict=True))
        ordered = sorted_by(self._recorded, sort, columns, last=self._key)
        # At most the live groups come before these.
        offset = max(0, start - len(self._live))
        page = ordered.limit(start + count - offset).offset(offset)
        rows: list[Sequence[Any]] = [*self._session.execute(page), *self._live]
        if self._live:
            terms = sort_terms(sort, columns)
            for name, is_descending in reversed([*terms, ("key", terms[-1][1])]):
                rows.sort(key=itemgetter(_PLACES[name]), reverse=is_descending)
        return rows[start - offset : start - offset + count]


def _budget_labels(session: Session) -> dict[str | None, str]:
    """Return the budget labels of projects by id."""
    labeled = select(Project.id, Project.budget_label).where(Project.budget_label != "")
    return {row[0]: row[1] for row in session.execute(labeled)}


def _live_by_key(
    live: Live, by: UsageBy, labels: Mapping[str | None, str]
) -> dict[str, tuple[str, Use]]:
    """Return the name of its job and the live use of each group."""
    sums: dict[str, tuple[str, Use]] = {}
    for row in live.uses:
        key = {
            UsageBy.TENANT: row.attempt.tenant_id,
            UsageBy.USER: row.attempt.user_id or "",
            UsageBy.PROJECT: row.attempt.project_id or "",
            UsageBy.BUDGET_LABEL: labels.get(row.attempt.project_id, ""),
            UsageBy.JOB: row.attempt.job_id,
            UsageBy.APPLIANCE: row.attempt.contract_id or row.attempt.appliance_id,
            UsageBy.GPU_MODEL: row.gpu_model,
            UsageBy.DAY: row.day,
        }[by]
        sums[key] = row.attempt.job_name, sums.get(key, ("", Use()))[1] + row.use
    return sums


def _grouped(
    scope: Scope, period: Period, by: UsageBy, appliances: Collection[str] | None, live: Live
) -> Select[Any]:
    scope.require(Permission.VIEW)
    key = _KEYS[by]
    job_name = func.max(UsageEntry.job_name)
    statement = select(key, job_name, *_SUMS).select_from(UsageEntry).group_by(key)
    if by is UsageBy.BUDGET_LABEL:
        statement = statement.outerjoin(Project, Project.id == UsageEntry.project_id)
    return _within(statement, scope, period, appliances, live)


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
    live: Live,
    appliances: Collection[str] | None = None,
) -> UsageTotal:
    """Return the sum of everything that the scope may see; `appliances` selects by id."""
    scope.require(Permission.VIEW)
    sums = session.execute(_within(select(*_SUMS), scope, period, appliances, live)).one()
    recorded = Use(*(int(figure or 0) for figure in sums))
    return _total("", "", sum((row.use for row in live.uses), recorded).figures)


def allocated_by_tenant_and_day(
    session: Session, scope: Scope, period: Period, *, live: Live
) -> dict[tuple[str, str], float]:
    """Return the allocated GPU-hours by tenant id and day in UTC, `2026-03-02`."""
    scope.require(Permission.VIEW)
    keys = UsageEntry.tenant_id, _KEYS[UsageBy.DAY]
    statement = _within(select(*keys, _SUMS[0]).group_by(*keys), scope, period, None, live)
    sums = {(tenant, day): int(sum_) for tenant, day, sum_ in session.execute(statement)}
    for row in live.uses:
        key = row.attempt.tenant_id, row.day
        sums[key] = sums.get(key, 0) + row.use.allocated_milliseconds
    return {key: milliseconds / 1000 / SECONDS_PER_HOUR for key, milliseconds in sums.items()}


def allocated_now(session: Session, scope: Scope) -> tuple[float, int]:
    """Return how many GPUs are allocated now, and to how many jobs; slices count as a share."""
    scope.require(Permission.VIEW)
    statement: Any = (
        select(Attempt.job_id, Attempt.gpu_uuids, Attempt.gpu_slice)
        .join(Job, Attempt.job_id == Job.id)
        .where(Attempt.state.in_(ALLOCATED_STATES), WANTS_GPUS, CHARGED_FROM.is_not(None))
    )
    rows = [row for row in session.execute(scope.select(statement, Attempt)) if row.gpu_uuids]
    amount = sum(gpu_amount(row.gpu_uuids, row.gpu_slice) for row in rows)
    return round(amount, 3), len({row.job_id for row in rows})


_CSV_FIGURES = (
    "allocated_gpu_seconds",
    "used_gpu_seconds",
    "idle_gpu_seconds",
    "unmeasured_gpu_seconds",
    "energy_kilowatt_hours",
)


def usage_csv(
    sessions: SessionFactory,
    scope: Scope,
    period: Period,
    *,
    by: UsageBy,
    live: Live,
    costs: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the lines of a CSV file with all groups; pages are read in short transactions.

    `costs` are those of groups by their key; None leaves the column out.
    """
    cost_column = [] if costs is None else ["cost"]
    yield csv_text([[by.value, "name", *_CSV_FIGURES, *cost_column]])
    number, is_last = 1, False
    while not is_last:
        with transaction(sessions) as session:
            page = usage_totals(
                session,
                scope,
                period,
                by=by,
                live=live,
                sort="key",
                page=number,
                page_size=MAX_PAGE_SIZE,
            )
        yield csv_text(
            [
                guarded(total.key),
                guarded(total.name),
                *(f"{getattr(total, name):.6f}" for name in _CSV_FIGURES),
                *([] if costs is None else [costs.get(total.key, "0.00")]),
            ]
            for total in page.items
        )
        is_last, number = number >= page.count, number + 1


def _within(
    statement: Select[*tuple[Any, ...]],
    scope: Scope,
    period: Period,
    appliances: Collection[str] | None,
    live: Live,
) -> Select[Any]:
    until = floor_hour(min(period.until, live.recorded_at or period.until))
    statement = statement.where(UsageEntry.hour_at >= period.since, UsageEntry.hour_at < until)
    if appliances is not None:
        statement = statement.where(UsageEntry.appliance_id.in_(appliances))
    return scope.select(statement, UsageEntry)


def _names(session: Session, by: UsageBy, keys: Sequence[str]) -> dict[str, str]:
    if by in {UsageBy.GPU_MODEL, UsageBy.DAY}:
        return {key: key for key in keys}
    if by is UsageBy.BUDGET_LABEL:
        return {key: key or "No budget label" for key in keys}
    if by is UsageBy.JOB:
        return {}
    if by is UsageBy.APPLIANCE:
        return appliance_names(session, None, ids=keys)
    ident, name = _NAMES[by]
    none = {"": "No project"} if by is UsageBy.PROJECT else {}
    return none | {
        row[0]: row[1] for row in session.execute(select(ident, name).where(ident.in_(keys)))
    }


def _total(key: str, name: str, sums: Sequence[Any]) -> UsageTotal:
    # MySQL's sums are decimals, and sums of nothing are NULL.
    allocated, used, idle, joules = (int(figure or 0) for figure in sums)
    return UsageTotal(
        key=key,
        name=name,
        allocated_gpu_seconds=allocated / 1000,
        used_gpu_seconds=used / 1000,
        idle_gpu_seconds=idle / 1000,
        energy_kilowatt_hours=joules / JOULES_PER_KILOWATT_HOUR,
    )
