"""The catalog of metrics: what plugins declare, and whatever else a tenant has samples of.

`metric_descriptions.json` has the descriptions of declared metrics, which are those of the plugins.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from core.quantities import unit_of
from timeseries.declared import DECLARED
from timeseries.store import IDENTITY_TAGS, TENANT_TAG, Store

COUNTERS = frozenset(
    f"{measurement}.{field}"
    for measurement, fields in {
        "agent": "access_point_failovers access_point_moves "
        "certificate_renewal_failures damaged_bytes dropped_by_age_points "
        "dropped_by_size_points dropped_points gather_failures implausible_readings "
        "remote_write_dropped_points remote_write_failures remote_write_rejected_samples "
        "remote_write_sent_samples send_failures sent_points undeliverable_lines "
        "dataset_fetched_bytes dataset_peer_bytes",
        "container": "restarts",
        "gpu": "ecc_corrected_aggregate ecc_corrected_volatile ecc_uncorrected_aggregate "
        "ecc_uncorrected_volatile energy_joules low_utilization_seconds nvlink_errors pcie_replays "
        "remapped_rows_corrected remapped_rows_uncorrected retired_pages_double_bit "
        "retired_pages_single_bit sram_ecc_corrected_aggregate sram_ecc_uncorrected_aggregate "
        "throttled_by_board_seconds throttled_by_heat_seconds "
        "throttled_by_power_seconds "
        "throttled_by_reliability_seconds throttled_by_sync_boost_seconds",
        "gpu_ecc": "corrected_aggregate corrected_volatile uncorrected_aggregate "
        "uncorrected_volatile",
        "gpu_link": "crc_errors recovery_errors replay_errors",
        "plugin": "errors timeouts",
        "rule_evaluation": "skipped_evaluations",
        "service_status": "restarts",
    }.items()
    for field in fields.split()
)
"""The declared metrics that only grow, until they restart at 0; all others are gauges or events."""
NUMBERS = frozenset({"float", "integer", "boolean"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogMetric:
    """A field of a measurement, with numbers.

    Attributes:
        name: `measurement.field`.
        tags: those that its samples have, or may have.
        has_samples: whether the tenant has samples of it.
    """

    name: str
    measurement: str
    field: str
    unit: str
    description: str
    tags: tuple[str, ...]
    has_samples: bool


def list_metrics(store: Store, *, tenants: tuple[str, ...] | None) -> list[CatalogMetric]:
    """Return the metrics with samples, then the declared ones without, each by name."""
    stored = {}
    for measurement in store.measurements(tenants=tenants):
        kinds = store.fields(measurement, tenants=tenants)
        tags = tuple(tag for tag in store.tags(measurement, tenants=tenants) if tag != TENANT_TAG)
        for field, kind in kinds.items():
            if kind in NUMBERS:
                stored[measurement, field] = tags
    identity = tuple(tag for tag in IDENTITY_TAGS if tag != TENANT_TAG)
    declared = {
        (measurement, field): (*identity, *sorted(declaration.tags))
        for measurement, declaration in DECLARED.items()
        for field in declaration.fields
    }
    with_samples = [_metric(key, tags, has_samples=True) for key, tags in sorted(stored.items())]
    missing = sorted(declared.keys() - stored.keys())
    return with_samples + [_metric(key, declared[key], has_samples=False) for key in missing]


def search_metrics(metrics: Sequence[CatalogMetric], text: str) -> list[CatalogMetric]:
    """Return the metrics that have every word in name, unit or description, best first."""
    words = text.lower().split()
    ranked = []
    for metric in metrics:
        name = metric.name.lower()
        everything = f"{name} {metric.unit} {metric.description}".lower()
        if all(word in everything for word in words):
            in_name = sum(word in name for word in words)
            starts = sum(name.startswith(word) or f".{word}" in name for word in words)
            ranked.append(((not metric.has_samples, -in_name, -starts, name), metric))
    return [metric for _, metric in sorted(ranked, key=lambda pair: pair[0])]


def _metric(key: tuple[str, str], tags: tuple[str, ...], *, has_samples: bool) -> CatalogMetric:
    measurement, field = key
    return CatalogMetric(
        name=f"{measurement}.{field}",
        measurement=measurement,
        field=field,
        unit=unit_of(field).symbol,
        description=descriptions().get(measurement, {}).get(field, ""),
        tags=tags,
        has_samples=has_samples,
    )


@cache
def descriptions() -> dict[str, dict[str, str]]:
    """Return the descriptions of declared metrics by measurement and field."""
    text = resources.files("timeseries").joinpath("metric_descriptions.json").read_text("utf-8")
    texts: dict[str, dict[str, str]] = json.loads(text)
    return texts
