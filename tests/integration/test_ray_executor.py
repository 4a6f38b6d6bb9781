"""Behavior of the Ray executor beyond the contract of all, on a real head."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from core.ids import new_id
from jobqueue.executors.base import Executor, ExecutorUnavailableError
from jobqueue.executors.ray.executor import RayExecutor
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import RaySettings
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import NodeState, requested_gpus
from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import CPUS, GPUS, MEMORY_BYTES, RayCluster, end_node
from tests.servers import free_port

pytestmark = [pytest.mark.needs_ray, pytest.mark.nightly, pytest.mark.timeout(240)]
MEBIBYTE = 2**20
DRIVER = """
import os, ray, time
ray.init()
@ray.remote(num_cpus=0.1)
class Busy:
    def run(self):
        block = bytearray(50_000_000)
        end = time.time() + 40
        while time.time() < end:
            pass
busy = Busy.remote()
ray.get(busy.run.remote())
"""


@pytest.fixture
def site(tmp_path: Path) -> ExecutorSite:
    return ExecutorSite(owner=new_id(), state_dir=tmp_path / "state", stop_grace_seconds=1)


@pytest.fixture
def executor(ray_head: RayCluster, site: ExecutorSite) -> Iterator[RayExecutor]:
    """An executor whose attempts the test's end removes."""
    opened = open_executor(ray_head, site)
    yield opened
    for seen in opened.observe():
        opened.stop(seen.attempt_id, grace_seconds=0)
    eventually(lambda: all(seen.state.is_final for seen in opened.observe()))
    for seen in opened.observe():
        opened.remove(seen.attempt_id)
    opened.close()


def open_executor(cluster: RayCluster, site: ExecutorSite, **settings: Any) -> RayExecutor:  # noqa: ANN401
    return RayExecutor(RaySettings(url=cluster.url, lost_seconds=4, **settings), site)


def spec_of(*command: str, **changes: Any) -> AttemptSpec:  # noqa: ANN401
    fields: dict[str, Any] = {
        "attempt_id": new_id(),
        "job_id": new_id(),
        "name": "hello",
        "image": "",
        "command": list(command) or ["true"],
        "cpus": 0.5,
        "memory_bytes": 64 * MEBIBYTE,
        **changes,
    }
    return AttemptSpec(**fields)


def seen_of(executor: Executor, spec: AttemptSpec) -> AttemptObservation | None:
    attempts = {seen.attempt_id: seen for seen in executor.observe()}
    return attempts.get(spec.attempt_id)


def until(
    executor: Executor, spec: AttemptSpec, *states: ObservedState, seconds: float = 60.0
) -> AttemptObservation:
    def probe() -> AttemptObservation | None:
        seen = seen_of(executor, spec)
        return seen if seen is not None and seen.state in states else None

    seen = eventually(probe, within_seconds=seconds, every_seconds=0.2)
    assert seen is not None
    return seen


def ended(executor: Executor, spec: AttemptSpec, *, seconds: float = 60.0) -> AttemptObservation:
    final = (state for state in ObservedState if state.is_final)
    return until(executor, spec, *final, seconds=seconds)


def whole_log(executor: Executor, spec: AttemptSpec) -> bytes:
    output = b""
    while chunk := executor.read_log(spec.attempt_id, offset=len(output), limit=MEBIBYTE):
        output += chunk
    return output


def own_jobs(cluster: RayCluster, spec: AttemptSpec) -> list[dict[str, Any]]:
    jobs = requests.get(f"{cluster.url}/api/jobs/", timeout=10).json()
    return [job for job in jobs if spec.attempt_id in (job["submission_id"] or "")]


def test_a_command_gets_its_words_variables_folder_and_gpus(executor: RayExecutor) -> None:
    shown = 'printf "%s|" "$1" "$GREETING" "$FROM_RAY" "$PWD" "$CUDA_VISIBLE_DEVICES"'
    options = {"ray.runtime_env": json.dumps({"env_vars": {"FROM_RAY": "yes", "GREETING": "no"}})}
    spec = spec_of(
        *("sh", "-c", shown, "sh", "it's $HOME; `id`"),
        env={"GREETING": "a b"},
        working_dir="/usr",
        gpu_uuids=requested_gpus(1),
        cluster_options={**options, "ray.resources": '{"blue": 0.5}'},
    )
    executor.start(spec)
    assert ended(executor, spec).state is ObservedState.SUCCEEDED
    output = whole_log(executor, spec).decode()
    assert "it's $HOME; `id`|a b|yes|/usr|" in output
    assert output.split("/usr|")[1][0] in "01"


def test_the_node_and_the_gpus_of_a_running_job_are_known(executor: RayExecutor) -> None:
    spec = spec_of("sleep", "60", gpu_uuids=requested_gpus(2), cpus=2.0)
    executor.start(spec)
    until(executor, spec, ObservedState.RUNNING)

    def with_gpus() -> AttemptObservation | None:
        report = executor.read_cluster()
        seen = seen_of(executor, spec)
        return seen if report.nodes[0].allocated_gpus and seen and seen.gpu_indices else None

    seen = eventually(with_gpus, every_seconds=1)
    assert seen is not None
    assert seen.gpu_indices == [0, 1]
    assert seen.node == executor.read_cluster().nodes[0].name


def test_a_job_waits_for_a_node_with_the_model_that_it_requests(executor: RayExecutor) -> None:
    gpus = requested_gpus(1)
    right, wrong = (spec_of(gpu_uuids=gpus, gpu_models=[model]) for model in ("A100", "H100"))
    executor.start(wrong)
    executor.start(right)
    assert ended(executor, right).state is ObservedState.SUCCEEDED
    waiting = until(executor, wrong, ObservedState.STARTING)
    assert "waiting for resources" in waiting.message


def test_the_cluster_is_reported_with_what_is_allocated(executor: RayExecutor) -> None:
    spec = spec_of("sleep", "60", gpu_uuids=requested_gpus(1), cpus=2.0)
    executor.start(spec)
    until(executor, spec, ObservedState.RUNNING)
    report = eventually(
        lambda: next(
            (r for r in [executor.read_cluster()] if r.nodes[0].allocated_cpus >= 2.0), None
        ),
        every_seconds=1,
    )
    assert report is not None
    node = report.nodes[0]
    assert (report.version.count("."), report.problem, node.state) == (2, "", NodeState.UP)
    assert (node.cpus, node.gpus, node.gpu_model) == (CPUS, GPUS, "A100")
    assert (node.memory_bytes, node.allocated_gpus) == (MEMORY_BYTES, 1)
    assert node.allocated_memory_bytes >= spec.memory_bytes


def test_what_tasks_and_actors_of_a_job_use_is_known(executor: RayExecutor) -> None:
    spec = spec_of("python", "-c", DRIVER)
    executor.start(spec)
    until(executor, spec, ObservedState.RUNNING)

    def used() -> bool:
        executor.read_cluster()
        executor.observe()
        usage = executor.usage(spec.attempt_id)
        return usage is not None and usage.cpu_percent > 1 and usage.memory_bytes > 50_000_000

    eventually(used, every_seconds=1)


def test_a_job_that_waits_says_so_and_can_be_stopped_before_it_starts(
    ray_head: RayCluster, executor: RayExecutor, tmp_path: Path
) -> None:
    first = spec_of("sleep", "60", cpus=float(CPUS))
    second = spec_of("touch", str(tmp_path / "ran"), cpus=float(CPUS))
    executor.start(first)
    until(executor, first, ObservedState.RUNNING)
    executor.start(second)
    waiting = until(executor, second, ObservedState.STARTING)
    assert "waiting for resources" in waiting.message
    executor.stop(second.attempt_id, grace_seconds=0)
    assert ended(executor, second).state is ObservedState.STOPPED
    executor.remove(second.attempt_id)
    assert seen_of(executor, second) is None
    executor.stop(first.attempt_id, grace_seconds=0)
    eventually(lambda: own_jobs(ray_head, second)[0]["status"] == "STOPPED", every_seconds=0.2)
    assert not (tmp_path / "ran").exists()
    # It is listed now, and removed by those who don't know it.
    eventually(lambda: seen_of(executor, second))
    executor.remove(second.attempt_id)
    assert own_jobs(ray_head, second) == []


def test_the_time_between_both_signals_is_that_of_the_job(executor: RayExecutor) -> None:
    script = (
        "trap 'echo saving; sleep 2; echo saved; exit 3' TERM; echo up; while :; do sleep .1; done"
    )
    spec = spec_of("sh", "-c", script, stop_grace_seconds=20)
    executor.start(spec)
    eventually(lambda: b"up\n" in whole_log(executor, spec))
    executor.stop(spec.attempt_id, grace_seconds=0)
    assert ended(executor, spec).state is ObservedState.STOPPED
    assert b"saved" in whole_log(executor, spec)


def test_a_job_stopped_in_ray_says_so(ray_head: RayCluster, executor: RayExecutor) -> None:
    spec = spec_of("sleep", "60")
    executor.start(spec)
    until(executor, spec, ObservedState.RUNNING)
    name = own_jobs(ray_head, spec)[0]["submission_id"]
    requests.post(f"{ray_head.url}/api/jobs/{name}/stop", timeout=10).raise_for_status()
    assert ended(executor, spec).reason == "stopped_outside"


def test_signals_and_missing_commands_are_told_apart(executor: RayExecutor) -> None:
    killed, missing = spec_of("sh", "-c", "kill -9 $$"), spec_of("no-such-command")
    executor.start(killed)
    executor.start(missing)
    seen = ended(executor, killed)
    assert (seen.reason, seen.exit_code) == ("signal", 137)
    seen = ended(executor, missing)
    assert (seen.reason, seen.exit_code) == ("exit_code", 127)
    assert "lack the command" in seen.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster_options": {"ray.runtime_env": "{"}}, "ray.runtime_env is no JSON"),
        ({"cluster_options": {"ray.runtime_env": "[]"}}, "must be a JSON object"),
        ({"cluster_options": {"ray.runtime_env": "[" * 70_000}}, "more than 65536"),
        ({"cluster_options": {"ray.runtime_env": "[" * 60_000}}, "ray.runtime_env is"),
        ({"cluster_options": {"ray.runtime_env": '{"env_vars": {"A": 1}}'}}, "object of texts"),
        ({"cluster_options": {"ray.resources": '{"GPU": 1}'}}, "use the fields of the job"),
        ({"cluster_options": {"ray.resources": '{"blue": "x"}'}}, "must be above 0"),
        (
            {"cluster_options": {"ray.runtime_env": '{"working_dir": "/nowhere"}'}},
            "/nowhere is not",
        ),
        ({"secrets": {"TOKEN": "abc"}}, "passes_secrets"),
        ({"command": []}, "requires a command"),
    ],
)
def test_what_ray_can_not_run_is_refused_and_others_go_on(
    executor: RayExecutor, changes: dict[str, Any], words: str
) -> None:
    bad, good = spec_of("true"), spec_of("true")
    bad = AttemptSpec(**{**{f: getattr(bad, f) for f in bad.__struct_fields__}, **changes})
    executor.start(bad)
    executor.start(good)
    seen = ended(executor, bad)
    assert (seen.state, seen.reason) == (ObservedState.FAILED, "invalid_job")
    assert words in seen.message
    assert "Traceback" not in seen.message
    assert ended(executor, good).state is ObservedState.SUCCEEDED


# pip looks for a package.
def test_a_runtime_environment_that_can_not_be_made_is_told_in_rays_words(
    executor: RayExecutor,
) -> None:
    options = {"ray.runtime_env": '{"pip": ["no-such-package-of-vedette"]}'}
    spec = spec_of("true", cluster_options=options)
    executor.start(spec)
    seen = ended(executor, spec, seconds=200)
    assert (seen.state, seen.reason) == (ObservedState.FAILED, "invalid_job")
    assert "no-such-package-of-vedette" in seen.message


def test_secrets_are_passed_only_where_an_admin_allows_it(
    ray_head: RayCluster, site: ExecutorSite
) -> None:
    executor = open_executor(ray_head, site, passes_secrets=True)
    spec = spec_of("sh", "-c", 'test "$TOKEN" = abc', secrets={"TOKEN": "abc"})
    executor.start(spec)
    assert ended(executor, spec).state is ObservedState.SUCCEEDED
    executor.remove(spec.attempt_id)
    executor.close()


def test_output_that_is_no_text_or_has_no_last_newline_is_complete(executor: RayExecutor) -> None:
    spec = spec_of("printf", r"a\377b\r\nnext\rthen\nlast")
    executor.start(spec)
    ended(executor, spec)
    assert b"a\xffb\nnext\nthen\nlast" in whole_log(executor, spec)


def test_a_large_output_is_followed_and_read_once(executor: RayExecutor) -> None:
    script = "seq 1 50000; sleep 1.5; seq 50001 100000; sleep 1.5; seq 100001 150000"
    spec = spec_of("sh", "-c", script)
    executor.start(spec)
    eventually(lambda: b"\n20000\n" in whole_log(executor, spec), every_seconds=0.5)
    running = seen_of(executor, spec)
    assert running is not None
    ended(executor, spec)
    lines = [line for line in whole_log(executor, spec).split(b"\n") if line.isdigit()]
    assert lines == [str(number).encode() for number in range(1, 150_001)]


def test_the_output_stops_at_the_limit_of_the_spool(executor: RayExecutor) -> None:
    spec = spec_of("sh", "-c", f"head -c {SPOOL_LIMIT_BYTES + MEBIBYTE} /dev/zero | tr '\\0' 'a'")
    executor.start(spec)
    ended(executor, spec)
    output = whole_log(executor, spec)
    assert SPOOL_LIMIT_BYTES <= len(output) <= SPOOL_LIMIT_BYTES + MEBIBYTE
    assert output.endswith(b"[Output truncated: the appliance's log limit was reached.]\n")


def test_the_next_agent_goes_on_with_output_where_the_last_one_was(
    ray_head: RayCluster, executor: RayExecutor, site: ExecutorSite
) -> None:
    spec = spec_of("sh", "-c", "echo one; sleep 6; echo two")
    executor.start(spec)
    eventually(lambda: b"one\n" in whole_log(executor, spec), every_seconds=0.3)
    executor.close()
    reopened = open_executor(ray_head, site)
    ended(reopened, spec)
    lines = whole_log(reopened, spec).split(b"\n")
    assert (lines.count(b"one"), lines.count(b"two")) == (1, 1)
    reopened.close()


def test_a_node_that_drains_or_dies_is_shown_and_ends_its_jobs(
    ray_head: RayCluster, executor: RayExecutor
) -> None:
    node = ray_head.add_node("red-1")

    def state() -> NodeState | None:
        nodes = {node.name: node for node in executor.read_cluster().nodes}
        return nodes["red-1"].state if "red-1" in nodes else None

    eventually(lambda: state() is NodeState.UP, every_seconds=1)
    spec = spec_of("sleep", "100", cluster_options={"ray.resources": '{"red": 1}'})
    executor.start(spec)
    until(executor, spec, ObservedState.RUNNING)
    seen = seen_of(executor, spec)
    assert seen is not None
    assert seen.node == "red-1"
    end_node(node, signal_number=9)
    eventually(lambda: state() is NodeState.DOWN, every_seconds=1)
    seen = ended(executor, spec)
    assert (seen.state, seen.reason) == (ObservedState.FAILED, "node_failed")
    assert seen.started_at_ns is not None


def test_a_cluster_that_is_away_is_told_in_plain_words(site: ExecutorSite) -> None:
    executor = RayExecutor(RaySettings(url=f"http://127.0.0.1:{free_port()}"), site)
    with pytest.raises(ExecutorUnavailableError, match="does not answer"):
        executor.observe()
    with pytest.raises(ExecutorUnavailableError):
        executor.start(spec_of("true"))
    assert "does not answer" in executor.cluster().problem
    executor.close()
