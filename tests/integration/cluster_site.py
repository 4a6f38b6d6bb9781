"""A portal and the connector of a cluster, each a process of its own that can be killed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.deployment import BOB, Deployment, agent_of, api_token, make_deployment, serving
from tests.fixtures.in_process import Result
from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import RayCluster
from tests.fixtures.slurm import SlurmCluster
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll

READY_SECONDS = 60
# After a head of Ray was killed, its jobs can't run this long.
LOST_SECONDS = 4


class ClusterSite:
    """A portal and a connector.

    Attributes:
        portal: Bob's view of it.
    """

    def __init__(self, deployment: Deployment, toml: str, stack: ExitStack, module: str) -> None:
        self.deployment = deployment
        self._toml, self._stack, self._module = toml, stack, module
        self._home = deployment.data_dir / "agent"
        self.start_portal()
        enroll(deployment, self._home, "connector")
        self.start_connector()
        self.portal = Portal(deployment)
        eventually(self.nodes, within_seconds=READY_SECONDS, what="the nodes of the cluster")

    def start_portal(self, *, is_awaited: bool = True) -> None:
        """Start it, with agent API and scheduler in its process."""
        self._server = self._stack.enter_context(serving(self.deployment, is_awaited=is_awaited))

    def kill_portal(self) -> None:
        """Kill it with SIGKILL."""
        self._server.kill()
        self._server.wait()

    def start_connector(self) -> None:
        """Start the agent."""
        self._agent = self._stack.enter_context(
            agent_of(self.deployment, home=self._home, toml=self._toml, module=self._module)
        )

    def kill_connector(self) -> None:
        """Kill it with SIGKILL."""
        self._agent.kill()
        self._agent.wait()

    def order_death(self) -> None:
        """Let the connector die after its next submission, see `killed_connector`."""
        (self._home / "die").touch()

    def await_death(self) -> None:
        """Wait until it has died."""
        eventually(lambda: self._agent.poll() is not None, what="the connector to submit a job")

    def run_followed(self, script: str, *options: str) -> Result:
        """Run a script with the command line as Bob, and follow its log until it ends."""
        token = api_token(self.deployment, BOB)
        command = ("--memory", "64MiB", *options, "--", "/bin/sh", "-c", script)
        return self.deployment.vedette(
            *("job", "run", "--follow", *command),
            environ={"VEDETTE_URL": self.deployment.url, "VEDETTE_TOKEN": token},
        )

    def submit(self, script: str, **changes: object) -> str:
        """Submit a script by REST."""
        command = ["/bin/sh", "-c", script]
        fields = {"image": "", "command": command, "memory_bytes": 64 * 2**20, **changes}
        return self.portal.submit(**fields)

    def stop(self, *job_ids: str) -> None:
        """Stop jobs as Bob, and wait until they have."""
        for job_id in job_ids:
            assert self.portal.post(f"/jobs/{job_id}/stop").ok
        for job_id in job_ids:
            assert self.portal.wait_for_state(job_id, *FINAL)["reason"] == "stopped_by_user"

    def attempt(self, name: str) -> dict[str, Any]:
        """Return the only attempt of the job with this name."""
        [item] = self.portal.get("/jobs", search=name).json()["items"]
        [attempt] = self.portal.job(item["id"])["attempts"]
        return dict(attempt)

    def until_message(self, job_id: str, text: str) -> None:
        """Wait until a job says something."""

        def says_so() -> bool:
            return text in self.portal.job(job_id)["message"]

        eventually(says_so, within_seconds=40, what=f"the job to say {text!r}")

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes of the cluster by name."""
        items = self.portal.get("/appliances").json()["items"]
        return {item["name"]: item for item in items if item["connector"] is not None}


@contextmanager
def cluster_site(
    folder: Path, cluster: SlurmCluster | RayCluster, *, module: str = "cli.main"
) -> Iterator[ClusterSite]:
    """Run a portal and a connector of a cluster; `module` is run as the connector's command."""
    if isinstance(cluster, SlurmCluster):
        folders = f'bin_dir = "{cluster.bin_dir}"\nwork_dir = "{cluster.work_dir}"\n'
        toml = f'{QUICK}executor = "slurm"\n[slurm]\n{folders}'
    else:
        table = f'url = "{cluster.url}"\nlost_seconds = {LOST_SECONDS}\n'
        toml = f'{QUICK}executor = "ray"\n[ray]\n{table}'
    with ExitStack() as stack:
        yield ClusterSite(make_deployment(folder), toml, stack, module)
