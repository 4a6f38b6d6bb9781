"""Slices of simulated GPUs: the measurement `gpu_slice` of MIG, and who uses a part of a GPU."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from core.clock import to_ns
from plugins.mig import MIGGPU
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.gpu import SliceReading
from protocol.gpu_slices import MIGProfile, PartitionMode
from timeseries.points import FieldValue, Point

# What an empty MIG instance has in use.
EMPTY_INSTANCE_BYTES = 16 * 2**20
# Fields of a GPU that the driver does not report under MIG; the activity of units has another set.
NOT_UNDER_MIG = ("utilization_percent", "memory_utilization_percent")


def cut_gpus(model: SimulatedAppliance) -> dict[str, MIGGPU]:
    """Return the GPUs that are in MIG mode, by UUID."""
    return {gpu.uuid: gpu for gpu in model.mig.read() if gpu.is_enabled}


def slice_points(
    model: SimulatedAppliance,
    cut: Mapping[str, MIGGPU],
    now: datetime,
    *,
    activity_shares: Mapping[str, float],
) -> Iterator[Point]:
    """Yield measurement `gpu_slice`: memory and activity of each MIG instance.

    `activity_shares` are the shares of the utilization that each unit has; none before Hopper.
    """
    readings = {own.gpu_slice.uuid: own for own in model.read(now).slices}
    for index, uuid in enumerate(model.config.gpu_uuids):
        gpu = cut.get(uuid)
        if gpu is None or index == model.config.lost_gpu:
            continue
        profiles = {profile.name: profile for profile in gpu.profiles}
        for number, instance in enumerate(made for made in gpu.instances if made.uuid):
            tags = {
                "gpu": str(index),
                "uuid": instance.uuid,
                "slice": str(number),
                "model": f"{model.config.gpu_model} MIG {instance.profile}",
                "profile": instance.profile,
            }
            reading = readings.get(instance.uuid)
            fields = _memory(profiles.get(instance.profile), reading)
            utilization = reading.utilization_percent if reading is not None else 0.0
            activity = {
                name: round(utilization * share, 1) for name, share in activity_shares.items()
            }
            yield Point("gpu_slice", tags, fields | activity, to_ns(now))


def users_of(
    model: SimulatedAppliance, uuid: str, cut: Collection[str], now: datetime
) -> Iterator[tuple[dict[str, str], dict[str, FieldValue]]]:
    """Yield tags and fields of each job that uses a part of a GPU.

    Their utilization is absent: the driver reports none for an instance, and under MPS and time
    slicing only that of the GPU.
    """
    for own in model.read(now).slices:
        wanted = own.gpu_slice
        is_cut = wanted.mode is PartitionMode.MIG
        if wanted.gpu_uuid == uuid and is_cut == (uuid in cut):
            tags = {"uuid": wanted.uuid if is_cut else uuid, "owner": "job"}
            job = {"job": own.workload.job_id} if own.workload.job_id else {}
            yield tags | job, {"processes": 1, "memory_used_bytes": own.memory_used_bytes}


def _memory(profile: MIGProfile | None, reading: SliceReading | None) -> dict[str, FieldValue]:
    total = profile.memory_bytes if profile is not None else 0
    used = EMPTY_INSTANCE_BYTES + (reading.memory_used_bytes if reading is not None else 0)
    return {
        "memory_total_bytes": total,
        "memory_used_bytes": min(used, total),
        "memory_free_bytes": max(0, total - used),
        "memory_used_percent": round(100 * min(used, total) / max(1, total), 3),
        "multiprocessors": profile.multiprocessors if profile is not None else 0,
    }
