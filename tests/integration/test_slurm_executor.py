"""Behavior of the Slurm executor beyond the contract of all, on a real cluster of two nodes."""

import asyncio
import dataclasses
import stat
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from collector.checks.connections import Verdict
from collector.checks.schedulers import check_schedulers
from collector.config import AgentConfig
from jobqueue.executors.base import ExecutorUnavailableError, NoExecError
from jobqueue.executors.slurm.executor import SlurmExecutor
from protocol.attempts import AttemptSpec, ObservedState
from protocol.clusters import requested_gpus
from protocol.exec import TerminalSize
from protocol.job_spec import Mount
from tests.fixtures.polling import eventually
from tests.fixtures.slurm import NODE_GPUS, SlurmCluster
from tests.integration.slurm_attempts import (
    Open,
    job_id_of,
    node_of,
    opened,
    output_of,
    site,
    slurm,
    spec_of,
    until,
    until_ended,
    until_running,
    with_options,
)

__all__ = ["opened", "site", "slurm"]

pytestmark = [pytest.mark.needs_slurm, pytest.mark.nightly, pytest.mark.timeout(180)]


def test_an_unknown_partition_fails_with_slurms_words_and_others_go_on(
    slurm: SlurmExecutor,
) -> None:
    wrong, right = with_options("true", partition="nowhere"), spec_of("true")
    slurm.start(wrong)
    slurm.start(right)
    ended = until_ended(slurm, wrong)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "invalid_job")
    assert "nvalid partition" in ended.message
    assert until_ended(slurm, right).state is ObservedState.SUCCEEDED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"account": "nobody"}, "Invalid account"),
        ({"qos": "gold"}, "Invalid qos"),
        ({"reservation": "none"}, "reservation"),
        ({"constraint": "tpu"}, "feature"),
        ({"gres": "fpga:1"}, "gres"),
        ({"dependency": "afterok"}, "dependency"),
        ({"nice": "-5"}, "slurm.nice"),
    ],
)
def test_what_slurm_does_not_allow_is_quoted(
    slurm: SlurmExecutor, options: dict[str, str], text: str
) -> None:
    spec = with_options("true", **options)
    slurm.start(spec)
    ended = until_ended(slurm, spec)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "invalid_job")
    assert text.lower() in ended.message.lower()


def test_an_image_and_a_mount_elsewhere_are_refused_where_only_scripts_run(
    slurm: SlurmExecutor,
) -> None:
    image = spec_of("true", image="python:3.13")
    mount = spec_of("true", mounts=[Mount(source="/data", target="/mnt")])
    empty = spec_of("true", command=[])
    for spec, text in ((image, "not images"), (mount, "path of the node"), (empty, "command")):
        slurm.start(spec)
        ended = until_ended(slurm, spec)
        assert ended.reason == "invalid_job"
        assert text in ended.message


def test_gpus_and_node_of_a_running_job_are_told(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster
) -> None:
    spec = spec_of(
        "echo $CUDA_VISIBLE_DEVICES $VEDETTE_JOB_ID; sleep 60",
        gpu_uuids=requested_gpus(2),
        cluster_options={"slurm.gres": "gpu:a100"},
    )
    slurm.start(spec)
    seen = until(slurm, spec, lambda seen: bool(seen.gpu_indices))
    assert len(seen.gpu_indices) == 2
    node = node_of(slurm, seen.node)
    assert (node.gpus, node.gpu_model, node.allocated_gpus) == (NODE_GPUS, "a100", 2)
    assert node.allocated_memory_bytes == 64 * 2**20
    expected = ",".join(map(str, seen.gpu_indices))
    eventually(lambda: f"{expected} job-1" in output_of(slurm, spec))
    assert "a100" in slurm_cluster.call("scontrol", "show", "job", job_id_of(slurm_cluster, spec))


@pytest.mark.parametrize("api", ["commands", "rest"])
def test_a_job_gets_gpus_of_the_models_that_it_may_have(
    opened: Open, slurm_cluster: SlurmCluster, api: str
) -> None:
    settings = slurm_cluster.rest_settings() if api == "rest" else slurm_cluster.settings()
    slurm = opened(settings)
    gpus = requested_gpus(3)
    first, second = (
        spec_of("sleep 60", gpu_uuids=gpus, gpu_models=["h100", "a100"]) for _ in range(2)
    )
    slurm.start(first)
    assert until(slurm, first, lambda seen: bool(seen.node)).node == "gpu-b"
    # Node gpu-a is idle, and the job waits for the first model: Slurm has no choice of types.
    slurm.start(second)
    until(slurm, second, lambda seen: "Resources" in seen.message)
    unknown = spec_of("true", gpu_uuids=gpus, gpu_models=["b200"])
    slurm.start(unknown)
    ended = until_ended(slurm, unknown)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "invalid_job")
    assert "Requested node configuration is not available" in ended.message


def test_the_partition_of_the_connector_is_the_default_of_the_report(
    opened: Open, slurm_cluster: SlurmCluster
) -> None:
    report = opened(slurm_cluster.settings(partition="short")).read_cluster()
    queues = {queue.name: queue for queue in report.queues}
    assert [name for name, queue in queues.items() if queue.is_default] == ["short"]
    assert queues["short"].time_limit_seconds == 1800
    nodes = {node.name: sorted(node.queues) for node in report.nodes}
    assert nodes == {"gpu-a": ["closed", "main", "urgent"], "gpu-b": sorted(queues)}


def test_a_job_that_waits_says_why_in_slurms_words(slurm: SlurmExecutor) -> None:
    blocker, waiting = (spec_of("sleep 60", cpus=16) for _ in range(2))
    other = spec_of("sleep 60", cpus=16)
    for spec in (blocker, other, waiting):
        slurm.start(spec)
    seen = until(slurm, waiting, lambda seen: "Resources" in seen.message)
    assert seen.state is ObservedState.STARTING
    assert seen.message.startswith("Pending in Slurm: Resources")
    closed = with_options("true", partition="closed")
    slurm.start(closed)
    until(slurm, closed, lambda seen: "PartitionDown" in seen.message)


def test_secrets_are_in_the_job_and_nowhere_to_be_seen(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster
) -> None:
    value = 'it\'s $HOME\n"secret" `77`'
    spec = spec_of('printf "<%s>" "$KEY"; sleep 60', secrets={"KEY": value})
    slurm.start(spec)
    job_id = job_id_of(slurm_cluster, spec)
    shown = [
        slurm_cluster.call("scontrol", "show", "job", "-d", job_id),
        slurm_cluster.call("scontrol", "write", "batch_script", job_id, "-"),
        slurm_cluster.call("sacct", "-j", job_id, "-P", "-o", "ALL"),
        subprocess.run(["ps", "axeww"], check=True, capture_output=True, text=True).stdout,  # noqa: S607
    ]
    env = next((slurm_cluster.work_dir).rglob(f"{spec.attempt_id}/env.1"), None)
    assert env is None or stat.S_IMODE(env.stat().st_mode) == 0o600
    folder = next(slurm_cluster.work_dir.rglob(spec.attempt_id))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    until_running(slurm, spec)
    eventually(lambda: output_of(slurm, spec) == f"<{value}>")
    assert not list(folder.glob("env*"))
    # The variables of a process are readable to its own user and to root only.
    assert not any("secret" in text for text in shown[:3])


def test_variables_of_the_agent_do_not_reach_jobs(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "agents-own")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    slurm, spec = opened(), spec_of("env")
    slurm.start(spec)
    assert until_ended(slurm, spec).state is ObservedState.SUCCEEDED
    assert "agents-own" not in output_of(slurm, spec)


def test_a_job_cancelled_by_an_admin_is_stopped_with_the_admins_name(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster
) -> None:
    spec = spec_of("sleep 60")
    slurm.start(spec)
    until_running(slurm, spec)
    slurm_cluster.call("scancel", job_id_of(slurm_cluster, spec))
    ended = until_ended(slurm, spec)
    assert (ended.state, ended.reason) == (ObservedState.STOPPED, "stopped_outside")
    assert "Cancelled in Slurm by root" in ended.message


def test_a_job_gets_its_grace_before_it_is_killed(slurm: SlurmExecutor) -> None:
    polite = spec_of("trap 'echo bye; exit 0' TERM; sleep 60 & wait", stop_grace_seconds=30)
    deaf = spec_of("trap '' TERM; for i in $(seq 600); do sleep 0.1; done")
    for spec in (polite, deaf):
        slurm.start(spec)
        until_running(slurm, spec)
    eventually(lambda: slurm.read_log(deaf.attempt_id, offset=0, limit=1) == b"")

    def is_stopped(spec: AttemptSpec) -> bool:
        slurm.stop(spec.attempt_id, grace_seconds=1)
        seen = {seen.attempt_id: seen for seen in slurm.observe()}[spec.attempt_id]
        return seen.state is ObservedState.STOPPED

    for spec in (polite, deaf):
        eventually(lambda spec=spec: is_stopped(spec), every_seconds=0.5)  # type: ignore[misc]
    assert "bye" in output_of(slurm, polite)


def test_a_signal_is_told(slurm: SlurmExecutor) -> None:
    spec = spec_of("kill -SEGV $$")
    slurm.start(spec)
    ended = until_ended(slurm, spec)
    assert (ended.reason, ended.exit_code) == ("signal", 139)
    assert "SIGSEGV" in ended.message


def test_the_check_says_what_cluster_answers(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    config = AgentConfig(
        portal_urls=["http://127.0.0.1:1"], executor="slurm", data_dir=tmp_path,
        slurm=slurm_cluster.settings(),
    )  # fmt: skip
    (result,) = check_schedulers(config)
    assert result.verdict is Verdict.OK
    assert "acme answers, version 22.05.8" in result.message
    assert "2 of 2 nodes up with 8 GPUs" in result.message
    settings = dataclasses.replace(slurm_cluster.settings(), bin_dir=tmp_path)
    (result,) = check_schedulers(dataclasses.replace(config, slurm=settings))
    assert result.verdict is Verdict.FAIL
    assert "set bin_dir in [slurm]" in result.message


def test_a_hundred_jobs_run_with_one_request_for_all(
    slurm: SlurmExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [spec_of("echo $VEDETTE_ATTEMPT_ID", cpus=0.5) for _ in range(100)]
    for spec in specs:
        slurm.start(spec)
    calls = []
    monkeypatch.setattr(slurm._api, "ended_jobs", lambda *_: calls.append("sacct"))  # noqa: SLF001

    def have_ended() -> bool:
        return all(seen.state.is_final for seen in slurm.observe())

    eventually(have_ended, within_seconds=120, every_seconds=0.5)
    assert {seen.state for seen in slurm.observe()} == {ObservedState.SUCCEEDED}
    assert not calls
    for spec in specs:
        assert output_of(slurm, spec) == f"{spec.attempt_id}\n"
        slurm.remove(spec.attempt_id)
    assert slurm.observe() == []


class Typed:
    """A user's end of a command."""

    def __init__(self, command: list[str], typed: bytes, size: TerminalSize | None) -> None:
        self.command: Sequence[str] = command
        self.size, self.term = size, "xterm"
        self._typed = typed
        self.printed = b""

    async def inputs(self) -> AsyncIterator[bytes | TerminalSize]:
        if self._typed:
            yield self._typed

    async def output(self, data: bytes, *, is_error: bool) -> None:
        self.printed += b"E" + data if is_error else data


def test_commands_run_beside_a_job_with_a_terminal_and_without(slurm: SlurmExecutor) -> None:
    spec = spec_of("sleep 60")
    slurm.start(spec)
    until_running(slurm, spec)
    piped = Typed(["sh", "-c", "cat; echo oops >&2; exit 4"], b"typed\n", None)
    assert asyncio.run(slurm.execute(spec.attempt_id, piped)) == 4
    assert b"typed\n" in piped.printed
    assert b"oops" in piped.printed
    size = TerminalSize(rows=33, columns=77)
    terminal = Typed(["sh", "-c", "stty size; echo $SLURM_JOB_ID"], b"", size)
    assert asyncio.run(slurm.execute(spec.attempt_id, terminal)) == 0
    assert b"33 77" in terminal.printed
    with pytest.raises(NoExecError):
        asyncio.run(slurm.execute("unknown", piped))


def test_slurmrestd_is_used_with_a_token_that_is_read_each_time(
    opened: Open, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    rest = dataclasses.replace(slurm_cluster.rest_settings(), token_file=token)
    slurm = opened(rest)
    with pytest.raises(ExecutorUnavailableError):
        slurm.observe()
    assert slurm.cluster().problem
    token.write_text(slurm_cluster.token_path.read_text())
    wrong, spec = (
        with_options("true", partition="nowhere"),
        spec_of("echo $KEY; exit 7", secrets={"KEY": "x y"}),
    )
    slurm.start(wrong)
    slurm.start(spec)
    assert "Invalid partition name" in until_ended(slurm, wrong).message
    ended = until_ended(slurm, spec)
    assert (ended.reason, ended.exit_code) == ("exit_code", 7)
    assert output_of(slurm, spec) == "x y\n"
    report = slurm.read_cluster()
    assert [(node.name, node.gpus, node.gpu_model) for node in report.nodes] == [
        ("gpu-a", NODE_GPUS, "a100"),
        ("gpu-b", NODE_GPUS, "h100"),
    ]
    assert {queue.name: queue.is_open for queue in report.queues}["closed"] is False
