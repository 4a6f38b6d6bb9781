"""Jobs that share a GPU by MPS, as containers of a real engine beside a control daemon."""

from collections.abc import Iterator
from pathlib import Path

import docker
import msgspec
import pytest

from collector.data_dir import load_json
from collector.gpu_slices.modes import AllModes
from collector.gpu_slices.mps import MPSSlices
from collector.jobs.attempts import AttemptRunner, AttemptState
from core.ids import new_id
from jobqueue.executors.docker.executor import DockerExecutor
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedState
from protocol.gpu_slices import GPUPartition, GPUSlice, PartitionMode
from protocol.logs import plain_log
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.mps import MPSHost, mps_host, mps_program
from tests.fixtures.polling import eventually

__all__ = ["mps_host", "mps_program"]

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]

GPU = "GPU-1"
# It works until the GPU does not answer any more.
CLIENT = """
env | grep CUDA_MPS | sort
test -S "$CUDA_MPS_PIPE_DIRECTORY/control" && echo "finds the daemon"
readlink /proc/self/ns/ipc
until test -e "$CUDA_MPS_PIPE_DIRECTORY/fault"; do sleep 0.1; done
exit 1
"""


class GPULessExecutor(DockerExecutor):
    """Gives containers no GPU: this host has none."""

    def start(self, spec: AttemptSpec) -> None:
        super().start(msgspec.structs.replace(spec, gpu_uuids=[]))


class Site:
    """One appliance with an engine and a control daemon."""

    def __init__(self, folder: Path, engine: DockerEngine, host: MPSHost) -> None:
        self.folder, self.engine, self.host = folder, engine, host
        self.executor = GPULessExecutor(
            owner=new_id(), spool_dir=folder / "spool", url=engine.url, pids_limit=40
        )
        self.state_path = folder / "attempts.json"
        mps = MPSSlices(host.control(), folder / "mps.json")
        self.runner = AttemptRunner(
            self.executor, state_path=self.state_path, slices=AllModes(mps=mps)
        )

    def run(self, *attempts: AttemptSpec) -> None:
        order = GPUPartition(gpu_uuid=GPU, mode=PartitionMode.MPS)
        self.runner.set_desired(
            DesiredState(generation=1, attempts=list(attempts), gpu_partitions=[order])
        )

    def seen(self, spec: AttemptSpec) -> AttemptObservation | None:
        self.runner.step()
        state = load_json(self.state_path, AttemptState)
        assert state is not None
        return state.remembered.get(spec.attempt_id)

    def wait(self, spec: AttemptSpec, state: ObservedState) -> AttemptObservation:
        def reached() -> AttemptObservation | None:
            seen = self.seen(spec)
            return seen if seen is not None and seen.state is state else None

        return eventually(reached, what=f"{spec.name} to be {state}")

    def log(self, spec: AttemptSpec) -> list[str]:
        data = self.executor.read_log(spec.attempt_id, offset=0, limit=10_000)
        return plain_log(data).decode().splitlines()

    def pid(self, spec: AttemptSpec) -> int:
        client = docker.DockerClient(base_url=self.engine.url)
        try:
            inspected = client.containers.get(f"vedette-{spec.attempt_id}").attrs
        finally:
            client.close()
        return int(inspected["State"]["Pid"])

    def close(self) -> None:
        for seen in self.executor.observe():
            self.executor.remove(seen.attempt_id)
        self.runner.close()
        self.executor.close()


@pytest.fixture
def site(tmp_path: Path, docker_engine: DockerEngine, mps_host: MPSHost) -> Iterator[Site]:
    site = Site(tmp_path, docker_engine, mps_host)
    yield site
    site.close()


def client(engine: DockerEngine, name: str) -> AttemptSpec:
    part = GPUSlice(mode=PartitionMode.MPS, gpu_uuid=GPU, share_milli=250, memory_bytes=20 * 2**30)
    return AttemptSpec(
        attempt_id=new_id(),
        job_id=new_id(),
        name=name,
        image=engine.image,
        command=["/bin/sh", "-c", CLIENT],
        memory_bytes=64 * 2**20,
        gpu_uuids=[GPU],
        gpu_slice=part,
    )


def test_a_fault_of_one_container_is_told_to_the_other(site: Site) -> None:
    first, second = client(site.engine, "first"), client(site.engine, "second")
    site.run(first, second)
    for spec in (first, second):
        site.wait(spec, ObservedState.RUNNING)
        site.host.tell(GPU, f"connect {site.pid(spec)}\n")
    eventually(lambda: len(site.log(first)) == 5, what="its output")
    assert site.log(first) == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M",
        "CUDA_MPS_PIPE_DIRECTORY=/run/vedette-mps",
        "finds the daemon",
        str(Path("/proc/self/ns/ipc").readlink()),
    ]
    site.seen(first)  # notes the clients while they run

    site.host.tell(GPU, f"fault {site.pid(second)}\n")
    (site.host.folder / GPU / "pipe" / "fault").touch()
    harmed, cause = (site.wait(spec, ObservedState.FAILED) for spec in (first, second))

    assert (harmed.reason, harmed.exit_code) == ("gpu_fault_of_neighbor", 1)
    assert harmed.message.startswith(f"Another job caused a fatal fault on {GPU}")
    assert cause.reason == "exit_code"
    assert "caused a fatal fault" in cause.message
    eventually(lambda: site.seen(first) and site.host.pid(GPU) is None, what="its end")
    assert site.host.modes[GPU] == 0
