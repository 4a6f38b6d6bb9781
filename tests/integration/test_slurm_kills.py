"""Nothing runs twice and nothing is lost, whatever is killed: connector, slurmctld or slurmd."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from core.atomic_files import replace_file
from core.ids import new_id
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedState
from tests.fixtures.polling import eventually
from tests.fixtures.slurm import NODES, SlurmCluster, slurm_cluster

__all__ = ["slurm_cluster"]

ROUNDS = int(os.environ.get("TEST_KILLS", "50"))
PER_ROUND = 2


class Connector:
    """A process that runs attempts, and is started again when it was killed."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            argv = [sys.executable, "-m", "tests.fixtures.slurm_connector", str(self._folder)]
            argv += [str(self._cluster.bin_dir), str(self._cluster.work_dir)]
            with (self._folder / "connector.log").open("ab") as log:
                self._process = subprocess.Popen(argv, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def observed(self) -> dict[str, AttemptObservation]:
        path = self._folder / "observed.json"
        if not path.exists():
            return {}
        return msgspec.json.decode(path.read_bytes(), type=dict[str, AttemptObservation])


@contextmanager
def connector_of(cluster: SlurmCluster, folder: Path) -> Iterator[Connector]:
    connector = Connector(cluster, folder)
    try:
        yield connector
    finally:
        connector.kill()
        cluster.clear()


@pytest.mark.nightly
@pytest.mark.needs_slurm
@pytest.mark.timeout(600)
def test_nothing_runs_twice_and_nothing_is_lost(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    dice = random.Random(7)  # noqa: S311 - the same kills each time
    specs: list[AttemptSpec] = []
    with connector_of(slurm_cluster, tmp_path) as connector:
        for number in range(ROUNDS):
            specs += [spec_of(tmp_path, dice.uniform(0, 2)) for _ in range(PER_ROUND)]
            desired = DesiredState(generation=number, attempts=specs)
            victim = dice.choice(["connector", "connector", "submission", "slurmctld", *NODES])
            if victim == "submission":
                (tmp_path / "die").touch()
            replace_file(tmp_path / "desired.json", msgspec.json.encode(desired))
            connector.ensure()
            time.sleep(dice.uniform(0.3, 2.0))
            if victim == "connector":
                connector.kill()
            elif victim != "submission":
                slurm_cluster.kill(victim)
                slurm_cluster.start(victim)
        slurm_cluster.until_answering()

        def have_ended() -> bool:
            connector.ensure()
            observed = connector.observed()
            return all(
                spec.attempt_id in observed and observed[spec.attempt_id].state.is_final
                for spec in specs
            )

        eventually(have_ended, within_seconds=200, every_seconds=1, what="all attempts to end")
        observed = connector.observed()
    runs = Counter((tmp_path / "runs").read_text().split())
    assert max(runs.values()) == 1
    ends = Counter((seen.state.value, seen.reason) for seen in observed.values())
    logging.getLogger(__name__).warning("%d attempts, %d kills: %s", len(specs), ROUNDS, ends)
    for attempt_id, seen in observed.items():
        if seen.state is ObservedState.SUCCEEDED:
            assert runs[attempt_id] == 1
        else:
            assert seen.reason == "node_failed", seen


def spec_of(folder: Path, seconds: float) -> AttemptSpec:
    attempt_id = new_id()
    return AttemptSpec(
        attempt_id=attempt_id,
        job_id="job",
        name="killed",
        image="",
        command=["/bin/sh", "-c", f"echo {attempt_id} >> {folder}/runs; sleep {seconds:.2f}"],
        memory_bytes=64 * 2**20,
    )
