"""Health of this appliance: fed with every point that the plugins give, asked by the heartbeat.

It takes what it needs from measurements `gpu`, `gpu_process`, `gpu_xid` and `disk`, whoever reads
them, and remembers over restarts which GPUs there were and which XIDs they had.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock

from collector.health.judge import SEVERITY, judge
from collector.health.known_gpus import KnownGPU, KnownGPUs
from collector.health.memory import HealthMemory
from collector.health.signs import GPUSigns, Signs
from collector.health.trackers import GPUTrackers, index_of
from collector.reading.readers import PluginPlan
from core.clock import to_ns
from jobqueue.executors.health import ApplianceHealth
from jobqueue.executors.wire import GPUInfo, Inventory
from plugins.base import GPUTags
from timeseries.points import Point

SILENT_INTERVALS = 3
LEAST_SILENT_SECONDS = 60.0
DISK_FRESH_SECONDS = 900.0
NS_PER_SECOND = 1e9
# The plugins that give measurement `gpu`.
GPU_PLUGINS = ("nvml", "amdgpu", "simulated_gpu")


def _no_holders() -> Mapping[str, str]:
    return {}


class HealthMonitor:
    """Keeps what health is judged by. Safe to share by threads.

    Args:
        data_dir: where `known_gpus.json` and `health.json` are kept.
        gpu_interval_seconds: how often GPUs are read; None where no plugin reads any, so that
            their silence means nothing.
        job_of_gpu: gives GPU UUID to the id of the job that holds it, for the tag `job`.
        proc: the kernel's process files, which name the boot.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        gpu_interval_seconds: float | None = None,
        job_of_gpu: Callable[[], Mapping[str, str]] = _no_holders,
        proc: Path = Path("/proc"),
    ) -> None:
        self._lock = Lock()
        self._job_of_gpu = job_of_gpu
        self._silent_after: float | None = None
        if gpu_interval_seconds is not None:
            self._silent_after = max(LEAST_SILENT_SECONDS, SILENT_INTERVALS * gpu_interval_seconds)
        self._known = KnownGPUs(data_dir)
        self._memory = HealthMemory(data_dir, proc=proc)
        self._inventory: Inventory | None = None
        self._trackers = GPUTrackers(self._known)
        self._disks: dict[str, tuple[float, float]] = {}
        self._heard_at: float | None = None
        self._points_due_at: datetime | None = None
        self._takers = {
            "gpu": self._take_gpu,
            "gpu_process": self._take_process,
            "gpu_xid": self._take_xid,
            "disk": self._take_disk,
        }

    def observe(self, points: Iterable[Point], now: datetime) -> None:
        """Take what the plugins gave; points of other measurements are passed over."""
        takers = self._takers
        with self._lock:
            for point in points:
                take = takers.get(point.measurement)
                if take is not None:
                    take(point, now)

    def set_inventory(self, inventory: Inventory) -> None:
        """Take what the appliance has now: a known GPU that is not in it is missing."""
        with self._lock:
            self._inventory = inventory
            self._known.see(self._present(gpu) for gpu in inventory.gpus)

    def known_gpus(self) -> GPUTags:
        """Return the tags of the GPUs that were here and do not answer now, by index."""
        with self._lock:
            listed = self._inventory.gpus if self._inventory else ()
            answering = {gpu.uuid for gpu in listed}
            return {
                str(gpu.index): {"uuid": gpu.uuid, "model": gpu.model}
                for gpu in self._known.gpus.values()
                if gpu.uuid not in answering
            }

    def report(self, now: datetime) -> ApplianceHealth:
        """Return the judgement of this instant, and put on disk what changed."""
        with self._lock:
            if self._inventory is not None:
                if self._known.is_acceptance_asked():
                    self._accept()
                self._known.see(self._present(gpu) for gpu in self._inventory.gpus)
            self._known.save()
            self._memory.save()
            return judge(self._signs(now), now)

    def points(self, now: datetime) -> list[Point]:
        """Return measurement `gpu_health`: one point for each GPU and one for the appliance."""
        with self._lock:
            health = judge(self._signs(now), now)
        holders, time_ns = self._job_of_gpu(), to_ns(now)
        points = [Point("gpu_health", {}, _fields(health), time_ns)]
        for gpu in health.gpus:
            tags = {"gpu": str(gpu.index), "uuid": gpu.uuid}
            if gpu.uuid in holders:
                tags["job"] = holders[gpu.uuid]
            fields = {"state": SEVERITY[gpu.state], "findings": len(gpu.findings)}
            points.append(Point("gpu_health", tags, fields, time_ns))
        return points

    def points_when_due(self, now: datetime, *, interval_seconds: float) -> list[Point]:
        """Return the points when it is time for them again, else none."""
        due_at, interval = self._points_due_at, timedelta(seconds=interval_seconds)
        if due_at is not None and now < due_at <= now + interval:
            return []
        self._points_due_at = now + interval
        return self.points(now)

    def _accept(self) -> None:
        self._known.forget_missing()
        self._memory.clear()
        self._trackers.keep_known()

    def _present(self, gpu: GPUInfo) -> KnownGPU:
        tracker = self._trackers.of(gpu.uuid)
        links = tracker.reading.get("nvlinks_active", 0.0) if tracker else 0.0
        return KnownGPU(uuid=gpu.uuid, index=gpu.index, model=gpu.model, has_nvlinks=links > 0)

    def _take_gpu(self, point: Point, now: datetime) -> None:
        if self._trackers.take_reading(point):
            self._heard_at = now.timestamp()

    def _take_process(self, point: Point, now: datetime) -> None:
        del now
        self._trackers.take_process(point)

    def _take_xid(self, point: Point, now: datetime) -> None:
        del now
        code, uuid = point.tags.get("xid", ""), point.tags.get("uuid", "")
        if code.isdecimal() and uuid:
            self._memory.note(uuid, index_of(point), int(code), at_ns=point.time_ns)

    def _take_disk(self, point: Point, now: datetime) -> None:
        used = point.fields.get("used_percent")
        if used is not None and not isinstance(used, str):
            self._disks[point.tags.get("mount", "")] = (now.timestamp(), float(used))

    def _signs(self, now: datetime) -> Signs:
        at = now.timestamp()
        listed = {gpu.uuid: gpu for gpu in self._inventory.gpus} if self._inventory else {}
        uuids = dict.fromkeys([*listed, *self._trackers.uuids, *self._known.gpus])
        signs = [self._gpu_signs(uuid, listed.get(uuid), at) for uuid in uuids]
        return Signs(
            gpus=tuple(sorted(signs, key=lambda gpu: (gpu.index, gpu.uuid))),
            disk_used_percent={
                mount: percent
                for mount, (seen_at, percent) in self._disks.items()
                if at - seen_at <= DISK_FRESH_SECONDS
            },
            silent_seconds=self._silence(at) if listed else None,
        )

    def _gpu_signs(self, uuid: str, info: GPUInfo | None, at: float) -> GPUSigns:
        known = self._known.gpus.get(uuid)
        tracker = self._trackers.of(uuid)
        has = info or tracker or known
        assert has is not None  # noqa: S101 - the uuid is of one of the three
        signs = GPUSigns(
            index=has.index,
            uuid=uuid,
            model=has.model,
            info=info,
            is_missing=self._inventory is not None and info is None and known is not None,
            had_nvlinks=known is not None and known.has_nvlinks,
            xids=tuple(record for record in self._memory.records if record.uuid == uuid),
        )
        return signs if tracker is None else tracker.fill(signs, at)

    def _silence(self, at: float) -> float | None:
        """Return for how long no GPU was read, counted from the first question on."""
        if self._silent_after is None:
            return None
        if self._heard_at is None or self._heard_at > at:
            self._heard_at = at
        silent = at - self._heard_at
        return silent if silent >= self._silent_after else None


def gpu_interval_seconds(plans: Iterable[PluginPlan]) -> float | None:
    """Return how often the plans have GPUs read; None where none of them does."""
    return max((plan.interval_seconds for plan in plans if plan.name in GPU_PLUGINS), default=None)


def _fields(health: ApplianceHealth) -> dict[str, int]:
    findings = len(health.findings) + sum(len(gpu.findings) for gpu in health.gpus)
    return {"state": SEVERITY[health.state], "findings": findings}
