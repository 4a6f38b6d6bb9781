"""Slices of simulated GPUs have the readings that real drivers give for each mode of sharing."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec
import pytest

from plugins.base import NoSettings, PluginContext
from plugins.simulated_gpu.reader import ACTIVITY_SHARES, SimulatedGPUPlugin
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig, Workload
from protocol.gpu_processes import GPUProcess
from protocol.gpu_slices import GPUSlice, PartitionMode
from tests.unit.plugins.conftest import FIRST_AT
from timeseries.points import Point

CONFIG = SimulationConfig(seed="acme/dgx-1")
GPU = CONFIG.gpu_uuids[0]
MINUTE = timedelta(seconds=60)


def share(mode: PartitionMode, milli: int, memory_bytes: int = 0, **place: object) -> GPUSlice:
    own = GPUSlice(mode=mode, gpu_uuid=GPU, share_milli=milli, memory_bytes=memory_bytes)
    return msgspec.structs.replace(own, **place)


def work(name: str, part: GPUSlice) -> Workload:
    return Workload(workload_id=name, job_id=f"job-{name}", gpu_slice=part, started_at=FIRST_AT)


def cut(model: SimulatedAppliance, profile: str, start: int) -> GPUSlice:
    if not model.mig.read()[0].is_enabled:
        model.mig.set_mode(GPU, enabled=True)
    made = model.mig.create(GPU, profile, start)
    [kind] = [offer for offer in model.mig.read()[0].profiles if offer.name == profile]
    return share(
        PartitionMode.MIG,
        125 * kind.slots,
        kind.memory_bytes,
        uuid=made.uuid,
        profile=profile,
        start=start,
        slots=kind.slots,
    )


def gathered(model: SimulatedAppliance, published: list[GPUProcess] | None = None) -> list[Point]:
    model.read(FIRST_AT + MINUTE / 2)
    processes = published if published is not None else []
    context = PluginContext(simulation=model, publish_gpu_processes=processes.extend)
    return list(SimulatedGPUPlugin(NoSettings(), context).gather(FIRST_AT + MINUTE))


def of_first_gpu(points: Iterable[Point], measurement: str) -> list[Point]:
    return [
        point for point in points if point.measurement == measurement and point.tags["gpu"] == "0"
    ]


def number(fields: Mapping[str, object], name: str) -> float:
    value = fields[name]
    assert isinstance(value, int | float)
    return value


@pytest.fixture
def model() -> SimulatedAppliance:
    return SimulatedAppliance(CONFIG, started_at=FIRST_AT)


def test_each_mig_instance_has_memory_and_activity(model: SimulatedAppliance) -> None:
    busy, idle = cut(model, "3g.40gb", 0), cut(model, "1g.10gb", 4)
    model.add(work("a", busy))

    points = {point.tags["uuid"]: point for point in of_first_gpu(gathered(model), "gpu_slice")}

    assert points.keys() == {busy.uuid, idle.uuid}
    first, second = points[busy.uuid], points[idle.uuid]
    assert first.tags["profile"] == "3g.40gb"
    assert first.tags["model"] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert (first.tags["slice"], second.tags["slice"]) == ("0", "1")
    assert number(first.fields, "memory_total_bytes") == busy.memory_bytes
    used = number(first.fields, "memory_used_bytes") / busy.memory_bytes
    assert 0.4 < used < 0.95
    assert number(first.fields, "graphics_engine_active_percent") > 50
    assert number(second.fields, "graphics_engine_active_percent") == 0
    assert number(second.fields, "memory_used_bytes") < GIB
    assert number(second.fields, "multiprocessors") == 16


def test_a_gpu_in_mig_mode_has_no_utilization_of_its_own(model: SimulatedAppliance) -> None:
    model.add(work("a", cut(model, "7g.80gb", 0)))

    points = gathered(model)

    [gpu] = of_first_gpu(points, "gpu")
    assert gpu.fields["mig_enabled"] == 1
    hidden = {"utilization_percent", "memory_utilization_percent", *ACTIVITY_SHARES}
    assert not hidden & gpu.fields.keys()
    assert number(gpu.fields, "memory_used_bytes") > 30 * GIB
    assert number(gpu.fields, "power_watts") > 300
    other = next(point for point in points if point.tags["gpu"] == "1")
    assert other.fields["mig_enabled"] == 0
    assert hidden < other.fields.keys()


def test_instances_of_ampere_have_no_activity() -> None:
    config = SimulationConfig(seed="a", gpu_model="NVIDIA A100-SXM4-80GB")
    model = SimulatedAppliance(config, started_at=FIRST_AT)
    model.mig.set_mode(config.gpu_uuids[0], enabled=True)
    model.mig.reboot()
    model.mig.create(config.gpu_uuids[0], "1g.10gb", 0)

    [point] = of_first_gpu(gathered(model), "gpu_slice")

    assert not ACTIVITY_SHARES.keys() & point.fields.keys()


@pytest.mark.parametrize("mode", [PartitionMode.MPS, PartitionMode.TIME_SLICING])
def test_a_gpu_that_jobs_share_has_the_utilization_of_all(
    model: SimulatedAppliance, mode: PartitionMode
) -> None:
    model.add(work("a", share(mode, 250, 20 * GIB)))
    [alone] = of_first_gpu(gathered(model), "gpu")
    both = SimulatedAppliance(CONFIG, started_at=FIRST_AT)
    for name in ("a", "b"):
        both.add(work(name, share(mode, 250, 20 * GIB)))
    [shared] = of_first_gpu(gathered(both), "gpu")

    first, second = (number(gpu.fields, "utilization_percent") for gpu in (alone, shared))
    assert 0 < first < second <= 50
    first, second = (number(gpu.fields, "memory_used_bytes") for gpu in (alone, shared))
    assert first < 20 * GIB < second < 42 * GIB
    assert "job" not in shared.tags


def test_processes_name_the_job_of_each_part(model: SimulatedAppliance) -> None:
    published: list[GPUProcess] = []
    for name in ("a", "b"):
        model.add(work(name, share(PartitionMode.MPS, 250, 20 * GIB)))

    points = of_first_gpu(gathered(model, published), "gpu_process")

    assert [(point.tags["uuid"], point.tags["job"]) for point in points] == [
        (GPU, "job-a"),
        (GPU, "job-b"),
    ]
    assert all("utilization_percent" not in point.fields for point in points)
    assert [(process.uuid, process.job) for process in published] == [
        (GPU, "job-a"),
        (GPU, "job-b"),
    ]
    assert len({process.pid for process in published}) == 2
    assert all(9 * GIB * 0.9 < process.memory_bytes < 20 * GIB for process in published)


def test_processes_of_mig_are_on_their_instance(model: SimulatedAppliance) -> None:
    part = cut(model, "1g.10gb", 2)
    model.add(work("a", part))

    [point] = of_first_gpu(gathered(model), "gpu_process")

    assert (point.tags["uuid"], point.tags["job"]) == (part.uuid, "job-a")
    assert number(point.fields, "memory_used_bytes") < part.memory_bytes


def test_a_part_is_free_when_its_job_has_ended(model: SimulatedAppliance) -> None:
    model.add(work("a", share(PartitionMode.MPS, 500, 20 * GIB)))
    model.read(FIRST_AT + MINUTE / 3)
    model.remove("a")

    points = gathered(model)

    assert not of_first_gpu(points, "gpu_process")
    [gpu] = of_first_gpu(points, "gpu")
    assert gpu.fields["utilization_percent"] == 0
    assert number(gpu.fields, "memory_used_bytes") < GIB
