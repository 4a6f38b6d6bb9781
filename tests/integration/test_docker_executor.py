"""The Docker executor on a real engine: what only a real engine does."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import docker
import pytest

from collector.agent import Agent
from collector.config import AgentConfig
from collector.data_dir import Identity
from core.ids import new_id
from jobqueue.executors import spool_files
from jobqueue.executors.base import ExecutorError, ExecutorUnavailableError, ImageError
from jobqueue.executors.docker.executor import DockerExecutor
from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    DesiredState,
    Health,
    ObservedState,
    StopReason,
)
from protocol.job_spec import ContainerPolicy, HealthCheck, HealthCheckKind
from protocol.logs import plain_log
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.docker_registry import Registry, registry
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal

__all__ = ["registry"]

pytestmark = [
    pytest.mark.needs_docker,
    pytest.mark.timeout(180),
]

MEBIBYTE = 2**20
MakeSpec = Callable[..., AttemptSpec]


@pytest.fixture
def executor(docker_engine: DockerEngine, tmp_path: Path) -> Iterator[DockerExecutor]:
    executor = DockerExecutor(owner="dgx-01", spool_dir=tmp_path / "spool", url=docker_engine.url)
    yield executor
    for seen in executor.observe():
        executor.remove(seen.attempt_id)
    executor.close()


@pytest.fixture
def make_spec(docker_engine: DockerEngine) -> MakeSpec:
    def make(script: str, **changes: object) -> AttemptSpec:
        fields: dict[str, object] = {
            "attempt_id": new_id(),
            "job_id": "job-1",
            "name": "test",
            "image": docker_engine.image,
            "command": ["/bin/sh", "-c", script],
            "memory_bytes": 64 * MEBIBYTE,
        }
        return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names

    return make


def until(
    executor: DockerExecutor, attempt_id: str, done: Callable[[AttemptObservation], bool]
) -> AttemptObservation:
    def probe() -> AttemptObservation | None:
        observations = (seen for seen in executor.observe() if seen.attempt_id == attempt_id)
        seen = next(observations, None)
        return seen if seen is not None and done(seen) else None

    seen = eventually(probe, within_seconds=60)
    assert seen is not None
    return seen


def until_ended(executor: DockerExecutor, attempt_id: str) -> AttemptObservation:
    return until(executor, attempt_id, lambda seen: seen.state.is_final)


def until_running(executor: DockerExecutor, attempt_id: str) -> AttemptObservation:
    return until(executor, attempt_id, lambda seen: seen.state is ObservedState.RUNNING)


def output(executor: DockerExecutor, spec: AttemptSpec) -> bytes:
    return plain_log(executor.read_log(spec.attempt_id, offset=0, limit=1_000_000))


def test_a_container_over_its_memory_is_out_of_memory(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    # A busy engine may miss the cause where the first process is the one that is killed.
    spec = make_spec("tail /dev/zero; sleep 1; exit 3", memory_bytes=16 * MEBIBYTE)
    executor.start(spec)
    ended = until_ended(executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "out_of_memory")
    assert "16 MiB" in ended.message


def test_a_command_that_succeeds_after_a_child_was_killed_for_memory_succeeds_and_says_so(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    spec = make_spec("tail /dev/zero; sleep 1; exit 0", memory_bytes=16 * MEBIBYTE)
    executor.start(spec)
    ended = until_ended(executor, spec.attempt_id)
    assert (ended.state, ended.exit_code, ended.reason) == (ObservedState.SUCCEEDED, 0, "")
    assert "killed for memory above 16 MiB" in ended.message


def test_a_signal_and_the_time_limit_differ_from_an_exit_code(
    executor: DockerExecutor, make_spec: MakeSpec, docker_engine: DockerEngine
) -> None:
    killed, limited = make_spec("exec sleep 60"), make_spec("exec sleep 60")
    executor.start(killed)
    executor.start(limited)
    until_running(executor, killed.attempt_id)
    client = docker.DockerClient(base_url=docker_engine.url)
    client.containers.get(f"vedette-{killed.attempt_id}").kill()
    client.close()
    until_running(executor, limited.attempt_id)
    executor.stop(limited.attempt_id, grace_seconds=0, reason=StopReason.TIME_LIMIT)
    executor.stop(limited.attempt_id, grace_seconds=0)
    ended = until_ended(executor, limited.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "time_limit")
    ended = until_ended(executor, killed.attempt_id)
    assert (ended.state, ended.reason, ended.exit_code) == (ObservedState.FAILED, "signal", 137)
    assert "SIGKILL" in ended.message


def test_a_job_has_its_own_time_to_stop(executor: DockerExecutor, make_spec: MakeSpec) -> None:
    saves = "trap 'sleep 1; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    patient, usual = make_spec(saves, stop_grace_seconds=60), make_spec(saves)
    for spec in (patient, usual):
        executor.start(spec)
        until_running(executor, spec.attempt_id)
    for spec in (patient, usual):
        executor.stop(spec.attempt_id, grace_seconds=0)
    assert until_ended(executor, patient.attempt_id).exit_code == 0
    assert until_ended(executor, usual.attempt_id).exit_code == 137


def test_an_image_is_pulled_with_credentials_only_and_the_failure_says_so(
    docker_engine: DockerEngine, make_spec: MakeSpec, registry: Registry, tmp_path: Path
) -> None:
    for config, state, reason in (
        (tmp_path / "none.json", ObservedState.FAILED, "image_pull_failed"),
        (registry.docker_config, ObservedState.SUCCEEDED, ""),
    ):
        config.touch()
        times: dict[str, int] = {}
        spec = make_spec("true", image=registry.image)
        own_executor = DockerExecutor(
            owner="dgx-01", spool_dir=tmp_path, url=docker_engine.url, docker_config=config
        )
        if reason:
            with pytest.raises(ImageError, match="docker_config_file") as caught:
                own_executor.pull_image(spec, lambda _: True, times.update)
            assert caught.value.reason == reason
        else:  # a member of a gang has it before it starts
            own_executor.pull_image(spec, lambda _: True, times.update)
            config.unlink()
            assert list(times) == ["pull_began_at_ns", "pull_ended_at_ns"]
        own_executor.start(spec)
        ended = until_ended(own_executor, spec.attempt_id)
        own_executor.remove(spec.attempt_id)
        own_executor.close()
        assert (ended.state, ended.reason) == (state, reason)
        assert ("docker_config_file" in ended.message) is (reason != "")


@pytest.mark.nightly
def test_an_unhealthy_service_is_restarted_and_logged_on(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    check = HealthCheck(
        kind=HealthCheckKind.COMMAND, command="cat /second", interval_seconds=0.1,
        max_failures=1, grace_seconds=0.1,
    )  # fmt: skip
    script = "echo began; cat /first && echo > /second; echo > /first; exec sleep 60"
    spec = make_spec(
        script, is_service=True, health_check=check, container_policy=ContainerPolicy.STANDARD
    )
    executor.start(spec)
    first = until(executor, spec.attempt_id, lambda seen: seen.health is Health.UNHEALTHY)
    recovered = until(executor, spec.attempt_id, lambda seen: seen.health is Health.HEALTHY)
    assert (first.state, recovered.state) == (ObservedState.RUNNING, ObservedState.RUNNING)
    assert (first.restarts, recovered.restarts) == (1, 1)
    eventually(lambda: output(executor, spec).count(b"began") == 2)
    executor.stop(spec.attempt_id, grace_seconds=0)
    assert until_ended(executor, spec.attempt_id).reason == "stopped_by_user"


def test_a_command_that_is_not_in_the_image_is_named(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    spec = make_spec("", command=["trian"])
    executor.start(spec)
    ended = until_ended(executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "invalid_job")
    assert "trian" in ended.message


def test_gpus_on_an_engine_without_nvidias_toolkit_say_what_to_install(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    spec = make_spec("true", gpu_uuids=["GPU-00000000-0000-0000-0000-000000000000"])
    executor.start(spec)
    ended = until_ended(executor, spec.attempt_id)
    assert ended.reason == "start_failed"
    assert "NVIDIA container toolkit" in ended.message


def test_a_service_that_exits_is_restarted_and_its_log_goes_on(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    spec = make_spec("echo up; sleep 0.2; exit 1", is_service=True)
    executor.start(spec)

    def has_restarted() -> bool:
        executor.observe()
        text = output(executor, spec)
        return text.startswith(b"up\nup\nup\n")

    eventually(has_restarted, within_seconds=60)
    assert until_running(executor, spec.attempt_id).state is ObservedState.RUNNING


def test_a_process_that_ignores_the_request_is_killed_after_the_grace(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    spec = make_spec("trap '' TERM; echo deaf; while true; do sleep 1; done")
    executor.start(spec)
    until_running(executor, spec.attempt_id)
    executor.stop(spec.attempt_id, grace_seconds=1)
    executor.stop(spec.attempt_id, grace_seconds=1)
    ended = until_ended(executor, spec.attempt_id)
    assert (ended.state, ended.exit_code) == (ObservedState.STOPPED, 137)


def test_a_container_stopped_behind_our_back_is_a_failure_with_its_code(
    executor: DockerExecutor, make_spec: MakeSpec, docker_engine: DockerEngine
) -> None:
    spec = make_spec("sleep 60")
    executor.start(spec)
    until_running(executor, spec.attempt_id)
    client = docker.DockerClient(base_url=docker_engine.url)
    client.containers.get(f"vedette-{spec.attempt_id}").kill()
    client.close()
    ended = until_ended(executor, spec.attempt_id)
    assert (ended.state, ended.exit_code) == (ObservedState.FAILED, 137)


def test_output_written_while_the_agent_was_away_is_in_the_log_once(
    executor: DockerExecutor, make_spec: MakeSpec, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    spec = make_spec("for i in $(seq 1 8); do echo line $i; sleep 0.25; done")
    executor.start(spec)
    eventually(lambda: b"line 2" in output(executor, spec))
    executor.close()
    restarted = DockerExecutor(owner="dgx-01", spool_dir=tmp_path / "spool", url=docker_engine.url)
    until_ended(restarted, spec.attempt_id)
    complete = output(restarted, spec)
    restarted.close()
    assert complete.decode() == "".join(f"line {number}\n" for number in range(1, 9))


def test_agents_that_share_an_engine_leave_each_others_containers_alone(
    executor: DockerExecutor, make_spec: MakeSpec, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    spec = make_spec("sleep 60")
    executor.start(spec)
    until_running(executor, spec.attempt_id)
    other = DockerExecutor(owner="dgx-02", spool_dir=tmp_path / "other", url=docker_engine.url)
    assert (other.observe(), other.container_ids()) == ([], {})
    assert [seen.attempt_id for seen in executor.observe()] == [spec.attempt_id]
    other.close()


def test_a_lost_spool_is_written_again_from_the_engines_log(
    executor: DockerExecutor, make_spec: MakeSpec, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    spec = make_spec("echo hello; sleep 60")
    executor.start(spec)
    eventually(lambda: output(executor, spec))
    executor.close()
    shutil.rmtree(tmp_path / "spool")
    restarted = DockerExecutor(owner="dgx-01", spool_dir=tmp_path / "spool", url=docker_engine.url)
    until_running(restarted, spec.attempt_id)
    eventually(lambda: output(restarted, spec) == b"hello\n")
    restarted.close()


def test_endless_output_is_kept_up_to_a_bound(
    make_spec: MakeSpec,
    docker_engine: DockerEngine,
    tmp_path: Path,
    executor: DockerExecutor,
) -> None:
    small = DockerExecutor(
        owner="dgx-01", spool_dir=tmp_path / "small", url=docker_engine.url, log_limit_bytes=50_000
    )
    spec = make_spec("seq 1 100000")
    small.start(spec)
    until_ended(small, spec.attempt_id)
    complete = small.read_log(spec.attempt_id, offset=0, limit=1_000_000)
    small.close()
    assert complete.endswith(spool_files.TRUNCATION_NOTICE)
    assert len(complete) == 50_000 + len(spool_files.TRUNCATION_NOTICE)
    assert executor.observe()


def test_the_attempts_own_limits_reach_the_container(
    executor: DockerExecutor, make_spec: MakeSpec, docker_engine: DockerEngine
) -> None:
    spec = make_spec("env; sleep 60", cpus=0.5, env={"GREETING": "it's; $(not) a shell"})
    executor.start(spec)
    until_running(executor, spec.attempt_id)
    client = docker.DockerClient(base_url=docker_engine.url)
    host = client.containers.get(f"vedette-{spec.attempt_id}").attrs["HostConfig"]
    client.close()
    assert (host["NanoCpus"], host["Memory"]) == (500_000_000, 64 * MEBIBYTE)

    def environment() -> bytes:
        return output(executor, spec)

    eventually(lambda: b"VEDETTE_JOB_ID=job-1" in environment())
    assert b"GREETING=it's; $(not) a shell" in environment()


def test_cpu_use_is_that_of_the_container(executor: DockerExecutor, make_spec: MakeSpec) -> None:
    spec = make_spec("while true; do :; done", cpus=0.5)
    executor.start(spec)
    until_running(executor, spec.attempt_id)
    executor.usage(spec.attempt_id)

    def percent() -> float:
        usage = executor.usage(spec.attempt_id)
        return usage.cpu_percent if usage else 0.0

    assert eventually(lambda: percent() > 20, every_seconds=1.0)
    executor.stop(spec.attempt_id, grace_seconds=0)
    until_ended(executor, spec.attempt_id)


def test_a_missing_engine_is_reported_as_unavailable(tmp_path: Path) -> None:
    executor = DockerExecutor(
        owner="dgx-01", spool_dir=tmp_path, url=f"unix://{tmp_path}/nobody.sock"
    )
    with pytest.raises(ExecutorUnavailableError, match=re.escape("does not answer")):
        executor.observe()
    executor.close()


def test_an_id_that_is_no_file_name_is_refused(
    executor: DockerExecutor, make_spec: MakeSpec
) -> None:
    with pytest.raises(ExecutorError, match="not an attempt id"):
        executor.start(make_spec("true", attempt_id="../../etc/passwd"))


def test_an_agent_runs_a_job_in_a_real_container(
    docker_engine: DockerEngine, make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec("echo from the container; sleep 1")
    config = AgentConfig(
        portal_urls=["http://unused"],
        data_dir=tmp_path / "agent",
        docker_url=docker_engine.url,
        attempts_interval_seconds=0.1,
        flush_interval_seconds=0.2,
        interval_seconds=0.5,
        poll_wait_seconds=0,
    )
    identity = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN)
    with RecordingPortal() as portal:
        portal.desire(DesiredState(generation=1, attempts=[spec]))
        stop = Event()
        agent = Agent(_at(config, portal), identity)
        thread = Thread(target=agent.run, args=(stop,))
        thread.start()
        recording = portal.recording
        try:
            eventually(lambda: spec.attempt_id in recording.observed)
            eventually(lambda: recording.observed[spec.attempt_id].state.is_final)
            eventually(
                lambda: (
                    plain_log(recording.logs.get(spec.attempt_id, b"")) == b"from the container\n"
                )
            )
            portal.desire(DesiredState(generation=2))
            eventually(lambda: not _containers(docker_engine, spec.attempt_id))
        finally:
            stop.set()
            thread.join()
        assert recording.observed[spec.attempt_id].state is ObservedState.SUCCEEDED
        assert any(line.startswith("attempt,") for line in recording.lines)


def _at(config: AgentConfig, portal: RecordingPortal) -> AgentConfig:
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return AgentConfig(**{**fields, "portal_urls": [portal.url]})


def _containers(engine: DockerEngine, attempt_id: str) -> list[object]:
    client = docker.DockerClient(base_url=engine.url)
    try:
        filters = {"name": f"vedette-{attempt_id}"}
        return list(client.containers.list(all=True, filters=filters, ignore_removed=True))
    finally:
        client.close()
