"""Nothing runs twice and nothing is lost, whatever is killed: portal, connector or Slurm."""

import contextlib
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures.slurm import NODES, SlurmCluster
from tests.integration.cluster_kills import Kills
from tests.integration.cluster_site import cluster_site


@pytest.mark.nightly
@pytest.mark.needs_slurm
@pytest.mark.timeout(1500)
def test_nothing_runs_twice_and_nothing_is_lost(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    def kill(daemon: str) -> None:
        slurm_cluster.kill(daemon)
        slurm_cluster.start(daemon)

    def repair() -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # the controller starts
            slurm_cluster.resume()

    with cluster_site(
        tmp_path / "site", slurm_cluster, module="tests.fixtures.killed_connector"
    ) as site:
        kills = Kills(site, tmp_path / "shown")
        kills.run({daemon: partial(kill, daemon) for daemon in ("slurmctld", *NODES)}, repair)
        slurm_cluster.until_idle()
        # Of a job that it launched twice, Slurm says that its own user has cancelled it.
        ended = kills.check("node_failed", "executor_error")
    # Also a job whose end Slurm does not know is not run again: it left its exit code.
    assert len(ended) == len(set(ended))
