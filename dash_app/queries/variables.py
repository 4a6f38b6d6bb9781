"""The choices of a dashboard's variables, and filters on the places of appliances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select

from core.errors import UnavailableError
from dash_app.context import Choice, View
from dash_app.custom.panels import PLACES, Panel
from dash_app.custom.variables import Variable, variables_of
from dash_app.figures import natural_order
from tenants.fleet.states import has_no_connector
from tenants.models import Appliance
from timeseries.store import APPLIANCE_TAG, Store

# A menu with more is searched in vain; the address accepts any value.
MAX_OPTIONS = 200
# No appliance has this id, so that a filter on it selects nothing.
_NO_APPLIANCE = "-"


@dataclass(frozen=True, slots=True)
class Located:
    """An appliance's name and place."""

    name: str
    places: Mapping[str, str]


def located_appliances(view: View) -> dict[str, Located]:
    """Return the appliances that the user sees and that have samples of their own, by id."""
    columns: Any = select(Appliance.id, Appliance.name, Appliance.site, Appliance.region)
    rows = view.session.execute(view.scope.select(columns.where(has_no_connector()), Appliance))
    return {row[0]: Located(row[1], {"site": row[2], "region": row[3]}) for row in rows}


def choices_of(
    view: View, panels: Sequence[Panel], appliances: Mapping[str, Located]
) -> list[Choice]:
    """Return the choices that the toolbar has for the variables of panels."""
    choices = []
    for variable in variables_of(panels):
        try:
            options = _options(view, variable, appliances)
        except UnavailableError:
            # The panels say so; the chosen value stays.
            options = []
        ordered = sorted({*options} - {""}, key=natural_order)[:MAX_OPTIONS]
        choices.append(Choice(variable.parameter, variable.name, ordered))
    return choices


def in_places(
    panel: Panel, appliances: Mapping[str, Located], store: Store, tenants: tuple[str, ...] | None
) -> Panel:
    """Return a panel with the appliances of its places, where its samples have no such tags."""
    names = PLACES & panel.filters.keys()
    names -= set(store.tags(panel.measurement, tenants=tenants)) if names else set()
    if not names:
        return panel
    chosen = set(panel.filters.get(APPLIANCE_TAG, ()))
    idents = [
        ident
        for ident, appliance in appliances.items()
        if all(appliance.places[name] in panel.filters[name] for name in names)
        and (not chosen or chosen & {ident, appliance.name})
    ]
    others = {tag: values for tag, values in panel.filters.items() if tag not in names}
    return replace(panel, filters=others | {APPLIANCE_TAG: idents or [_NO_APPLIANCE]})


def _options(view: View, variable: Variable, appliances: Mapping[str, Located]) -> Sequence[str]:
    tenants = view.scope.tenants
    if variable.tag == APPLIANCE_TAG:
        return [appliance.name for appliance in appliances.values()]
    is_place = variable.tag in PLACES
    if is_place and variable.tag not in view.store.tags(variable.measurement, tenants=tenants):
        return [appliance.places[variable.tag] for appliance in appliances.values()]
    return view.store.tag_values(variable.measurement, variable.tag, tenants=tenants)
