"""Nothing runs twice and nothing is lost, whatever is killed: portal, connector or Ray."""

import contextlib
import random
from pathlib import Path

import psutil
import pytest

from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import ENDS_WITH_HEAD, ray_cluster
from tests.integration.cluster_kills import Kills
from tests.integration.cluster_site import cluster_site

SUPERVISOR = "ray::JobSupervisor"


@pytest.mark.nightly
@pytest.mark.needs_ray
@pytest.mark.timeout(1500)
def test_nothing_runs_twice_and_nothing_is_lost(tmp_path: Path) -> None:
    with ray_cluster(ENDS_WITH_HEAD) as cluster:

        def kill_head() -> None:
            cluster.kill_head()
            cluster.start()

        def kill_supervisor() -> None:
            if processes := cluster.processes(SUPERVISOR):
                with contextlib.suppress(psutil.NoSuchProcess):
                    random.choice(processes).kill()  # noqa: S311 - not for security

        cluster.start()
        with cluster_site(
            tmp_path / "site", cluster, module="tests.fixtures.killed_connector"
        ) as site:
            kills = Kills(site, tmp_path / "shown")
            kills.run({"head": kill_head, "supervisor": kill_supervisor})
            eventually(lambda: not cluster.processes(SUPERVISOR), what="the last job")
            kills.check("node_failed")
