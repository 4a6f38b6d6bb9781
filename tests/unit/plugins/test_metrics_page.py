"""Readings of captured hosts have the measurements, tags and fields of docs/metrics.md, only."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from collector.implausible import implausible_fields
from plugins.base import MetricKind, PluginContext
from plugins.registry import BUILT_IN, load_plugin_class
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig, Workload
from tests.fixtures.metrics_page import documented, documented_ranges, undocumented
from tests.unit.plugins.conftest import CAPTURES, FIRST_AT, SECOND_AT, CapturedHost
from timeseries.declared import DECLARED
from timeseries.metric_catalog import COUNTERS, descriptions
from timeseries.points import Point


def read_twice(name: str, host: CapturedHost, context: PluginContext) -> list[Point]:
    """Read a plugin on two captures of one host, ten seconds apart."""
    plugin_class = load_plugin_class(name)
    plugin = plugin_class(plugin_class.config_class(), context)
    host.use("proc_a")
    points = list(plugin.gather(FIRST_AT))
    host.use("proc_b")
    points += plugin.gather(SECOND_AT)
    plugin.close()
    return points


def odd(points: Iterable[Point]) -> set[str]:
    """Return what is not on the page, and what its ranges say can't be true."""
    read = list(points)
    implausible = {
        f"{point.measurement}.{name}: {reason}"
        for point in read
        for name, reason in implausible_fields(point.measurement, point.fields).items()
    }
    return implausible | undocumented(
        (point.measurement, point.tags, point.fields) for point in read
    )


KERNELS = ("cpu", "memory", "swap", "load", "disk", "network", "processes", "uptime")


@pytest.mark.parametrize("name", KERNELS)
def test_a_hosts_readings_are_on_the_page(name: str, host: CapturedHost) -> None:
    host.use("proc_states")
    (host.proc / "self").mkdir()
    (host.proc / "self" / "mountinfo").symlink_to("/proc/self/mountinfo")
    points = read_twice(name, host, host.context)
    assert points
    assert odd(points) == set()


def test_sensors_are_on_the_page(host: CapturedHost) -> None:
    host.use("sys_server")
    points = read_twice("sensors", host, host.context)
    assert points
    assert odd(points) == set()


def test_every_field_of_the_cpus_is_read(host: CapturedHost) -> None:
    points = read_twice("cpu", host, host.context)
    for measurement in ("cpu", "cpu_core"):
        fields = {
            name for point in points if point.measurement == measurement for name in point.fields
        }
        assert fields == documented()[measurement].fields


@pytest.mark.parametrize("card", ["mi300x", "radeon"])
def test_amds_gpus_are_on_the_page(card: str, host: CapturedHost) -> None:
    root = CAPTURES / "amdgpu" / card
    context = replace(host.context, sys=root / "sys", proc=root / "proc")
    assert odd(read_twice("amdgpu", host, context)) == set()


def test_the_inventory_is_on_the_page(host: CapturedHost) -> None:
    root = CAPTURES / "inventory"
    context = replace(host.context, sys=root / "sys", proc=root / "proc")
    assert odd(read_twice("inventory", host, context)) == set()


@pytest.mark.parametrize("name", ["simulated_gpu", "simulated_host"])
def test_a_simulated_appliances_readings_are_on_the_page(name: str, host: CapturedHost) -> None:
    config = SimulationConfig(seed="acme/dgx-1", xid_gpu=2, external_gpu=3)
    model = SimulatedAppliance(config, started_at=FIRST_AT)
    model.add(Workload(workload_id="train", gpu_uuids=config.gpu_uuids[:1], started_at=FIRST_AT))
    assert odd(read_twice(name, host, replace(host.context, simulation=model))) == set()


def test_the_declared_metrics_are_those_of_the_page() -> None:
    declared = {name: (metrics.tags, metrics.fields) for name, metrics in DECLARED.items()}

    assert declared == {
        name: (metrics.tags, metrics.fields) for name, metrics in documented().items()
    }


def test_the_plausible_values_of_every_declared_metric_are_those_of_the_page() -> None:
    page = documented_ranges()
    declared = {
        name: limits for metrics in DECLARED.values() for name, limits in metrics.ranges.items()
    }

    assert {name: str(limits) for name, limits in declared.items()} == {
        name: page[name] if name in page else page[longest_suffix(page, name)] for name in declared
    }


def longest_suffix(page: Iterable[str], name: str) -> str:
    return max((key for key in page if key.startswith("_") and name.endswith(key)), key=len)


def test_the_catalog_describes_every_declared_metric_as_its_plugin_does() -> None:
    described = {name: set(fields) for name, fields in descriptions().items()}
    assert described == {name: set(metrics.fields) for name, metrics in DECLARED.items()}
    by_plugins = {
        (metric.name, metric.description)
        for name in BUILT_IN
        for metric in load_plugin_class(name).metrics
    }
    declared = {name for name, _ in by_plugins}
    texts = {pair for fields in descriptions().values() for pair in fields.items()}
    # Measurements of the agent and the portal have no plugin.
    own = {"agent", "appliance_status", "attempt", "gpu_health", "job_queue", "plugin"}
    own |= {"cluster", "cluster_node", "outgoing_messages", "rule_evaluation", "service_status"}
    own |= {"service_load"}
    others = {pair for name in own for pair in descriptions()[name].items()}
    assert {pair for pair in texts if pair[0] in declared} <= by_plugins | others


def test_the_catalog_has_the_counters_of_the_plugins() -> None:
    kinds = {
        (metric.name, metric.description): metric.kind
        for name in BUILT_IN
        for metric in load_plugin_class(name).metrics
    }
    for measurement, fields in descriptions().items():
        for pair in fields.items():
            is_counter = f"{measurement}.{pair[0]}" in COUNTERS
            if pair in kinds:
                assert is_counter is (kinds[pair] is MetricKind.COUNTER), pair
    assert {name.partition(".")[0] for name in COUNTERS} <= DECLARED.keys()
