"""Jobs on a cluster over the portal's real API; the connector is an agent that tells what it likes.

From the submission to the end: queued by the cluster, started on a node, preempted, started again,
ended, and charged for the time on the nodes only.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest
import requests
from sqlalchemy import select

from core.clock import to_ns, utc_now
from core.db import create_database_engine, create_session_factory
from protocol.clusters import ClusterNode, node_gpu_uuid
from tenants.models import Appliance
from tests.cast import make_appliance
from tests.deployment import Deployment, make_deployment, serving
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import Portal
from tests.unit.jobqueue.builders import GIB, inventory
from tests.unit.jobqueue.cluster_builders import full, node, report

pytestmark = pytest.mark.timeout(300)

# How long attempts run, and one waits: far above the tolerance of the charge.
STEP_SECONDS = 0.5


class Connector:
    """The agent of a cluster, driven by hand."""

    def __init__(self, deployment: Deployment) -> None:
        self.url = deployment.url
        self.session = requests.Session()
        self.nodes = [full("n1"), full("n2")]
        body = {"token": deployment.enrollment_secret("acme"), "name": "slurm-a"}
        reply = self.post("enroll", {**body, "inventory": self.inventory()})
        self.session.headers["Authorization"] = f"Bearer {reply.json()['agent_token']}"
        self.tell()

    def inventory(self) -> dict[str, Any]:
        cluster = msgspec.to_builtins(report(*self.nodes))
        return inventory("login", gpus=0, executors=["slurm"], cluster=cluster)

    def tell(self, *nodes: ClusterNode) -> None:
        """Send a heartbeat with these nodes, by default those of the last one."""
        self.nodes = list(nodes) or self.nodes
        beat = {"agent_version": "1", "inventory": self.inventory()}
        self.post("heartbeat", {**beat, "sent_at_ns": to_ns(utc_now())})

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        """Wait until the agent shall run an attempt of a job; return all its attempts."""

        def specs() -> list[dict[str, Any]]:
            self.tell()
            query = {"generation": -1, "wait_seconds": 0}
            desired = self.session.get(f"{self.url}/agent/v1/desired", params=query, timeout=60)
            return [spec for spec in desired.json()["attempts"] if spec["job_id"] == job_id]

        return eventually(specs, every_seconds=0.5, what="an attempt")

    def observe(self, attempt_id: str, state: str, **changes: Any) -> None:  # noqa: ANN401
        seen = {"attempt_id": attempt_id, "state": state, **changes}
        self.post("observed", {"attempts": [seen]})

    def post(self, path: str, body: dict[str, Any]) -> requests.Response:
        reply = self.session.post(f"{self.url}/agent/v1/{path}", json=body, timeout=60)
        assert reply.ok, reply.text
        return reply


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    with serving(deployment):
        yield deployment


def node_row(deployment: Deployment, hostname: str) -> str:
    """Return the id of a node's row, which is there once its connector has reported it."""
    engine = create_database_engine(deployment.environ()["DATABASE_URL"])
    with create_session_factory(engine).begin() as session:
        connector = session.scalars(select(Appliance).where(Appliance.name == "slurm-a")).one()
        named = Appliance.inventory["hostname"].as_string() == hostname
        row = session.scalars(
            select(Appliance).where(Appliance.connector_id == connector.id, named)
        ).first()
        if row is None:
            row = make_appliance(
                session,
                connector.tenant,
                f"{hostname}.slurm-a",
                inventory=inventory(hostname, gpus=[]),
            )
            row.connector_id = connector.id
        ident = row.id
    engine.dispose()
    return ident


def test_a_job_runs_on_a_cluster_from_its_submission_to_its_charge(deployment: Deployment) -> None:
    portal, connector = Portal(deployment), Connector(deployment)
    job_id = portal.submit(
        image="trainer:1", command=["true"], gpus=2, gpu_models=["h100"], memory_bytes=GIB
    )
    [spec] = connector.attempts(job_id)
    assert spec["gpu_uuids"] == ["requested-0", "requested-1"]
    assert spec["gpu_models"] == ["H100"]
    assert portal.job(job_id)["message"] == "No appliance is free. slurm-a queues the job."

    first = spec["attempt_id"]
    connector.observe(first, "starting", message="Pending in Slurm: Resources")
    job = portal.job(job_id)
    assert (job["state"], job["message"]) == ("starting", "Pending in Slurm: Resources")

    node_id = node_row(deployment, "n2")
    where = {"node": "n2", "gpu_indices": [2, 3]}
    connector.observe(first, "running", **where, started_at_ns=to_ns(utc_now()))
    job = portal.wait_for_state(job_id, "running")
    uuids = [node_gpu_uuid(node_id, index) for index in (2, 3)]
    assert job["attempts"][-1]["gpu_uuids"] == uuids
    assert connector.attempts(job_id) == [spec]

    time.sleep(STEP_SECONDS)
    words = {"reason": "preempted_by_cluster", "message": "QOS high"}
    connector.observe(first, "failed", **where, **words, finished_at_ns=to_ns(utc_now()))
    job = portal.job(job_id)
    assert (job["state"], job["reason"]) == ("queued", "preempted_by_cluster")
    assert job["message"].endswith("The cluster preempted it: QOS high")
    # The report comes again, late.
    connector.observe(first, "running", **where)
    assert portal.job(job_id)["state"] == "queued"

    connector.tell(node("n1"), full("n2"))
    [spec] = connector.attempts(job_id)
    second = spec["attempt_id"]
    assert second != first
    assert portal.job(job_id)["message"] == "slurm-a was the first free appliance."
    time.sleep(STEP_SECONDS)  # in the queue of the cluster
    where = {"node": "n1", "gpu_indices": []}
    connector.observe(second, "running", **where, started_at_ns=to_ns(utc_now()))
    time.sleep(STEP_SECONDS)
    connector.observe(second, "succeeded", **where, exit_code=0, finished_at_ns=to_ns(utc_now()))
    job = portal.wait_for_state(job_id, "succeeded")

    ran = sum(
        (_at(attempt["finished_at"]) - _at(attempt["started_at"])).total_seconds()
        for attempt in job["attempts"]
    )
    assert [attempt["reason"] for attempt in job["attempts"]] == ["preempted_by_cluster", ""]
    assert ran >= 2 * STEP_SECONDS
    usage = portal.get("/gpu-usage").json()
    assert usage["sum"]["allocated_gpu_seconds"] == pytest.approx(2 * ran, abs=0.1)


def test_a_problem_of_the_cluster_is_on_the_job_in_its_own_words(deployment: Deployment) -> None:
    portal = Portal(deployment)
    refused = portal.post("/jobs", {"name": "big", "image": "trainer:1", "gpus": 16})
    assert refused.status_code == 422
    assert "The largest is slurm-a with 4 GPUs" in refused.text


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
