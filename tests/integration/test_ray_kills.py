"""Nothing runs twice on Ray, and nothing is lost, whatever is killed at a random moment."""

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from core.ids import new_id
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedReport
from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import RayCluster, ray_cluster

pytestmark = [pytest.mark.needs_ray, pytest.mark.nightly, pytest.mark.timeout(600)]
ROUNDS = 50
# Starting a head takes ten seconds, an agent one.
HEAD_KILLS = 5
TARGETS = ("agent", "agent", "worker")
MAX_OPEN = 3
RANDOM = random.Random()  # noqa: S311 - nothing secret


class Site:
    """The agent's process, and the files by which the test talks with it."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.shown = folder / "shown"
        self.shown.touch()
        self._attempts: list[AttemptSpec] = []
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, seconds: float) -> AttemptSpec:
        """Want an attempt that shows its start and end in a file."""
        ident = new_id()
        shown = f"echo {ident} start >> {self.shown}; sleep {seconds:.2f}; "
        spec = AttemptSpec(
            attempt_id=ident,
            job_id=new_id(),
            name="killed",
            image="",
            command=["sh", "-c", f"{shown} echo {ident} end >> {self.shown}"],
            cpus=0.5,
            memory_bytes=2**26,
        )
        self._attempts.append(spec)
        desired = DesiredState(generation=len(self._attempts), attempts=self._attempts)
        path = self.folder / "desired.new"
        path.write_bytes(msgspec.json.encode(desired))
        path.rename(self.folder / "desired.json")
        return spec

    def start_agent(self) -> None:
        with (self.folder / "agent.log").open("ab") as log_file:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.fixtures.killed_ray_agent"),
                    *(self.cluster.url, str(self.folder)),
                ],
                stdout=log_file,
                stderr=log_file,
            )

    def kill_agent(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill(self, target: str) -> None:
        """Kill a part with SIGKILL, and start it again."""
        if target == "agent":
            self.kill_agent()
            self.start_agent()
        elif target == "head":
            self.cluster.kill_head()
            self.cluster.start()
        elif workers := self.cluster.processes("ray::JobSupervisor"):
            with contextlib.suppress(psutil.NoSuchProcess):
                RANDOM.choice(workers).kill()

    def ended(self) -> dict[str, AttemptObservation]:
        path = self.folder / "report.json"
        if not path.exists():
            return {}
        report = msgspec.json.decode(path.read_bytes(), type=ObservedReport)
        return {seen.attempt_id: seen for seen in report.attempts if seen.state.is_final}


def test_each_attempt_runs_at_most_once_and_ends_whatever_is_killed(tmp_path: Path) -> None:
    targets = ["head"] * HEAD_KILLS + RANDOM.choices(TARGETS, k=ROUNDS - HEAD_KILLS)
    RANDOM.shuffle(targets)
    with ray_cluster() as cluster:
        cluster.start()
        site = Site(cluster, tmp_path)
        specs = [site.add(0.5)]
        site.start_agent()
        try:
            for target in targets:
                specs.append(site.add(RANDOM.uniform(0.1, 1.5)))
                time.sleep(RANDOM.uniform(0.0, 2.5))
                site.kill(target)
                eventually(lambda: len(specs) - len(site.ended()) <= MAX_OPEN, every_seconds=0.2)
            eventually(
                lambda: len(site.ended()) == len(specs), within_seconds=120, every_seconds=0.5
            )
        finally:
            site.kill_agent()
        time.sleep(2)  # what would still run would show its end
        ended = site.ended()
    lines = site.shown.read_text().splitlines()
    assert len(lines) == len(set(lines)), "an attempt ran twice"
    for spec in specs:
        seen = ended[spec.attempt_id]
        has_run = f"{spec.attempt_id} end" in lines
        assert seen.state != "succeeded" or has_run, seen
        assert seen.state == "succeeded" or seen.reason == "node_failed", seen
