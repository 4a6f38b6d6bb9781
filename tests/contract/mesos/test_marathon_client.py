"""The contract server answers what the `marathon` package asks of a Marathon."""

from collections.abc import Iterator

import pytest
from marathon.models import MarathonApp, MarathonGroup

from jobqueue.executors.base import ConflictError, NotFoundError
from jobqueue.executors.mesos.marathon_client import Marathon as Client
from jobqueue.executors.settings import ServerSettings
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from tests.mesos.cluster import Cluster
from tests.mesos.marathon import Marathon
from tests.mesos.marathon_api import marathon_app
from tests.mesos.serving import Server
from tests.servers import free_port

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]

Service = dict[str, object]


@pytest.fixture
def service(docker_engine: DockerEngine) -> Service:
    """An app without an id that runs until it is killed."""
    container = {"type": "DOCKER", "docker": {"image": docker_engine.image}}
    return {"cmd": "exec sleep 600", "cpus": 0.1, "mem": 32, "container": container}


@pytest.fixture
def client(docker_engine: DockerEngine) -> Iterator[Client]:
    """The client of a Marathon with room for a few tasks."""
    cluster = Cluster(docker_engine.url, cpus=1, mem=512, gpus=0)
    server = Server(marathon_app(Marathon(cluster)), free_port()).start()
    client = Client(ServerSettings(url=server.url))
    yield client
    client.close()
    cluster.close()
    server.stop()


def two_running(client: Client, *, but: str = "") -> list[str]:
    """The tasks of the app `web`, once two of them run and another one is gone."""

    def probe() -> list[str]:
        tasks = client.get_app("web")["tasks"]
        ids = [task["id"] for task in tasks if task["state"] == "TASK_RUNNING"]
        return ids if len(ids) == 2 and but not in ids else []

    return eventually(probe, within_seconds=60)


def test_tasks_of_an_app_are_killed_and_launched_again_or_scaled_down(
    client: Client, service: Service
) -> None:
    client.create_app("/web", MarathonApp.from_json({**service, "id": "/web", "instances": 2}))
    first = two_running(client)
    assert [task["id"] for task in client.kill_tasks("web", host="elsewhere")] == []
    killed = client.kill_task("web", first[0])
    assert killed["id"] == first[0]
    second = two_running(client, but=first[0])
    eventually(lambda: not client.list_deployments())
    assert "deploymentId" in client.kill_task("web", second[0], scale=True)
    eventually(lambda: len(client.get_app("web")["tasks"]) == 1)
    assert client.get_app("web")["instances"] == 1
    with pytest.raises(NotFoundError, match="Task 'x' does not exist"):
        client.kill_task("web", "x")
    with pytest.raises(NotFoundError, match="App '/none' does not exist"):
        client.kill_tasks("none")


def test_groups_are_created_scaled_changed_and_deleted(client: Client, service: Service) -> None:
    apps = [{**service, "id": name} for name in ("api", "/shop/web")]
    inner = {"id": "data", "apps": [{**service, "id": "db"}]}
    group = MarathonGroup.from_json({"id": "/shop", "apps": apps, "groups": [inner]})
    made = client.create_group(group)
    [deployment] = [
        listed for listed in client.list_deployments() if listed["id"] == made["deploymentId"]
    ]
    ids = ["/shop/api", "/shop/web", "/shop/data/db"]
    assert sorted(deployment["affectedApps"]) == sorted(ids)
    eventually(lambda: not client.list_deployments(), within_seconds=60)
    shown = client.get_group("/shop")
    assert [app["id"] for app in shown["apps"]] == ids[:2]
    assert [inner_group["id"] for inner_group in shown["groups"]] == ["/shop/data"]
    assert [listed["id"] for listed in client.list_groups()] == ["/shop"]
    with pytest.raises(ConflictError, match="already created"):
        client.create_group(group)
    client.scale_group("shop", 2)
    assert [client.get_app(app_id)["instances"] for app_id in ids] == [2, 2, 2]
    eventually(lambda: not client.list_deployments(), within_seconds=60)
    client.update_group("shop", MarathonGroup.from_json({"apps": apps[:1]}))
    eventually(lambda: [app["id"] for app in client.list_apps()] == ids[:1], within_seconds=60)
    client.delete_group("shop", force=True)
    eventually(lambda: not client.list_apps(), within_seconds=60)
    with pytest.raises(NotFoundError, match="Group '/shop' does not exist"):
        client.get_group("shop")


def test_apps_are_filtered_by_command_id_and_label(client: Client, service: Service) -> None:
    for number, tier in enumerate(("web", "db")):
        app = {**service, "id": f"/{tier}", "labels": {"tier": tier}, "instances": 0}
        app["cmd"] = f"sleep 60{number}"
        client.create_app(f"/{tier}", MarathonApp.from_json(app))

    def listed(**filters: str) -> list[str]:
        return [app["id"] for app in client.list_apps(**filters)]

    assert listed(cmd="SLEEP 600") == ["/web"]
    assert listed(app_id="D") == ["/db"]
    assert listed(label="tier==web") == ["/web"]
    assert listed(label="tier!=web") == ["/db"]
    assert listed(label="tier in (web, db)") == ["/web", "/db"]
    assert listed(label="tier,none") == []
