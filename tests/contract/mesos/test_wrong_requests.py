"""The contract servers refuse wrong requests as the real ones do: codes and bodies."""

from collections.abc import Iterator

import pytest
import requests

from tests.fixtures.docker_engine import DockerEngine
from tests.mesos.chronos import Chronos, chronos_app
from tests.mesos.cluster import Cluster
from tests.mesos.marathon import LOCKED, Marathon
from tests.mesos.marathon_api import marathon_app
from tests.mesos.metronome import Metronome, metronome_app
from tests.mesos.serving import Server
from tests.servers import free_port

pytestmark = pytest.mark.needs_docker

APP = {"id": "/never", "cmd": "true", "cpus": 1000}
GPU_APP = {"id": "g", "gpus": 1, "container": {"type": "DOCKER", "docker": {"image": "x"}}}
MESOS_DOCKER = {"image": "x", "network": "BRIDGE", "parameters": [{"key": "a", "value": "b"}]}
MESOS_APP = {"id": "m", "container": {"type": "MESOS", "docker": MESOS_DOCKER}}
RUN = {"cpus": 1, "mem": 32, "disk": 0}


@pytest.fixture(scope="module")
def urls(docker_engine: DockerEngine) -> Iterator[dict[str, str]]:
    """An empty cluster that can run nothing."""
    cluster = Cluster(docker_engine.url, cpus=0, mem=0, gpus=0)
    servers = {
        "marathon": Server(marathon_app(Marathon(cluster)), free_port()).start(),
        "chronos": Server(chronos_app(Chronos(cluster)), free_port()).start(),
        "metronome": Server(metronome_app(Metronome(cluster)), free_port()).start(),
    }
    addresses = {name: server.url for name, server in servers.items()}
    requests.post(f"{addresses['marathon']}/v2/apps", json=APP, timeout=30).raise_for_status()
    job = {"id": "kept", "run": RUN}
    requests.post(f"{addresses['metronome']}/v1/jobs", json=job, timeout=30).raise_for_status()
    url = f"{addresses['metronome']}/v1/jobs/kept/runs"
    requests.post(url, timeout=30).raise_for_status()
    yield addresses
    cluster.close()
    for server in servers.values():
        server.stop()


@pytest.mark.parametrize(
    ("request_line", "body", "status", "expected"),
    [
        ("marathon POST /v2/apps", "{", 400, '"message":"Invalid JSON"'),
        ("marathon POST /v2/apps", APP, 409, "An app with id [/never] already exists."),
        ("marathon POST /v2/apps", GPU_APP, 422, "only work with the Mesos containerizer"),
        ("marathon POST /v2/apps", MESOS_APP, 422, '"path":"/container/docker/parameters"'),
        ("marathon POST /v2/apps", {**APP, "args": ["x"], "id": "b"}, 422, "Object is not valid"),
        ("marathon POST /v2/apps", {**APP, "id": "/Upper"}, 422, '"path":"/id"'),
        ("marathon POST /v2/apps", {**APP, "id": "f", "gpus": 0.5}, 422, '"path":"/gpus"'),
        ("marathon PUT /v2/apps/never", {"instances": 2}, 409, LOCKED),
        ("marathon PUT /v2/apps/never", {"instances": 2}, 409, '"deployments":[{"id":'),
        ("marathon GET /v2/apps/x/y", None, 404, "App '/x/y' does not exist"),
        ("marathon GET /v2/events", None, 405, ""),
        ("marathon DELETE /v2/deployments/x", None, 404, "does not exist"),
        ("chronos DELETE /v1/scheduler/job/x", None, 400, "Job 'x' not found"),
        ("chronos PUT /v1/scheduler/job/x", None, 400, "Job 'x' not found"),
        ("chronos DELETE /v1/scheduler/task/kill/x", None, 400, "not found"),
        ("chronos POST /v1/scheduler/iso8601", {"name": "x", "schedule": "1"}, 400, "Cannot parse"),
        ("chronos POST /v1/scheduler/iso8601", {"name": "a/b"}, 400, "name is invalid"),
        ("chronos GET /scheduler/jobs", None, 404, ""),
        ("metronome GET /v1/jobs/x", None, 404, "Job not found"),
        ("metronome POST /v1/jobs/x/runs", {}, 404, "Job not found"),
        ("metronome POST /v1/jobs/kept/runs/x/actions/stop", {}, 404, "Job Run not found"),
        ("metronome POST /v1/jobs", {"id": "kept", "run": RUN}, 409, "already exists"),
        ("metronome POST /v1/jobs", {"id": "X_", "run": {}}, 422, '"path":"/run/mem"'),
        ("metronome POST /v1/jobs", {"id": "y", "run": {**RUN, "x": 1}}, 422, "Additional"),
        ("metronome POST /v1/jobs/kept/schedules", {"id": "s", "cron": "x"}, 422, "cron"),
        ("metronome DELETE /v1/jobs/kept", None, 409, "stopCurrentJobRuns=true"),
    ],
)
def test_a_wrong_request_has_its_code_and_body(
    urls: dict[str, str], request_line: str, body: object, status: int, expected: str
) -> None:
    server, method, path = request_line.split()
    data = body if isinstance(body, str) else None
    reply = requests.request(
        method, f"{urls[server]}{path}", json=None if data else body, data=data, timeout=30
    )
    assert reply.status_code == status
    assert expected in reply.text.replace('": ', '":')


def test_a_deployment_is_rolled_back_or_ended_by_force(urls: dict[str, str]) -> None:
    url = f"{urls['marathon']}/v2/deployments"
    app = f"{urls['marathon']}/v2/apps/never"
    changed = requests.put(f"{app}?force=True", json={"instances": 2}, timeout=30).json()
    [deployment] = requests.get(url, timeout=30).json()
    assert deployment["id"] == changed["deploymentId"]
    assert deployment["currentActions"][0]["action"] == "ScaleApplication"
    rollback = requests.delete(f"{url}/{deployment['id']}", timeout=30)
    assert rollback.status_code == 200
    assert requests.get(app, timeout=30).json()["app"]["instances"] == 1
    forced = requests.delete(f"{url}/{rollback.json()['deploymentId']}?force=true", timeout=30)
    assert (forced.status_code, forced.text) == (202, "")
    [item] = requests.get(f"{urls['marathon']}/v2/queue", timeout=30).json()["queue"]
    declined = item["processedOffersSummary"]["rejectSummaryLastOffers"]
    assert (
        next(reason for reason in declined if reason["reason"] == "InsufficientCpus")["declined"]
        > 0
    )
