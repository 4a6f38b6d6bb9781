"""The catalogue of metrics for pickers; a store that does not answer gives an empty one."""

import logging

from timeseries.store import IDENTITY_TAGS, TENANT_TAG, Store, StoreUnavailableError

log = logging.getLogger(__name__)
NUMBERS = frozenset({"float", "integer", "boolean"})


def metric_names(store: Store, tenants: tuple[str, ...] | None) -> list[str]:
    """Return `measurement.field` of every field that holds numbers, sorted."""
    try:
        return sorted(
            f"{measurement}.{name}"
            for measurement in store.measurements(tenants=tenants)
            for name, kind in store.fields(measurement, tenants=tenants).items()
            if kind in NUMBERS
        )
    except StoreUnavailableError as error:
        log.warning("The metric picker is empty: %s", error.message)
        return []


def tag_names(store: Store, tenants: tuple[str, ...] | None) -> list[str]:
    """Return the tags by which a rule may split its series, `appliance` first."""
    try:
        found = {
            tag
            for measurement in store.measurements(tenants=tenants)
            for tag in store.tags(measurement, tenants=tenants)
        }
    except StoreUnavailableError as error:
        log.warning("The tag picker is empty: %s", error.message)
        found = set()
    others = sorted(found - set(IDENTITY_TAGS))
    return [tag for tag in IDENTITY_TAGS if tag != TENANT_TAG] + others
