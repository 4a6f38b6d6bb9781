"""How often a connector asks the controller of Slurm."""

import time
from pathlib import Path

import pytest

from jobqueue.executors.base import ExecutorUnavailableError
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.api import JobOptions, SlurmJob
from jobqueue.executors.slurm.commands import SlurmCommands
from jobqueue.executors.slurm.executor import SlurmExecutor
from protocol.attempts import AttemptSpec

EXECUTOR = "jobqueue.executors.slurm.executor"
SPEC = AttemptSpec(attempt_id="a", job_id="j", name="n", image="", command=["true"])


class CountingSlurm(SlurmCommands):
    """A controller with one job, which runs on whatever it is asked; it counts the requests."""

    def __init__(self) -> None:
        super().__init__(SlurmSettings())
        self.reads = 0
        self.sent: list[str] = []
        self.shown: list[SlurmJob] = []
        self.is_away = False

    def submit(self, options: JobOptions) -> int:
        self.shown = [SlurmJob(job_id=1, name=options.name, state="RUNNING", node="n1")]
        return 1

    def jobs(self) -> list[SlurmJob]:
        self.reads += 1
        if self.is_away:
            raise ExecutorUnavailableError("Slurm is not available")
        return self.shown

    def signal(self, job_id: int, name: str) -> None:
        self.sent.append(f"{name} {job_id}")

    def cancel(self, job_id: int) -> None:
        self.sent.append(f"cancel {job_id}")


class Site:
    """An executor, which is asked once a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.api = CountingSlurm()
        monkeypatch.setattr(f"{EXECUTOR}.SlurmCommands", lambda _: self.api)
        site = ExecutorSite(owner="head", state_dir=folder, stop_grace_seconds=1)
        self.executor = SlurmExecutor(SlurmSettings(work_dir=folder / "work"), site)

    def reads(self, seconds: int) -> int:
        before = self.api.reads
        for _ in range(seconds):
            self.now += 1
            try:
                self.executor.observe()
            except ExecutorUnavailableError:
                assert self.api.is_away
        return self.api.reads - before


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_quiet_connector_asks_every_three_seconds(site: Site) -> None:
    assert site.reads(60) == 20


def test_a_submission_is_followed_each_second_for_a_while(site: Site) -> None:
    site.executor.start(SPEC)
    assert site.reads(9) == 9
    site.reads(10)
    assert site.reads(60) == 20


def test_a_controller_that_is_away_is_asked_no_more_often(site: Site) -> None:
    site.api.is_away = True
    assert site.reads(60) == 20
    site.api.is_away = False
    assert site.reads(3) == 1


def test_a_job_that_does_not_end_is_killed_again_every_five_seconds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.executor.start(SPEC)
    site.reads(1)
    site.executor.stop("a", grace_seconds=1)
    assert site.api.sent == ["TERM 1"]
    monkeypatch.setattr(f"{EXECUTOR}.to_ns", lambda _: 2**62)  # the grace is over
    for _ in range(10):
        site.now += 1
        site.executor.stop("a", grace_seconds=1)
    assert site.api.sent[1:] == ["KILL 1", "cancel 1"] * 2
