"""The map of other programs' metrics fits what we declare, and finds the series that it names."""

import pytest

from timeseries.declared import DECLARED
from timeseries.metric_map import (
    Use,
    all_derived,
    all_mappings,
    derived_of,
    mapping_of,
    mappings_by_source,
)

# The counters that dcgm-exporter exports by default and that are values of a GPU.
DCGM_DEFAULTS = """
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER
GPU_UTIL MEM_COPY_UTIL ENC_UTIL DEC_UTIL FB_FREE FB_USED FB_RESERVED UNCORRECTABLE_REMAPPED_ROWS
CORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE VGPU_LICENSE_STATUS
"""


def test_every_mapping_leads_to_a_declared_metric_or_serves_to_derive_one() -> None:
    inputs = {
        (derived.to.partition(".")[0], name)
        for derived in all_derived()
        for name in (*derived.plus, *derived.minus, *derived.optional, derived.percent)
    }
    for mapping in all_mappings():
        declared = DECLARED[mapping.measurement]
        assert mapping.field in declared.fields or (mapping.measurement, mapping.field) in inputs, (
            mapping.metric
        )
        assert declared.tags.issuperset(mapping.tags.values()), mapping.metric
    for derived in all_derived():
        measurement, _, field = derived.to.partition(".")
        assert field in DECLARED[measurement].fields, derived.to


def test_a_counter_becomes_a_rate_exactly_where_our_metric_is_one() -> None:
    for mapping in all_mappings():
        is_counter = mapping.source.endswith("_total") and mapping.sender == "node_exporter"
        is_rate_there = mapping.source.endswith("_per_second")
        if is_counter or (mapping.field.endswith("_per_second") and not is_rate_there):
            is_gauge_of_dcgm = mapping.source.startswith("DCGM_FI_PROF_")
            assert (mapping.use is Use.RATE) is not is_gauge_of_dcgm, mapping.source


def test_the_gpu_counters_that_dcgm_exporter_exports_by_default_are_mapped() -> None:
    names = {f"DCGM_FI_DEV_{name}" for name in DCGM_DEFAULTS.split()}
    assert names <= mappings_by_source().keys()


def test_labels_choose_the_metric_and_become_tags() -> None:
    idle = mapping_of("node_cpu_seconds_total", {"mode": "idle", "cpu": "3"})
    assert idle is not None
    assert (idle.metric, idle.use, idle.scale) == ("cpu.idle_percent", Use.RATE, 100)
    labels = {"device": "eth0", "instance": "h:9100"}
    received = mapping_of("node_network_receive_bytes_total", labels)
    assert received is not None
    assert received.our_tags(labels) == {"interface": "eth0"}
    assert mapping_of("node_network_receive_bytes_total", {"device": "veth12"}) is None
    assert mapping_of("DCGM_FI_DEV_GPU_UTIL", {"gpu": "0", "GPU_I_ID": "1"}) is None
    assert mapping_of("node_scrape_collector_success", {}) is None


@pytest.mark.parametrize(
    ("metric", "fields", "value"),
    [
        ("memory.used_percent", {"used_bytes": 3.0, "total_bytes": 4.0}, 75.0),
        ("memory.used_percent", {"used_bytes": 3.0, "total_bytes": 0.0}, None),
        ("memory.used_percent", {"used_bytes": 3.0}, None),
        ("cpu.usage_percent", {"idle_percent": 60.0, "iowait_percent": 10.0}, 30.0),
        ("cpu.usage_percent", {"idle_percent": 100.2, "iowait_percent": 0.0}, 0.0),
        ("disk.used_percent", {"used_bytes": 90.0, "free_bytes": 30.0}, 75.0),
        ("gpu.memory_total_bytes", {"memory_used_bytes": 2.0, "memory_free_bytes": 6.0}, 8.0),
        (
            "gpu.memory_total_bytes",
            {"memory_used_bytes": 2.0, "memory_free_bytes": 6.0, "memory_reserved_bytes": 1.0},
            9.0,
        ),
    ],
)
def test_fields_are_derived_from_their_parts(
    metric: str, fields: dict[str, float], value: float | None
) -> None:
    measurement = metric.partition(".")[0]
    [derived] = [item for item in derived_of(measurement) if item.to == metric]
    assert derived.value(fields) == value
