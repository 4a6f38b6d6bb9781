"""The common parts of report builders: the source of figures, the filter, and group names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, joinedload

from core.clock import NS_PER_SECOND, to_ns
from core.errors import InvalidInputError
from dash_app.reports.report import Cell, Column, ReportBy, Request
from jobqueue.usage.live import Live, live_use
from tenants.models import Appliance, Grant, Tenant, rented_name
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Aggregate, RangeQuery, Series, Store

MAX_ROWS = 10_000
# Objects that a report is computed from: more take too long for one request.
MAX_OBJECTS = 200_000
HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400
REMOVED = "(removed)"
NONE = "(none)"


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of a report, without the name of each row in the columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    totals: Sequence[Cell]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """The database and the store as a scope sees them, for one request."""

    session: Session
    store: Store
    scope: Scope
    request: Request
    now: datetime

    @cached_property
    def appliances(self) -> Mapping[str, Appliance]:
        """The appliances that the filter selects, by id; removed ones, too."""
        statement = self.scope.select(select(Appliance).order_by(Appliance.name), Appliance)
        statement = statement.options(joinedload(Appliance.tenant))
        words = self.request.appliances.casefold().split()
        return {
            appliance.id: appliance
            for appliance in self.session.scalars(statement).unique()
            if all(word in _search_text(appliance) for word in words)
        }

    @property
    def selected(self) -> list[str] | None:
        """The ids of the selected appliances; None without a filter."""
        return list(self.appliances) if self.request.appliances.split() else None

    @cached_property
    def live(self) -> Live:
        """The GPU time of the period and the selected appliances that is not in the ledger."""
        return live_use(
            self.session,
            self.store,
            self.scope,
            self.request.period,
            now=self.now,
            appliances=self.selected,
        )

    @cached_property
    def tenant_names(self) -> Mapping[str, str]:
        """The names of tenants by id."""
        statement: Any = select(Tenant.id, Tenant.name)
        if self.scope.tenant_id is not None:
            statement = statement.where(Tenant.id == self.scope.tenant_id)
        return {row[0]: row[1] for row in self.session.execute(statement)}

    @cached_property
    def _rented(self) -> Mapping[str, str]:
        """The names of what the scope rents, by contract, for groups by appliance."""
        statement: Any = select(Grant.contract_id, Grant.offer_name)
        rows = self.session.execute(self.scope.select(statement, Grant))
        return {contract_id: rented_name(offer_name) for contract_id, offer_name in rows}

    def group_of(self, appliance_id: str) -> str:
        """Return the group of what belongs to an appliance, by the request's grouping."""
        if not appliance_id:
            return NONE
        appliance = self.appliances.get(appliance_id)
        if appliance is None:
            return self._rented.get(appliance_id, REMOVED)
        return {
            ReportBy.SITE: appliance.site or NONE,
            ReportBy.GPU_MODEL: appliance.gpu_model or NONE,
            ReportBy.TENANT: appliance.tenant.name,
        }.get(self.request.by, appliance.name)

    def check_count(self, statement: Select[Any]) -> None:
        """Raise `InvalidInputError` if a statement selects too many objects."""
        count = self.session.scalar(statement.with_only_columns(func.count()).order_by(None)) or 0
        if count > MAX_OBJECTS:
            raise_too_large(f"{count:,} objects", f"{MAX_OBJECTS:,}")

    def series(
        self,
        measurement: str,
        fields: tuple[str, ...],
        *,
        group_by: tuple[str, ...],
        aggregate: Aggregate = Aggregate.AVG,
        step_seconds: int | None = None,
    ) -> tuple[Series, ...]:
        """Return aggregates of samples of the period by appliance and further tags."""
        selected = self.selected
        if selected == []:
            return ()
        query = RangeQuery(
            measurement=measurement,
            fields=fields,
            start_ns=to_ns(self.request.period.since),
            end_ns=to_ns(min(self.request.period.until, self.now)),
            aggregate=aggregate,
            step_ns=step_seconds and step_seconds * NS_PER_SECOND,
            tenants=self.scope.tenants,
            filters={} if selected is None else {APPLIANCE_TAG: tuple(selected)},
            group_by=(APPLIANCE_TAG, *group_by),
        )
        return tuple(self.store.query_range(query))


def largest_first(
    groups: Mapping[str, Sequence[Any]], by: ReportBy
) -> list[tuple[str, Sequence[Any]]]:
    """Return groups by size, or days in order."""
    is_day = by is ReportBy.DAY
    return sorted(groups.items(), key=lambda item: (0 if is_day else -len(item[1]), item[0]))


def raise_too_large(description: str, limit: str) -> NoReturn:
    """Raise `InvalidInputError` for a report that would be too large."""
    message = f"The report would have {description}, more than {limit}. Choose a shorter period."
    raise InvalidInputError(message, errors={"since": [message]})


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _search_text(appliance: Appliance) -> str:
    labels = [f"{key}={value}" for key, value in appliance.labels.items()]
    words = (appliance.name, appliance.site, appliance.gpu_model, *labels)
    return "\n".join(words).casefold()
