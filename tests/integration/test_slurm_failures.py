"""A Slurm cluster whose nodes, daemons or answers fail."""

import dataclasses
import time
from pathlib import Path

import pytest

from collector.checks.connections import Verdict
from collector.checks.schedulers import check_schedulers
from collector.config import AgentConfig
from jobqueue.executors.base import ExecutorUnavailableError, UncertainError
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.slurm.api import JobOptions, SlurmJob
from jobqueue.executors.slurm.executor import SlurmExecutor
from protocol.attempts import ObservedState
from protocol.clusters import NodeState
from tests.fixtures.polling import eventually
from tests.fixtures.slurm import SlurmCluster
from tests.integration.slurm_attempts import (
    Open,
    job_id_of,
    node_of,
    opened,
    output_of,
    site,
    slurm,
    spec_of,
    until_ended,
    until_running,
)

__all__ = ["opened", "site", "slurm"]

pytestmark = [pytest.mark.needs_slurm, pytest.mark.nightly, pytest.mark.timeout(180)]


def test_a_drained_node_is_seen_and_its_job_goes_on(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster
) -> None:
    spec = spec_of("sleep 3")
    slurm.start(spec)
    node = until_running(slurm, spec).node
    slurm_cluster.call(
        "scontrol", "update", f"nodename={node}", "state=drain", "reason=fan 3 is loud"
    )
    seen = node_of(slurm, node)
    assert (seen.state, seen.reason) == (NodeState.DRAINED, "fan 3 is loud")
    assert until_ended(slurm, spec).state is ObservedState.SUCCEEDED


def test_a_failed_node_ends_its_job_with_that_reason(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster
) -> None:
    spec = spec_of("sleep 60")
    slurm.start(spec)
    node = until_running(slurm, spec).node
    slurm_cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
    ended = until_ended(slurm, spec)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "node_failed")
    assert (node_of(slurm, node).state, ended.node) == (NodeState.DOWN, node)


def test_a_preempted_job_says_so(slurm: SlurmExecutor, slurm_cluster: SlurmCluster) -> None:
    victims = [spec_of("sleep 60", cpus=16) for _ in range(2)]
    for spec in victims:
        slurm.start(spec)
        until_running(slurm, spec)
    slurm_cluster.call(
        *("sbatch", "-p", "urgent", "-N", "2", "-n", "2", "-c", "16", "--mem=1G"),
        *("-o", "/dev/null", "--wrap", "sleep 1"),
    )
    for spec in victims:
        assert until_ended(slurm, spec).reason == "preempted_by_cluster"


def test_a_job_that_an_admin_requeues_ends_and_runs_once(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    spec = spec_of(f"echo run >> {tmp_path}/runs; sleep 60")
    slurm.start(spec)
    until_running(slurm, spec)
    job_id = job_id_of(slurm_cluster, spec)
    eventually((tmp_path / "runs").exists)
    slurm_cluster.call("scontrol", "update", f"jobid={job_id}", "requeue=1")
    slurm_cluster.call("scontrol", "requeue", job_id)
    ended = until_ended(slurm, spec)
    assert ended.reason == "preempted_by_cluster"
    assert "queue" in ended.message
    eventually(lambda: not slurm_cluster.call("squeue", "-h"), within_seconds=60)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_an_unreachable_controller_is_told_and_jobs_are_found_again(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster
) -> None:
    spec = spec_of("sleep 12; echo done")
    slurm.start(spec)
    until_running(slurm, spec)
    # It stores its jobs every five seconds.
    path, now = slurm_cluster.folder / "state" / "job_state", time.time()
    eventually(lambda: path.stat().st_mtime > now + 1, within_seconds=30)
    slurm_cluster.kill("slurmctld")
    try:
        with pytest.raises(ExecutorUnavailableError, match="Unable to contact slurm controller"):
            eventually(lambda: slurm.observe() and None, within_seconds=20)

        def has_its_words() -> bool:
            return "Unable to contact slurm controller" in slurm.cluster().problem

        eventually(has_its_words, within_seconds=60, what="the report to have Slurm's words")
    finally:
        slurm_cluster.start("slurmctld")
    slurm_cluster.until_answering()
    ended = until_ended(slurm, spec)
    assert ended.state is ObservedState.SUCCEEDED, ended
    assert "done" in output_of(slurm, spec)


def test_munge_that_is_down_is_told(slurm: SlurmExecutor, slurm_cluster: SlurmCluster) -> None:
    broken = slurm_cluster.folder / "broken"
    broken.mkdir(exist_ok=True)
    config = (slurm_cluster.folder / "slurm.conf").read_text()
    gone = config.replace("munge.socket", "no.socket")
    (broken / "slurm.conf").write_text(gone)
    for command in slurm_cluster.bin_dir.iterdir():
        text = command.read_text().replace(f"{slurm_cluster.folder}/slurm", f"{broken}/slurm")
        (broken / command.name).write_text(text)
        (broken / command.name).chmod(0o755)
    without = SlurmExecutor(slurm_cluster.settings(bin_dir=broken), slurm._site)  # noqa: SLF001
    with pytest.raises(ExecutorUnavailableError, match=r"[Mm]unge"):
        without.observe()
    assert "unge" in without.cluster().problem
    without.close()


def test_a_version_that_is_too_old_takes_no_jobs(
    opened: Open, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'SLURM_VERSION = 19.05.5'\n")
    (tmp_path / "scontrol").chmod(0o755)
    slurm = opened(slurm_cluster.settings(bin_dir=tmp_path))
    problem = slurm.cluster().problem
    assert problem == "Slurm 19.05.5 is too old: Vedette needs 20.11 or newer. Update the cluster."
    config = AgentConfig(
        portal_urls=["http://127.0.0.1:1"], executor="slurm", data_dir=tmp_path,
        slurm=slurm_cluster.settings(bin_dir=tmp_path),
    )  # fmt: skip
    (result,) = check_schedulers(config)
    assert (result.verdict, result.message) == (Verdict.FAIL, problem)


def test_attempts_are_adopted_without_records(
    slurm: SlurmExecutor, opened: Open, site: ExecutorSite
) -> None:
    spec = spec_of("echo begun; sleep 4; exit 3")
    slurm.start(spec)
    until_running(slurm, spec)
    slurm.close()
    for path in (site.state_dir / "slurm").iterdir():
        path.unlink()
    adopted = opened()
    ended = until_ended(adopted, spec)
    assert (ended.state, ended.exit_code) == (ObservedState.FAILED, 3)
    assert output_of(adopted, spec) == "begun\n"


def test_a_submission_without_an_answer_runs_once(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    submit, jobs = slurm._api.submit, slurm._api.jobs  # noqa: SLF001

    def lose(options: JobOptions) -> int:
        submit(options)
        raise UncertainError("no answer")

    seen, hidden = (spec_of(f"echo {name} >> {tmp_path}/runs; sleep 1") for name in ("a", "b"))
    monkeypatch.setattr(slurm._api, "submit", lose)  # noqa: SLF001
    for spec in (seen, hidden):
        with pytest.raises(UncertainError):
            slurm.start(spec)
    monkeypatch.setattr(slurm._api, "submit", submit)  # noqa: SLF001
    slurm.start(seen)
    # The controller is slow: it does not show what it has accepted.
    monkeypatch.setattr(slurm._api, "jobs", list)  # noqa: SLF001
    slurm.start(hidden)
    monkeypatch.setattr(slurm._api, "jobs", jobs)  # noqa: SLF001
    for spec in (seen, hidden):
        assert until_ended(slurm, spec).state is ObservedState.SUCCEEDED
    eventually(lambda: not slurm_cluster.call("squeue", "-h"), within_seconds=60)
    assert sorted((tmp_path / "runs").read_text().split()) == ["a", "b"]


def test_a_lost_job_is_not_taken_for_another_one_with_its_id(
    slurm: SlurmExecutor, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, lost = spec_of("true"), spec_of("echo ran")
    slurm.start(ended)
    until_ended(slurm, ended)
    used_id = int(job_id_of(slurm_cluster, ended))
    # A controller that was killed has forgotten its last jobs, and gives their ids again.
    with monkeypatch.context() as patched:
        patched.setattr(slurm._api, "submit", lambda _: used_id)  # noqa: SLF001
        slurm.start(lost)
    assert lost.attempt_id not in {seen.attempt_id for seen in slurm.observe()}
    slurm.start(lost)
    assert until_ended(slurm, lost).state is ObservedState.SUCCEEDED
    assert output_of(slurm, lost) == "ran\n"


@pytest.mark.parametrize("state", ["NODE_FAIL", "CANCELLED"])
def test_a_command_that_ended_before_slurm_lost_its_job_counts(
    slurm: SlurmExecutor, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    jobs = slurm._api.jobs  # noqa: SLF001

    def lost() -> list[SlurmJob]:
        """Say of ended jobs what Slurm does when slurmd died before it could report their end."""
        return [
            dataclasses.replace(job, state=state, ended_at_ns=job.ended_at_ns + 10**10)
            if job.has_ended and job.ended_at_ns
            else job
            for job in jobs()
        ]

    monkeypatch.setattr(slurm._api, "jobs", lost)  # noqa: SLF001
    monkeypatch.setattr(slurm._api, "ended_jobs", lambda *_: [])  # noqa: SLF001
    succeeding, failing = spec_of("true"), spec_of("exit 3")
    for spec in (succeeding, failing):
        slurm.start(spec)
    assert until_ended(slurm, succeeding).state is ObservedState.SUCCEEDED
    assert (until_ended(slurm, failing).reason, until_ended(slurm, failing).exit_code) == (
        "exit_code",
        3,
    )
