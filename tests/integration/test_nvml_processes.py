"""The gpu_processes plugin on a driver library built for the test, with captured control groups."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.nvml import NVMLReader, World, reading

MIB = 2**20
UUID = "GPU-00000000-0000-0000-0000-00000000000"
JOB_CONTAINER = "a1" * 32
OTHER_CONTAINER = "b2" * 32
CGROUPS = {
    101: f"0::/system.slice/docker-{JOB_CONTAINER}.scope\n",
    102: f"0::/system.slice/docker-{JOB_CONTAINER}.scope\n",
    201: f"12:devices:/docker/{OTHER_CONTAINER}\n1:name=systemd:/docker/{OTHER_CONTAINER}\n",
    301: "0::/user.slice/user-1000.slice/session-2.scope\n",
}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """The kernel's files of four processes."""
    for pid, cgroup in CGROUPS.items():
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "comm").write_text(f"python{pid}\n")
    return tmp_path / "proc"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A DGX at second 100."""
    world = World(tmp_path / "world")
    world.add("scenario dgx", "seconds 100")
    return world


@pytest.fixture
def processes(fake_nvml: Path, world: World, proc: Path) -> Iterator[NVMLReader]:
    """The plugin, on a host where one container runs job-7."""
    jobs = {JOB_CONTAINER: "job-7"}
    with reading(
        "gpu_processes", fake_nvml, world.path, proc=proc, job_of_container=jobs
    ) as reader:
        yield reader


def test_processes_of_a_job_are_summed_up_under_its_id(processes: NVMLReader, world: World) -> None:
    world.add("process 0 -1 101 4000 30 c", "process 0 -1 102 1000 25 c")
    [point] = processes.read(100)
    assert point.measurement == "gpu_process"
    assert point.tags == {
        "gpu": "0",
        "uuid": f"{UUID}0",
        "owner": "job",
        "job": "job-7",
        "container": JOB_CONTAINER[:12],
    }
    assert point.fields == {
        "processes": 2,
        "memory_used_bytes": 5000 * MIB,
        "utilization_percent": 55.0,
    }


def test_processes_without_a_job_belong_to_their_container_or_the_host(
    processes: NVMLReader, world: World
) -> None:
    world.add("process 1 -1 201 100 5 c", "process 1 -1 301 200 6 g")
    container, host = processes.read(100)
    assert container.tags == {
        "gpu": "1",
        "uuid": f"{UUID}1",
        "owner": "container",
        "container": OTHER_CONTAINER[:12],
    }
    assert host.tags == {"gpu": "1", "uuid": f"{UUID}1", "owner": "host"}
    assert host.fields["memory_used_bytes"] == 200 * MIB


def test_processes_are_listed_by_name_and_owner_for_the_heartbeat(
    processes: NVMLReader, world: World
) -> None:
    world.add("process 0 -1 101 4000 30 c", "process 1 -1 201 100 5 c", "process 1 -1 301 200 6 g")
    fields = ("pid", "name", "gpu", "owner", "job", "container", "memory_bytes")
    listed = [
        tuple(process[field] for field in fields) for process in processes.answer(100)["processes"]
    ]
    assert listed == [
        (101, "python101", 0, "job", "job-7", JOB_CONTAINER[:12], 4000 * MIB),
        (201, "python201", 1, "container", "", OTHER_CONTAINER[:12], 100 * MIB),
        (301, "python301", 1, "host", "", "", 200 * MIB),
    ]


def test_a_process_that_computes_and_draws_is_one(processes: NVMLReader, world: World) -> None:
    world.add("process 1 -1 301 200 6 c", "process 1 -1 301 200 6 g")
    [point] = processes.read(100)
    assert (point.fields["processes"], point.fields["memory_used_bytes"]) == (1, 200 * MIB)


def test_a_client_of_mps_is_counted(processes: NVMLReader, world: World) -> None:
    world.add("process 1 -1 101 300 9 m")
    [point] = processes.read(100)
    assert point.tags["job"] == "job-7"


def test_memory_that_the_driver_does_not_report_is_absent(
    processes: NVMLReader, world: World
) -> None:
    world.add("process 1 -1 301 0 6 c")
    [point] = processes.read(100)
    assert "memory_used_bytes" not in point.fields


def test_use_that_the_card_does_not_report_is_absent(processes: NVMLReader, world: World) -> None:
    world.add("process 1 -1 301 10 6 c", "refuse nvmlDeviceGetProcessUtilization 3")
    for second in (100, 110):
        [point] = processes.read(second)
        assert "utilization_percent" not in point.fields


def test_a_sample_of_use_is_counted_once(processes: NVMLReader, world: World) -> None:
    world.add("process 1 -1 301 10 60 c")
    [first] = processes.read(100)
    [repeated] = processes.read(101)
    world.add("seconds 102")
    [fresh] = processes.read(102)
    uses = [taken.fields["utilization_percent"] for taken in (first, repeated, fresh)]
    assert uses == [60.0, 0.0, 60.0]


def test_each_mig_slice_has_its_own_processes(processes: NVMLReader, world: World) -> None:
    world.add("scenario mig", "process 0 2 101 500 0 c", "process 0 3 301 700 0 c")
    ours, host = processes.read(100)
    assert ours.tags["uuid"] == "MIG-00000000-0000-0000-0002-000000000000"
    assert ours.tags["job"] == "job-7"
    assert host.tags["uuid"] == "MIG-00000000-0000-0000-0003-000000000000"
    assert host.fields == {"processes": 1, "memory_used_bytes": 700 * MIB}


def test_a_process_that_has_just_ended_is_left_out(processes: NVMLReader, world: World) -> None:
    world.add("process 1 -1 999 10 6 c")
    assert processes.read(100) == []


def test_a_process_that_stays_hidden_is_the_hosts(processes: NVMLReader, world: World) -> None:
    world.add("process 1 -1 999 10 6 c")
    processes.read(100)
    [point] = processes.read(110)
    assert point.tags["owner"] == "host"


def test_gpus_without_processes_give_nothing(processes: NVMLReader) -> None:
    assert processes.read(100) == []


def test_a_lost_gpu_does_not_hide_the_processes_of_others(
    processes: NVMLReader, world: World
) -> None:
    world.add("process 0 -1 101 10 6 c", "process 1 -1 301 10 6 c")
    assert len(processes.read(100)) == 2
    world.add("gpu 1 error 15")
    [point] = processes.read(110)
    assert point.tags["gpu"] == "0"


def test_an_older_driver_lists_processes_by_an_older_call(
    processes: NVMLReader, world: World
) -> None:
    world.add("process 0 -1 101 10 6 c", "refuse nvmlDeviceGetComputeRunningProcesses_v3 13")
    [point] = processes.read(100)
    assert point.fields["processes"] == 1


def test_a_gpu_can_be_skipped(fake_nvml: Path, world: World, proc: Path) -> None:
    world.add("process 0 -1 101 10 6 c", "process 1 -1 301 10 6 c")
    with reading(
        "gpu_processes", fake_nvml, world.path, proc=proc, settings={"skip_uuids": [f"{UUID}1"]}
    ) as reader:
        [point] = reader.read(100)
    assert point.tags["gpu"] == "0"
