"""The containers plugin on a real Docker engine and this kernel's control groups."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import docker
import pytest

from jobqueue.executors.base import JOB_LABEL
from plugins.base import PluginContext
from plugins.containers.reader import ContainersConfig, ContainersPlugin
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from timeseries.points import Point

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BUSY = "while true; do dd if=/dev/zero of=/dev/null bs=1k count=100 2>/dev/null; done"


@pytest.fixture
def client(docker_engine: DockerEngine) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=docker_engine.url)
    yield client
    for container in client.containers.list(all=True):
        container.remove(force=True)
    client.close()


@pytest.fixture
def plugin(docker_engine: DockerEngine) -> Iterator[ContainersPlugin]:
    plugin = ContainersPlugin(ContainersConfig(), PluginContext(docker_url=docker_engine.url))
    yield plugin
    plugin.close()


def by_container(points: list[Point]) -> dict[str, Point]:
    return {point.tags.get("container", ""): point for point in points}


def test_a_running_container_is_read_with_its_job_and_limit(
    client: docker.DockerClient, docker_engine: DockerEngine, plugin: ContainersPlugin
) -> None:
    client.containers.run(
        docker_engine.image,
        ["sh", "-c", BUSY],
        detach=True,
        name="busy",
        mem_limit="64m",
        labels={JOB_LABEL: "job-1"},
    )
    client.containers.create(docker_engine.image, ["true"], name="made")
    first = by_container(list(plugin.gather(NOW)))
    assert (first[""].fields["running"], first[""].fields["created"]) == (1, 1)
    assert first["busy"].tags == {
        "container": "busy",
        "image": docker_engine.image,
        "job": "job-1",
    }
    assert first["busy"].fields["memory_limit_bytes"] == 64 * 2**20
    assert 0 < int(first["busy"].fields["memory_bytes"]) < 64 * 2**20
    assert int(first["busy"].fields["processes"]) >= 1


def test_the_cpu_that_a_container_burns_shows(
    client: docker.DockerClient, docker_engine: DockerEngine, plugin: ContainersPlugin
) -> None:
    client.containers.run(docker_engine.image, ["sh", "-c", BUSY], detach=True, name="busy")
    list(plugin.gather(NOW))
    seconds = 0

    def cpu_percent() -> float:
        nonlocal seconds
        seconds += 1
        points = by_container(list(plugin.gather(NOW + timedelta(seconds=seconds))))
        return float(points["busy"].fields["cpu_percent"])

    assert eventually(lambda: cpu_percent() > 0)


def test_a_paused_container_is_counted_as_such_and_still_read(
    client: docker.DockerClient, docker_engine: DockerEngine, plugin: ContainersPlugin
) -> None:
    container = client.containers.run(
        docker_engine.image, ["sleep", "60"], detach=True, name="paused"
    )
    container.pause()
    points = by_container(list(plugin.gather(NOW)))
    container.unpause()
    assert points[""].fields["paused"] == 1
    assert "memory_bytes" in points["paused"].fields


def test_a_removed_container_is_gone_at_the_next_list(
    client: docker.DockerClient, docker_engine: DockerEngine, plugin: ContainersPlugin
) -> None:
    container = client.containers.run(
        docker_engine.image, ["sleep", "60"], detach=True, name="short"
    )
    assert "short" in by_container(list(plugin.gather(NOW)))
    container.remove(force=True)
    assert "short" not in by_container(list(plugin.gather(NOW + timedelta(seconds=10))))
