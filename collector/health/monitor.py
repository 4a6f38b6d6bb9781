"""The health monitor: observes all readings, and evaluates the health for the heartbeats.

It uses the measurements `gpu`, `gpu_process`, `gpu_xid` and `disk` of any plugin. Known GPUs and
their XIDs survive a restart.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock

from collector.health.evaluation import SEVERITY, evaluate_health
from collector.health.gpus import GPUTrackers, KnownGPU, KnownGPUs, gpu_index
from collector.health.history import HealthHistory
from collector.health.signals import GPUSignals, Signals
from collector.reading.plugin_reader import PluginPlan
from core.clock import to_ns
from plugins.base import GPUTags
from protocol.health import ApplianceHealth
from protocol.inventory import GPUInfo, Inventory
from timeseries.points import Point

SILENT_INTERVALS = 3
MIN_SILENT_SECONDS = 60.0
MAX_DISK_AGE_SECONDS = 900.0
# The plugins with measurement `gpu`.
GPU_PLUGINS = ("nvml", "amdgpu", "simulated_gpu")


class HealthMonitor:
    """Collects signals and evaluates them. Thread-safe.

    Args:
        data_dir: folder of `known_gpus.json` and `health.json`.
        gpu_interval_seconds: how often GPUs are read; None if no plugin reads any.
        job_of_gpu: returns GPU UUID to job id, for the tag `job`.
        proc: the kernel's process files, which have the boot id.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        gpu_interval_seconds: float | None = None,
        job_of_gpu: Callable[[], Mapping[str, str]] = dict,
        proc: Path = Path("/proc"),
    ) -> None:
        self._lock = Lock()
        self._job_of_gpu = job_of_gpu
        self._silent_after: float | None = None
        if gpu_interval_seconds is not None:
            self._silent_after = max(MIN_SILENT_SECONDS, SILENT_INTERVALS * gpu_interval_seconds)
        self._known = KnownGPUs(data_dir)
        self._history = HealthHistory(data_dir, proc=proc)
        self._inventory: Inventory | None = None
        self._trackers = GPUTrackers(self._known)
        self._disks: dict[str, tuple[float, float]] = {}
        self._gpu_read_at: float | None = None
        self._points_due_at: datetime | None = None
        self._reported: dict[str, frozenset[str]] = {}

    def observe(self, points: Iterable[Point], now: datetime) -> None:
        """Add readings; other measurements are ignored."""
        with self._lock:
            for point in points:
                match point.measurement:
                    case "gpu":
                        if self._trackers.add_reading(point):
                            self._gpu_read_at = now.timestamp()
                    case "gpu_process":
                        self._trackers.add_process(point)
                    case "gpu_xid":
                        self._add_xid(point)
                    case "disk":
                        self._add_disk(point, now)

    def set_inventory(self, inventory: Inventory) -> None:
        """Set the current inventory: known GPUs that it does not contain are missing."""
        with self._lock:
            self._inventory = inventory
            self._known.update(self._present(gpu) for gpu in inventory.gpus)

    def known_gpus(self) -> GPUTags:
        """Return the tags of known GPUs that are not in the inventory, by index."""
        with self._lock:
            listed = self._inventory.gpus if self._inventory else ()
            present = {gpu.uuid for gpu in listed}
            return {
                str(gpu.index): {"uuid": gpu.uuid, "model": gpu.model}
                for gpu in self._known.gpus.values()
                if gpu.uuid not in present
            }

    def report(self, now: datetime) -> ApplianceHealth:
        """Return the current health, and write changes to disk."""
        with self._lock:
            if self._inventory is not None:
                if self._known.take_acceptance():
                    self._known.forget_missing()
                    self._history.clear()
                    self._trackers.forget_unknown()
                self._known.update(self._present(gpu) for gpu in self._inventory.gpus)
            self._known.save()
            self._history.save()
            return self._evaluate(now)

    def points(self, now: datetime) -> list[Point]:
        """Return measurement `gpu_health`: one point for each GPU and one for the appliance."""
        with self._lock:
            health = self._evaluate(now)
            missing = sum(not gpu.is_present for gpu in self._known.gpus.values())
        job_of_gpu, time_ns = self._job_of_gpu(), to_ns(now)
        findings = len(health.findings) + sum(len(gpu.findings) for gpu in health.gpus)
        fields = {"state": SEVERITY[health.state], "findings": findings, "gpus_missing": missing}
        points = [Point("gpu_health", {}, fields, time_ns)]
        for gpu in health.gpus:
            tags = {"gpu": str(gpu.index), "uuid": gpu.uuid}
            if gpu.uuid in job_of_gpu:
                tags["job"] = job_of_gpu[gpu.uuid]
            fields = {"state": SEVERITY[gpu.state], "findings": len(gpu.findings)}
            points.append(Point("gpu_health", tags, fields, time_ns))
        return points

    def points_when_due(self, now: datetime, *, interval_seconds: float) -> list[Point]:
        """Return the points if they are due, else none."""
        due_at, interval = self._points_due_at, timedelta(seconds=interval_seconds)
        if due_at is not None and now < due_at <= now + interval:
            return []
        self._points_due_at = now + interval
        return self.points(now)

    def _present(self, gpu: GPUInfo) -> KnownGPU:
        tracker = self._trackers.get(gpu.uuid)
        links = tracker.reading.get("nvlinks_active", 0.0) if tracker else 0.0
        return KnownGPU(uuid=gpu.uuid, index=gpu.index, model=gpu.model, has_nvlinks=links > 0)

    def _add_xid(self, point: Point) -> None:
        code, uuid = point.tags.get("xid", ""), point.tags.get("uuid", "")
        if code.isdecimal() and uuid:
            self._history.record_xid(uuid, gpu_index(point), int(code), at_ns=point.time_ns)

    def _add_disk(self, point: Point, now: datetime) -> None:
        used = point.fields.get("used_percent")
        if used is not None and not isinstance(used, str):
            self._disks[point.tags.get("mount", "")] = (now.timestamp(), float(used))

    def _evaluate(self, now: datetime) -> ApplianceHealth:
        health = evaluate_health(self._signals(now), now)
        self._reported = {
            gpu.uuid: frozenset(finding.reason for finding in gpu.findings) for gpu in health.gpus
        }
        return health

    def _signals(self, now: datetime) -> Signals:
        at = now.timestamp()
        listed = {gpu.uuid: gpu for gpu in self._inventory.gpus} if self._inventory else {}
        uuids = dict.fromkeys([*listed, *self._trackers.uuids, *self._known.gpus])
        gpus = [self._gpu_signals(uuid, listed.get(uuid), at) for uuid in uuids]
        return Signals(
            gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))),
            disk_used_percent={
                mount: percent
                for mount, (read_at, percent) in self._disks.items()
                if at - read_at <= MAX_DISK_AGE_SECONDS
            },
            silent_seconds=self._silent_seconds(at) if listed else None,
        )

    def _gpu_signals(self, uuid: str, info: GPUInfo | None, at: float) -> GPUSignals:
        known_gpu = self._known.gpus.get(uuid)
        tracker = self._trackers.get(uuid)
        source = info or tracker or known_gpu
        assert source is not None  # noqa: S101 - the uuid is from one of the three
        signals = GPUSignals(
            index=source.index,
            uuid=uuid,
            model=source.model,
            info=info,
            is_missing=self._inventory is not None and info is None and known_gpu is not None,
            had_nvlinks=known_gpu is not None and known_gpu.has_nvlinks,
            xids=tuple(record for record in self._history.records if record.uuid == uuid),
            reported=self._reported.get(uuid, frozenset()),
        )
        return signals if tracker is None else tracker.add_to(signals, at)

    def _silent_seconds(self, at: float) -> float | None:
        """Return how long no GPU was read, counted from the first evaluation."""
        if self._silent_after is None:
            return None
        if self._gpu_read_at is None or self._gpu_read_at > at:
            self._gpu_read_at = at
        silent_seconds = at - self._gpu_read_at
        return silent_seconds if silent_seconds >= self._silent_after else None


def gpu_interval_seconds(plans: Iterable[PluginPlan]) -> float | None:
    """Return how often GPUs are read; None if no plan reads any."""
    return max((plan.interval_seconds for plan in plans if plan.name in GPU_PLUGINS), default=None)
