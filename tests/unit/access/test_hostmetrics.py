"""The receiver `hostmetrics` of OpenTelemetry: what it sends has our names, too."""

from access.ingest.prometheus.otlp_names import metric_name
from access.ingest.readings import Readings
from timeseries.metric_map import all_mappings
from timeseries.points import Batch, Point

GIB = 2**30
# Its metrics on Linux, with their units; of sums that only grow, and of gauges of a share.
COUNTERS = {
    "system.cpu.time": "s",
    "system.disk.io": "By",
    "system.disk.operations": "{operations}",
    "system.disk.io_time": "s",
    "system.network.io": "By",
    "system.network.packets": "{packets}",
    "system.network.errors": "{errors}",
    "system.network.dropped": "{packets}",
    "system.processes.created": "{processes}",
}
SUMS = {
    "system.cpu.logical.count": "{cpu}",
    "system.memory.usage": "By",
    "system.memory.limit": "By",
    "system.linux.memory.available": "By",
    "system.paging.usage": "By",
    "system.filesystem.usage": "By",
    "system.filesystem.inodes.usage": "{inodes}",
    "system.disk.pending_operations": "{operations}",
    "system.processes.count": "{processes}",
}
GAUGES = {
    "system.cpu.utilization": "1",
    "system.cpu.load_average.1m": "{thread}",
    "system.cpu.load_average.5m": "{thread}",
    "system.cpu.load_average.15m": "{thread}",
    "system.memory.utilization": "1",
    "system.uptime": "s",
}


def test_every_mapped_metric_is_one_that_the_receiver_sends() -> None:
    names = {
        metric_name(name, unit, is_total=True, is_ratio=False) for name, unit in COUNTERS.items()
    }
    names |= {
        metric_name(name, unit, is_total=False, is_ratio=False) for name, unit in SUMS.items()
    }
    names |= {
        metric_name(name, unit, is_total=False, is_ratio=True) for name, unit in GAUGES.items()
    }
    mapped = {mapping.source for mapping in all_mappings() if mapping.sender == "hostmetrics"}
    assert mapped == names


def test_a_host_s_metrics_become_ours() -> None:
    sent = [
        *(
            ("system_cpu_utilization_ratio", {"cpu": cpu, "state": state}, share)
            for cpu, idle in (("cpu0", 0.5), ("cpu1", 0.7))
            for state, share in (("idle", idle), ("wait", 0.1), ("user", 0.9 - idle))
        ),
        *(
            ("system_memory_usage_bytes", {"state": state}, gib * GIB)
            for state, gib in (("used", 6), ("free", 1), ("cached", 7), ("buffered", 2))
        ),
        *(
            ("system_filesystem_usage_bytes", _filesystem(state), gib * GIB)
            for state, gib in (("used", 30), ("free", 60), ("reserved", 10))
        ),
        ("system_filesystem_usage_bytes", {**_filesystem("used"), "type": "tmpfs"}, GIB),
        ("system_cpu_load_average_1m", {}, 3.5),
    ]
    points = [Point(name, tags, {"value": float(value)}, 10**18) for name, tags, value in sent]

    ours = {
        (point.measurement, tuple(sorted(point.tags.items()))): point.fields
        for point in Readings().of_blocks("a1", Batch.of(points).blocks)
    }
    cpu = ours["cpu", ()]
    assert (cpu["idle_percent"], cpu["iowait_percent"], cpu["usage_percent"]) == (60, 10, 30)
    memory = ours["memory", ()]
    assert (memory["total_bytes"], memory["used_percent"]) == (16 * GIB, 37.5)
    disk = ours["disk", (("device", "/dev/sda1"), ("mount", "/"))]
    assert (disk["total_bytes"], round(float(disk["used_percent"]), 6)) == (100 * GIB, 33.333333)
    assert ours["load", ()] == {"load1": 3.5}


def _filesystem(state: str) -> dict[str, str]:
    return {"device": "/dev/sda1", "mountpoint": "/", "type": "ext4", "state": state}
