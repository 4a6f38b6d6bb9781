"""Appliances: list, find and select them; the database filters, sorts and pages. And their reports.

A fleet's reports are megabytes of JSON that rarely change. A `ReportCache` reads and parses one
again only when its `report_id` has changed.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Text, case, or_, select, type_coerce, update
from sqlalchemy.orm import Session, aliased, joinedload, selectinload, undefer
from sqlalchemy.orm.interfaces import ORMOption

from core.changes import Topic, note_change
from core.db import changed_one, chunked
from core.errors import NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate, sort_terms
from protocol.gpu_processes import GPUProcess
from protocol.health import ApplianceHealth, HealthState
from protocol.inventory import Inventory
from tenants.fleet.events import EventKind, actor_details, add_event
from tenants.fleet.nodes import refuse_nodes
from tenants.fleet.states import (
    EffectiveStatus,
    effective_status_rank,
    has_effective_status,
    has_no_connector,
    in_service,
)
from tenants.models import Appliance, ApplianceState, Grant, decode_inventory, rented_name
from tenants.permissions import Permission
from tenants.scope import Scope

Health = HealthState | Literal["unknown"]
UNKNOWN: Final = "unknown"
_MOST_CHOICES: Final = 200
# Ids in one statement.
_QUOTES: Final = re.compile(r'["\\]')
T = TypeVar("T")
MAX_REPORTS = 20_000
"""The capacity of a cache of parsed reports."""


class Nodes(StrEnum):
    """Whether a list has the nodes of clusters."""

    ALL = "all"
    WITHOUT = "without"
    ONLY = "only"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceFilter:
    """Filters of the list; empty ones do not filter.

    Without a `status`, all appliances in service are listed. The health is `unknown` for agents
    that report none. `label` is `rack` or `rack=b12`; `search` a part of the name, site, region or
    GPU model. `connector` selects the nodes of one cluster.
    """

    status: EffectiveStatus | None = None
    state: ApplianceState | None = None
    health: Health | None = None
    appliance_class: str = ""
    site: str = ""
    region: str = ""
    label: str = ""
    gpu_model: str = ""
    search: str = ""
    nodes: Nodes | None = None
    connector: str = ""


@dataclass(frozen=True, slots=True)
class FilterChoices:
    """The values of appliances in service, to choose filters from."""

    classes: list[str]
    sites: list[str]
    regions: list[str]
    gpu_models: list[str]


ALL: Final = ApplianceFilter()
_HEALTH_RANK: Final = {HealthState.FAILED: 0, HealthState.DEGRADED: 1, HealthState.HEALTHY: 3}


def list_appliances(
    session: Session,
    scope: Scope,
    wanted: ApplianceFilter = ALL,
    *,
    sort: str = "name",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Appliance]:
    """Return the appliances in the scope, without inventory and health."""
    scope.require(Permission.VIEW)
    # Ids first: sorting whole rows would read all of them.
    statement = scope.select(select(Appliance.id), Appliance).where(*_conditions(wanted))
    ordered = statement.order_by(*_order(sort))
    chosen: Page[str] = paginate(session, ordered, number=page, size=page_size)
    return chosen.of(_read(session, chosen.items))


def filter_choices(session: Session, scope: Scope) -> FilterChoices:
    """Return the values that the list can be filtered by."""
    scope.require(Permission.VIEW)
    statement: Any = select(
        Appliance.appliance_class, Appliance.site, Appliance.region, Appliance.gpu_model
    )
    narrowed = scope.select(statement.where(in_service()).distinct(), Appliance)
    rows = session.execute(narrowed).all()
    columns = [{row[at] for row in rows} - {""} for at in range(4)]
    return FilterChoices(*[sorted(values)[:_MOST_CHOICES] for values in columns])


SORTS: Final[Mapping[str, ColumnElement[Any]]] = {
    "name": Appliance.name.expression,
    "status": effective_status_rank(),
    "health": case(_HEALTH_RANK, value=Appliance.health_state, else_=2),
    "gpus": Appliance.gpu_count.expression,
    "class": Appliance.appliance_class.expression,
    "gpu_model": Appliance.gpu_model.expression,
    "site": Appliance.site.expression,
    "region": Appliance.region.expression,
    "agent_version": Appliance.agent_version.expression,
    "last_seen_at": Appliance.last_seen_at.expression,
}


def _order(sort: str) -> list[ColumnElement[Any]]:
    terms = sort_terms(sort or "name", SORTS)
    order = [SORTS[name].desc() if is_down else SORTS[name].asc() for name, is_down in terms]
    if all(name != "name" for name, _ in terms):
        order.append(Appliance.name.asc())
    # Ids in the direction of the names: an index is read forwards or backwards, not both.
    is_down = ("name", True) in terms
    return [*order, Appliance.id.desc() if is_down else Appliance.id.asc()]


def _conditions(wanted: ApplianceFilter) -> list[ColumnElement[bool]]:
    conditions = [in_service() if wanted.status is None else has_effective_status(wanted.status)]
    if wanted.state is not None:
        conditions.append(Appliance.state == wanted.state)
    if wanted.health == UNKNOWN:
        conditions.append(Appliance.health_state.is_(None))
    elif wanted.health is not None:
        conditions.append(Appliance.health_state == wanted.health)
    for column, text in (
        (Appliance.appliance_class, wanted.appliance_class),
        (Appliance.site, wanted.site),
        (Appliance.region, wanted.region),
        (Appliance.gpu_model, wanted.gpu_model),
    ):
        if text:
            conditions.append(column == text)
    conditions += _node_conditions(wanted)
    if wanted.label:
        key, equals, value = (part.strip() for part in wanted.label.partition("="))
        # The key becomes a quoted part of a JSON path: remove quotes.
        label: ColumnElement[str] = Appliance.labels[_QUOTES.sub("", key)].as_string()
        conditions.append(label == value if equals else label.is_not(None))
    if wanted.search:
        columns = (Appliance.name, Appliance.site, Appliance.region, Appliance.gpu_model)
        matches = (column.icontains(wanted.search, autoescape=True) for column in columns)
        conditions.append(or_(*matches))
    return conditions


def _node_conditions(wanted: ApplianceFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.nodes is Nodes.WITHOUT:
        # By two indexes: the one that covers the list has no connectors, and rows are wide.
        node = aliased(Appliance)
        yield Appliance.id.not_in(select(node.id).where(node.connector_id.is_not(None)))
    elif wanted.nodes is Nodes.ONLY:
        yield Appliance.connector_id.is_not(None)
    if wanted.connector:
        yield Appliance.connector_id == wanted.connector


def _read(session: Session, idents: Sequence[str]) -> list[Appliance]:
    """Return the rows with these ids, in their order."""
    shown = joinedload(Appliance.tenant), selectinload(Appliance.connector)
    statement = select(Appliance).where(Appliance.id.in_(idents)).options(*shown)
    appliances = {appliance.id: appliance for appliance in session.scalars(statement)}
    return [appliances[ident] for ident in idents if ident in appliances]


def get_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Return an appliance in the scope, with inventory, health and GPU processes.

    A node of a cluster has the inventory of its connector, too, which reports it.
    """
    scope.require(Permission.VIEW)
    of_connector = selectinload(Appliance.connector).undefer(Appliance.inventory)
    options = [*with_report(), undefer(Appliance.gpu_processes), of_connector]
    options.append(joinedload(Appliance.tenant))
    return scope.get(session, Appliance, appliance_id, kind="appliance", options=options)


def appliance_names(
    session: Session, tenants: tuple[str, ...] | None, *, ids: Collection[str] | None = None
) -> dict[str, str]:
    """Return names by id of these tenants' appliances (None: all), retired ones included.

    Those that a tenant rents have the name of the offer, and the contract's id. `ids` selects.
    """
    own: Any = select(Appliance.id, Appliance.name)
    rented: Any = select(Grant.contract_id, Grant.offer_name)
    if tenants is not None:
        own = own.where(Appliance.tenant_id.in_(tenants))
        rented = rented.where(Grant.tenant_id.in_(tenants))
    if ids is not None:
        own = own.where(Appliance.id.in_(ids))
        rented = rented.where(Grant.contract_id.in_(ids))
    offers = {ident: rented_name(offer_name) for ident, offer_name in session.execute(rented)}
    return {row[0]: row[1] for row in session.execute(own)} | offers


def bump_generation(session: Session, appliance_id: str) -> None:
    """Increment the generation of an appliance's desired state, so that its agent fetches it."""
    bump = update(Appliance).where(Appliance.id == appliance_id)
    if not changed_one(session, bump.values(desired_generation=Appliance.desired_generation + 1)):
        raise NotFoundError.of("appliance", appliance_id)
    note_change(session, Topic.DESIRED, appliance_id)


def bump_generations(session: Session, appliance_ids: Collection[str]) -> None:
    """Increment the generations of several appliances; those that are gone are ignored."""
    for chunk in chunked(sorted(appliance_ids)):
        bump = update(Appliance).where(Appliance.id.in_(chunk))
        session.execute(
            bump.values(desired_generation=Appliance.desired_generation + 1),
            execution_options={"synchronize_session": False},
        )
    note_change(session, Topic.DESIRED, *appliance_ids)


def renew_orders_at(session: Session, tenant_id: str, site: str) -> None:
    """Let the appliances of a site fetch their orders anew: who their neighbors are has changed.

    Without a name, appliances are at no site together.
    """
    if site:
        there = select(Appliance.id).where(
            Appliance.tenant_id == tenant_id, Appliance.site == site, has_no_connector()
        )
        bump_generations(session, session.scalars(there).all())


def open_appliances(
    session: Session, appliance_ids: Collection[str], *, trials: Collection[str] = ()
) -> set[str]:
    """Lock appliances, and return those that accept jobs; quarantined ones only for `trials`."""
    accepts = (
        or_(Appliance.quarantined_at.is_(None), Appliance.id.in_(trials)),
        Appliance.state == ApplianceState.ONLINE,
        Appliance.drained_at.is_(None),
        Appliance.fenced_at.is_(None),
        in_service(),
    )
    open_ids: set[str] = set()
    for chunk in chunked(sorted(appliance_ids)):
        statement = select(Appliance.id).where(Appliance.id.in_(chunk), *accepts)
        open_ids.update(session.scalars(statement.with_for_update()))
    return open_ids


def mark_placed(session: Session, appliance_ids: Collection[str], *, now: datetime) -> None:
    """Record that jobs were placed on appliances."""
    for chunk in chunked(sorted(appliance_ids)):
        placed = update(Appliance).where(Appliance.id.in_(chunk)).values(last_placed_at=now)
        session.execute(placed, execution_options={"synchronize_session": False})


def managed_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Return an appliance that the scope may change.

    Raises:
        ConflictError: it is a node of a cluster.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    refuse_nodes([appliance])
    return appliance


def managed_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str]
) -> list[Appliance]:
    """Return several appliances, in the order of the ids.

    Raises:
        NotFoundError: names each missing one.
        ConflictError: some are nodes of clusters.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    statement = scope.select(select(Appliance).where(Appliance.id.in_(appliance_ids)), Appliance)
    appliances = {appliance.id: appliance for appliance in session.scalars(statement)}
    missing = {
        ident: NotFoundError.of("appliance", ident).message
        for ident in appliance_ids
        if ident not in appliances
    }
    if missing:
        raise NotFoundError(
            next(iter(missing.values())), errors={ident: [text] for ident, text in missing.items()}
        )
    refuse_nodes(appliances.values())
    return [appliances[ident] for ident in dict.fromkeys(appliance_ids)]


def add_change_event(
    session: Session, appliance: Appliance, kind: EventKind, message: str, *, now: datetime
) -> None:
    """Record a change and its actor as an event."""
    add_event(session, appliance, kind, message, details=actor_details(session), now=now)


def with_report() -> list[ORMOption]:
    """Return the options of a query that reads inventory and health, too."""
    return [undefer(Appliance.inventory), undefer(Appliance.health)]


def read_inventory(row: Appliance) -> Inventory:
    """Return an appliance's inventory; an invalid one has no executors, so it gets no jobs."""
    return decode_inventory(row.inventory)


def read_health(row: Appliance) -> ApplianceHealth | None:
    """Return the health that an appliance's agent reported last; None if it is unknown."""
    try:
        return msgspec.convert(row.health, ApplianceHealth | None)
    except msgspec.ValidationError:
        return None


def read_gpu_processes(row: Appliance) -> list[GPUProcess] | None:
    """Return the processes on an appliance's GPUs; None unless it is online and reports them."""
    if row.state is not ApplianceState.ONLINE:
        return None
    try:
        return msgspec.convert(row.gpu_processes, list[GPUProcess] | None)
    except msgspec.ValidationError:
        return None


class ReportCache(Generic[T]):
    """Parsed reports of appliances.

    Args:
        parse: from an inventory and a health report as JSON, as they are stored, to what its
            readers need; they must not change it.
        max_reports: how many stay parsed.
    """

    def __init__(
        self, parse: Callable[[str, str | None], T], *, max_reports: int = MAX_REPORTS
    ) -> None:
        self._parse = parse
        self._max_reports = max_reports
        # By appliance, with the id of the report. Threads may parse one twice.
        self._parsed: dict[str, tuple[str, T]] = {}

    def read(self, session: Session, report_ids: Mapping[str, str | None]) -> dict[str, T]:
        """Return the reports of appliances by id, without those that were deleted meanwhile.

        Args:
            session: the database session.
            report_ids: the id of each appliance's report, by the appliance's id, which the caller
                has read in its scope.
        """
        reports = {}
        for ident, report_id in report_ids.items():
            cached = self._parsed.get(ident)
            if cached is not None and cached[0] == report_id:
                reports[ident] = cached[1]
        unread = [ident for ident in report_ids if ident not in reports]
        for ids in chunked(unread):
            statement = select(
                Appliance.id,
                Appliance.report_id,
                type_coerce(Appliance.inventory, Text),
                type_coerce(Appliance.health, Text),
            ).where(Appliance.id.in_(ids))
            for ident, report_id, inventory, health in session.execute(statement):
                reports[ident] = self._parse(inventory, health)
                if len(self._parsed) >= self._max_reports:
                    self._parsed.clear()
                if report_id is not None:
                    self._parsed[ident] = report_id, reports[ident]
        return reports
