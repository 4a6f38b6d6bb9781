"""Redis as commands see it: a wrong URL, `vedette server check`, and telling running servers."""

import dataclasses
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from core.broker import join_changes, open_broker
from core.changes import ANY, Topic
from core.db import changes_of, create_session_factory
from core.errors import ConfigurationError
from core.settings import load_server_settings
from tests.deployment import Deployment, make_deployment
from tests.fixtures.polling import eventually
from tests.fixtures.redis import RedisServer, redis_server


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return make_deployment(tmp_path)


def test_a_wrong_url_is_an_error_of_the_configuration_without_its_password() -> None:
    environ = {"VEDETTE_CONFIG": "", "VEDETTE_REDIS_URL": "redis://user:geheim@host:port"}
    with pytest.raises(ConfigurationError, match=r"redis_url is not a URL: its port must") as error:
        load_server_settings(environ)
    assert "geheim" not in str(error.value)


def test_the_check_of_a_server_says_that_there_is_no_broker(deployment: Deployment) -> None:
    checked = deployment.vedette("server", "check")
    assert "✓ broker: not configured" in checked.stdout


@pytest.mark.needs_redis
def test_the_check_of_a_server_names_the_broker(deployment: Deployment, tmp_path: Path) -> None:
    password = ["--requirepass", "geheim"]
    with redis_server(tmp_path / "redis", options=password) as server:
        url = server.url.replace("//", "//:geheim@")
        checked = deployment.vedette("server", "check", environ={"VEDETTE_REDIS_URL": url})
        assert f"✓ broker: {server.url}\n" in checked.stdout
        wrong = deployment.vedette("server", "check", environ={"VEDETTE_REDIS_URL": server.url})
        assert f"! broker: {server.url}\n" in wrong.stdout
        assert "Authentication required" in wrong.stdout
        assert "correct VEDETTE_REDIS_URL" in wrong.stdout
    assert "geheim" not in checked.stdout + wrong.stdout


@pytest.mark.needs_redis
def test_a_command_tells_running_servers_of_what_it_changes(
    deployment: Deployment, tmp_path: Path
) -> None:
    told: list[tuple[Topic, set[str]]] = []

    def note(topic: Topic, idents: Collection[str]) -> None:
        told.append((topic, set(idents)))

    with redis_server(tmp_path / "redis") as server:
        settings = dataclasses.replace(deployment.settings, redis_url=server.url)
        bus = changes_of(create_session_factory(create_engine("sqlite://")))
        with open_broker(settings, wait_seconds=10) as broker:
            join_changes(broker, bus)
            for topic in Topic:
                bus.listen(topic, partial(note, topic))
            suspended = deployment.vedette(
                "tenant", "suspend", "acme", environ={"VEDETTE_REDIS_URL": server.url}
            )
            assert suspended.returncode == 0, suspended.stderr
            eventually(lambda: len(told) == 2, what="the changes")
    assert sorted(told) == [(Topic.DESIRED, {ANY}), (Topic.REGISTRY, {ANY})]


@pytest.mark.needs_redis
def test_a_command_works_without_redis(deployment: Deployment, tmp_path: Path) -> None:
    url = RedisServer(tmp_path).url
    suspended = deployment.vedette("tenant", "suspend", "acme", environ={"VEDETTE_REDIS_URL": url})
    assert suspended.returncode == 0, suspended.stderr
