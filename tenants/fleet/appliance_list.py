"""Lists of appliances: narrowed, sorted and paged by the database, however many there are."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, case, or_, select
from sqlalchemy.orm import Session, defer

from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import sort_terms
from tenants.fleet.life import LifeState, in_service, life_is, life_rank
from tenants.models import Appliance, ApplianceState, HealthState
from tenants.permissions import Permission
from tenants.scope import Scope

Health = HealthState | Literal["unknown"]
UNKNOWN: Final = "unknown"
_MOST_CHOICES: Final = 200
_QUOTES: Final = re.compile(r'["\\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceFilter:
    """Which appliances; what is empty or None narrows nothing.

    Attributes:
        life: only those with this word; without it, those in service.
        state: only those whose silence is judged so.
        health: only those of this health; `unknown` for those whose agents tell none.
        appliance_class: only those of this class, as `8 x flagship`.
        site: only those at this site.
        region: only those in this region.
        label: only those with this label, `rack` or `rack=b12`.
        gpu_model: only those with GPUs of this model.
        search: only those with this text in their name, site, region or GPU model.
    """

    life: LifeState | None = None
    state: ApplianceState | None = None
    health: Health | None = None
    appliance_class: str = ""
    site: str = ""
    region: str = ""
    label: str = ""
    gpu_model: str = ""
    search: str = ""


@dataclass(frozen=True, slots=True)
class FilterChoices:
    """What the appliances in service have, for a person to choose from."""

    classes: list[str]
    sites: list[str]
    regions: list[str]
    gpu_models: list[str]


ALL: Final = ApplianceFilter()
_ILLNESS: Final = {HealthState.FAILED: 0, HealthState.DEGRADED: 1, HealthState.HEALTHY: 3}


def list_appliances(
    session: Session,
    scope: Scope,
    wanted: ApplianceFilter = ALL,
    *,
    sort: str = "name",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
    is_brief: bool = False,
) -> Page[Appliance]:
    """Return the appliances that the scope may see.

    Args:
        session: the database session.
        scope: who asks.
        wanted: which of them.
        sort: names of `SORTS` with commas between; a hyphen before one turns its order round.
        page: the page's number, from 1.
        page_size: how many on a page.
        is_brief: leave their inventory and health in the database; they may be large.

    Raises:
        InvalidInputError: there is nothing of a name to sort by.
    """
    scope.require(Permission.VIEW)
    # Ids first: to sort whole rows is to read all of them.
    statement = scope.select(select(Appliance.id), Appliance).where(*_conditions(wanted))
    ordered = statement.order_by(*_order(sort))
    chosen: Page[str] = paginate(session, ordered, number=page, size=page_size)
    return chosen.of(_read(session, chosen.items, is_brief=is_brief))


def filter_choices(session: Session, scope: Scope) -> FilterChoices:
    """Return what lists can be narrowed by: what the appliances in service have."""
    scope.require(Permission.VIEW)
    statement: Any = select(
        Appliance.appliance_class, Appliance.site, Appliance.region, Appliance.gpu_model
    )
    narrowed = scope.select(statement.where(in_service()).distinct(), Appliance)
    found = session.execute(narrowed).all()
    columns = [{row[at] for row in found} - {""} for at in range(4)]
    return FilterChoices(*[sorted(values)[:_MOST_CHOICES] for values in columns])


SORTS: Final[Mapping[str, ColumnElement[Any]]] = {
    "name": Appliance.name.expression,
    "life": life_rank(),
    "health": case(_ILLNESS, value=Appliance.health_state, else_=2),
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
    # Appliances of one name go the way of the names: an index can be read backwards, not both ways.
    is_down = ("name", True) in terms
    return [*order, Appliance.id.desc() if is_down else Appliance.id.asc()]


def _conditions(wanted: ApplianceFilter) -> list[ColumnElement[bool]]:
    conditions = [in_service() if wanted.life is None else life_is(wanted.life)]
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
    if wanted.label:
        conditions.append(_has_label(wanted.label))
    if wanted.search:
        columns = (Appliance.name, Appliance.site, Appliance.region, Appliance.gpu_model)
        found = (column.icontains(wanted.search, autoescape=True) for column in columns)
        conditions.append(or_(*found))
    return conditions


def _has_label(label: str) -> ColumnElement[bool]:
    key, equals, value = (part.strip() for part in label.partition("="))
    # The key becomes a part of a path in quotes, which none of its own may end.
    found: ColumnElement[str] = Appliance.labels[_QUOTES.sub("", key)].as_string()
    return found == value if equals else found.is_not(None)


def _read(session: Session, idents: Sequence[str], *, is_brief: bool) -> list[Appliance]:
    """Return the rows with these ids, in their order."""
    statement = select(Appliance).where(Appliance.id.in_(idents))
    if is_brief:
        statement = statement.options(
            defer(Appliance.inventory, raiseload=True), defer(Appliance.health, raiseload=True)
        )
    found = {one.id: one for one in session.scalars(statement)}
    return [found[ident] for ident in idents if ident in found]
