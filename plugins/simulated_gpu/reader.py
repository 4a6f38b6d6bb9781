"""GPUs of the simulated appliance: the measurements of nvml and gpu_processes.

As on real GPUs, one in MIG mode has no utilization, but its instances have memory and, since
Hopper, the activity of their units. Readings of a GPU that jobs share have no job.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from core.clock import to_ns
from plugins.base import (
    BasePlugin,
    NoSettings,
    PluginContext,
    PluginTraits,
    PluginUnavailableError,
)
from plugins.gpu_processes.reader import GPUProcessesPlugin
from plugins.nvml.metrics import GPU_METRICS, SLICE_METRICS, XID_METRICS
from plugins.simulated_gpu.slices import NOT_UNDER_MIG, cut_gpus, slice_points, users_of
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig, fraction
from plugins.simulation.gpu import MEMORY_CLOCK_HERTZ, RESERVED_BYTES, GPUReading
from protocol.gpu_processes import GPUProcess
from timeseries.points import FieldValue, Point

# GPU owners change rarely, and the demo has fifteen appliances in one process.
PROCESSES_EVERY = timedelta(seconds=10)
# Of the utilization: how busy mixed-precision training keeps the units of a GPU.
ACTIVITY_SHARES = {
    "graphics_engine_active_percent": 1.0,
    "sm_active_percent": 0.86,
    "sm_occupancy_percent": 0.24,
    "tensor_active_percent": 0.52,
    "fp64_active_percent": 0.0,
    "fp32_active_percent": 0.11,
    "fp16_active_percent": 0.02,
    "integer_active_percent": 0.07,
    "dram_active_percent": 0.45,
}
# Fields that are not simulated.
_NOT_SIMULATED = frozenset(
    {
        "encoder_utilization_percent",
        "decoder_utilization_percent",
        "fan_percent",
        "slowdown_celsius",
        "shutdown_celsius",
        "max_operating_celsius",
        "power_limit_default_watts",
        "power_limit_max_watts",
        "graphics_clock_hertz",
        "video_clock_hertz",
        "memory_clock_max_hertz",
        "throttle_reasons",
        "compute_mode",
        "pcie_replays",
        "nvlink_errors",
        "ecc_corrected_aggregate",
        "ecc_uncorrected_aggregate",
        "retired_pages_single_bit",
        "retired_pages_double_bit",
        "retired_pages_pending",
        "remapped_rows_corrected",
        "remapped_rows_uncorrected",
        "clocks_set_by_user",
        "fabric_health_mask",
        "persistence_mode",
        "jpeg_utilization_percent",
        "optical_flow_utilization_percent",
        "encoder_sessions",
        "frame_capture_sessions",
        "bar1_total_bytes",
        "bar1_used_bytes",
        "power_limit_min_watts",
        "c2c_links",
        "c2c_links_active",
        "c2c_received_bytes_per_second",
        "c2c_sent_bytes_per_second",
        "throttled_by_power_seconds",
        "throttled_by_heat_seconds",
        "throttled_by_board_seconds",
        "throttled_by_sync_boost_seconds",
        "throttled_by_reliability_seconds",
        "low_utilization_seconds",
        "vgpu_licensed",
    }
)


class SimulatedGPUPlugin(BasePlugin):
    """Reads the GPUs of the simulated appliance."""

    name = "simulated_gpu"
    traits = PluginTraits(is_simulated=True)
    metrics = (
        *(metric for metric in GPU_METRICS if metric.name not in _NOT_SIMULATED),
        *SLICE_METRICS,
        *XID_METRICS,
        *(metric for metric in GPUProcessesPlugin.metrics if metric.name == "processes"),
    )

    def __init__(self, config: NoSettings, context: PluginContext) -> None:
        del config
        self._model = context.simulation
        self._job_of_gpu = context.job_of_gpu
        self._publish = context.publish_gpu_processes
        self._processes_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each GPU, new events, and GPU use by owner."""
        if self._model is None:
            raise PluginUnavailableError("this appliance is not simulated")
        points = gpu_points(self._model, now)
        points += slice_points(
            self._model,
            cut_gpus(self._model),
            now,
            activity_shares=ACTIVITY_SHARES if self._model.config.is_hopper else {},
        )
        points += xid_points(self._model.config, now, before=self._model.mark_events_read(now))
        if self._processes_at is None or now - self._processes_at >= PROCESSES_EVERY:
            self._processes_at = now
            holders = self._job_of_gpu()
            points += process_points(self._model, now, holders=holders)
            self._publish(gpu_processes(self._model, now, holders=holders))
        return points


XID_EVERY_SECONDS = 3 * 3600
XID_MEMORY_ERROR = 94
XID_GPU_LOST = 79
EXTERNAL_BYTES = 6 * GIB
FIRST_PID, PIDS = 3000, 1_000_000
MEMORY_WARMER_CELSIUS = 9.0
PCIE_BYTES_PER_SECOND = 42e6
NVLINK_BYTES_PER_SECOND = 1.1e9
WORN_SRAM_ERRORS = 11


def gpu_points(model: SimulatedAppliance, now: datetime, *, is_brief: bool = False) -> list[Point]:
    """Return measurement `gpu`; `is_brief` omits rarely used fields, for history."""
    time_ns = to_ns(now)
    cut = {} if is_brief else cut_gpus(model)
    points = []
    for index, (uuid, reading) in enumerate(model.read(now).gpus.items()):
        tags = {"gpu": str(index), "uuid": uuid, "model": model.config.gpu_model}
        fields = _main_fields(index, reading, model.config)
        if index == model.config.lost_gpu:
            fields = {"lost": 1}
        elif not is_brief:
            fields |= _other_fields(index, reading, model.config)
            fields["mig_enabled"] = int(uuid in cut)
        if uuid in cut:
            hidden = (*NOT_UNDER_MIG, *ACTIVITY_SHARES)
            fields = {name: value for name, value in fields.items() if name not in hidden}
        points.append(Point("gpu", tags, fields, time_ns))
    return points


def process_points(
    model: SimulatedAppliance, now: datetime, *, holders: Mapping[str, str]
) -> Iterator[Point]:
    """Yield measurement `gpu_process`: processes of jobs, and the external process.

    `holders` returns the job ID of each allocated GPU UUID.
    """
    cut = cut_gpus(model)
    for index, (uuid, reading) in enumerate(model.read(now).gpus.items()):
        if index == model.config.lost_gpu:
            continue
        tags = {"gpu": str(index), "uuid": uuid}
        if reading.is_held:
            held = max(0, reading.memory_used_bytes - RESERVED_BYTES)
            job = {"job": holders[uuid]} if uuid in holders else {}
            owner = {"owner": "job"} | job
            yield _process(tags | owner, held, reading.utilization_percent, now)
        for own_tags, fields in users_of(model, uuid, cut, now):
            yield Point("gpu_process", tags | own_tags, fields, to_ns(now))
        if index == model.config.external_gpu:
            yield _process(tags | {"owner": "host"}, EXTERNAL_BYTES, 0.0, now)


def gpu_processes(
    model: SimulatedAppliance, now: datetime, *, holders: Mapping[str, str]
) -> list[GPUProcess]:
    """Return the processes behind `process_points`."""
    processes = []
    for point in process_points(model, now, holders=holders):
        job, uuid = point.tags.get("job", ""), point.tags["uuid"]
        name = "python3" if point.tags["owner"] == "job" else "ollama"
        processes.append(
            GPUProcess(
                # The same as long as the job runs.
                pid=FIRST_PID + int(fraction(f"{uuid}/{job}/{name}") * PIDS),
                name=name,
                gpu=int(point.tags["gpu"]),
                uuid=uuid,
                memory_bytes=int(point.fields["memory_used_bytes"]),
                owner=point.tags["owner"],
                job=job,
            )
        )
    return processes


def xid_points(
    config: SimulationConfig, now: datetime, *, before: datetime | None
) -> Iterator[Point]:
    """Yield measurement `gpu_xid`: events since `before`, or since the start."""
    if before is None and config.lost_gpu is not None:
        yield _xid(config, config.lost_gpu, XID_GPU_LOST, now)
    turns = {at.timestamp() // XID_EVERY_SECONDS for at in (before, now) if at is not None}
    if config.xid_gpu is not None and (before is None or len(turns) > 1):
        yield _xid(config, config.xid_gpu, XID_MEMORY_ERROR, now)


def _process(tags: dict[str, str], held_bytes: int, percent: float, now: datetime) -> Point:
    fields: dict[str, FieldValue] = {
        "processes": 1,
        "memory_used_bytes": held_bytes,
        "utilization_percent": percent,
    }
    return Point("gpu_process", tags, fields, to_ns(now))


def _xid(config: SimulationConfig, index: int, code: int, now: datetime) -> Point:
    tags = {"gpu": str(index), "uuid": config.gpu_uuids[index], "xid": str(code)}
    return Point("gpu_xid", tags, {"events": 1}, to_ns(now))


def _main_fields(
    index: int, reading: GPUReading, config: SimulationConfig
) -> dict[str, FieldValue]:
    """Return the main fields; `fan_percent` is absent, as on real servers."""
    used = _used_bytes(index, reading, config)
    return {
        "utilization_percent": reading.utilization_percent,
        "memory_utilization_percent": reading.memory_utilization_percent,
        "memory_total_bytes": config.gpu_memory_bytes,
        "memory_used_bytes": used,
        "memory_used_percent": round(100 * used / config.gpu_memory_bytes, 3),
        "temperature_celsius": reading.temperature_celsius,
        "power_watts": reading.power_watts,
        "power_limit_watts": config.power_limit_watts,
        "sm_clock_hertz": reading.sm_clock_hertz,
        "memory_clock_hertz": MEMORY_CLOCK_HERTZ,
        "throttled": int(reading.is_throttled),
    }


def _other_fields(
    index: int, reading: GPUReading, config: SimulationConfig
) -> dict[str, FieldValue]:
    used = _used_bytes(index, reading, config)
    share = reading.utilization_percent / 100
    has_link_down = index == config.nvlink_down_gpu
    links_up = config.nvlinks - has_link_down
    fabric = {"fabric_registered": 1, "fabric_degraded": int(has_link_down)}
    activity = {
        name: round(reading.utilization_percent * activity_share, 1)
        for name, activity_share in ACTIVITY_SHARES.items()
    }
    return {
        **activity,
        "memory_reserved_bytes": RESERVED_BYTES,
        "memory_free_bytes": max(0, config.gpu_memory_bytes - used - RESERVED_BYTES),
        "memory_temperature_celsius": reading.temperature_celsius + MEMORY_WARMER_CELSIUS,
        "energy_joules": reading.energy_joules,
        "sm_clock_max_hertz": config.sm_clock_hertz,
        "performance_state": 0,
        "throttled_by_heat": int(reading.is_throttled),
        "throttled_by_power": 0,
        "throttled_by_hardware": 0,
        "clocks_idle": int(reading.utilization_percent == 0),
        "pcie_generation": config.pcie_generation,
        "pcie_generation_max": config.pcie_generation,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_received_bytes_per_second": round(PCIE_BYTES_PER_SECOND * share, 1),
        "pcie_sent_bytes_per_second": round(0.2 * PCIE_BYTES_PER_SECOND * share, 1),
        "nvlinks": config.nvlinks,
        "nvlinks_active": links_up,
        "nvlink_received_bytes_per_second": round(NVLINK_BYTES_PER_SECOND * links_up * share, 1),
        "nvlink_sent_bytes_per_second": round(NVLINK_BYTES_PER_SECOND * links_up * share, 1),
        "ecc_enabled": 1,
        "ecc_corrected_volatile": 0,
        "ecc_uncorrected_volatile": 0,
        "sram_ecc_corrected_aggregate": 0,
        "sram_ecc_uncorrected_aggregate": WORN_SRAM_ERRORS if index == config.worn_gpu else 0,
        "sram_ecc_threshold_exceeded": int(index == config.worn_gpu),
        **(fabric if config.has_fabric else {}),
        "remapped_rows_pending": 0,
        "remapped_rows_failed": 0,
        "lost": 0,
    }


def _used_bytes(index: int, reading: GPUReading, config: SimulationConfig) -> int:
    external = EXTERNAL_BYTES if index == config.external_gpu else 0
    return min(config.gpu_memory_bytes, reading.memory_used_bytes + external)
