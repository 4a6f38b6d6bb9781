"""Probes of a real Docker engine, which start where jobs can start, and nowhere else."""

import platform
from pathlib import Path

import docker
import pytest

from core.ids import new_id
from jobqueue.executors.base import Probe
from jobqueue.executors.docker.executor import DockerExecutor
from jobqueue.executors.docker.own_containers import MACHINES, image_archive
from protocol.attempts import AttemptSpec, ObservedState, ProbeOrder
from tests.fixtures.docker_engine import DockerEngine, bridged_engine
from tests.fixtures.polling import eventually

pytestmark = [
    pytest.mark.needs_docker,
    pytest.mark.timeout(180),
    pytest.mark.skipif(platform.machine() not in MACHINES, reason="no program for this processor"),
]


def executor_of(engine: DockerEngine, folder: Path) -> DockerExecutor:
    return DockerExecutor(owner="dgx-01", spool_dir=folder / "spool", url=engine.url)


def probe_of(executor: DockerExecutor) -> Probe:
    probe = executor.probe()
    assert probe is not None
    return probe


def outcome(executor: DockerExecutor, engine: DockerEngine) -> tuple[ObservedState, str]:
    """Run a job to its end; return its state and reason."""
    spec = AttemptSpec(
        attempt_id=new_id(), job_id="job-1", name="test", image=engine.image, command=["true"],
        memory_bytes=64 * 2**20,
    )  # fmt: skip
    executor.start(spec)
    ended = eventually(
        lambda: [
            seen
            for seen in executor.observe()
            if seen.attempt_id == spec.attempt_id and seen.state.is_final
        ],
        within_seconds=60,
    )[0]
    executor.remove(spec.attempt_id)
    return ended.state, ended.reason


@pytest.mark.nightly
def test_a_probe_fails_while_the_bridge_is_gone_as_jobs_do(tmp_path: Path) -> None:
    with bridged_engine() as (engine, bridge):
        executor = executor_of(engine, tmp_path)
        probe = probe_of(executor)
        try:
            assert probe(ProbeOrder(number=1)) == ""
            bridge.delete()
            assert outcome(executor, engine) == (ObservedState.FAILED, "start_failed")
            assert bridge.name in probe(ProbeOrder(number=2))
            bridge.add()
            assert outcome(executor, engine) == (ObservedState.SUCCEEDED, "")
            assert probe(ProbeOrder(number=3)) == ""
        finally:
            executor.close()


def test_a_probe_leaves_no_container_and_is_no_attempt(
    docker_engine: DockerEngine, tmp_path: Path
) -> None:
    executor = executor_of(docker_engine, tmp_path)
    assert probe_of(executor)(ProbeOrder(number=1)) == ""
    assert executor.observe() == []
    client = docker.DockerClient(base_url=docker_engine.url)
    assert client.containers.list(all=True, filters={"name": "vedette-probe"}) == []
    client.close()
    executor.close()


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (ProbeOrder(number=1, gpu_uuids=["GPU-1"]), "gpu"),
        (ProbeOrder(number=1, image="127.0.0.1:1/train:1"), "127.0.0.1:1"),
    ],
)
def test_a_probe_needs_its_gpus_and_the_registry_of_its_image(
    docker_engine: DockerEngine, tmp_path: Path, order: ProbeOrder, problem: str
) -> None:
    executor = executor_of(docker_engine, tmp_path)
    assert problem in probe_of(executor)(order)
    executor.close()


def test_an_engine_that_is_down_fails_the_probe(tmp_path: Path) -> None:
    executor = DockerExecutor(owner="o", spool_dir=tmp_path, url=f"unix://{tmp_path / 'none'}")
    assert "does not answer" in probe_of(executor)(ProbeOrder(number=1))


def test_the_program_of_another_processor_is_an_elf_file_for_it() -> None:
    program = image_archive("aarch64")[512:]
    assert program[:5] == b"\x7fELF\x02"
    assert program[18] == 183  # EM_AARCH64
    # `mov x8, 93` and `svc 0`: exit, by Linux' asm-generic/unistd.h.
    assert program[124:132].hex() == "a80b80d2010000d4"
