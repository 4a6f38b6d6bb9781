"""The private registry with a real registry and a real engine: who may push and pull what."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError
from sqlalchemy import select

from cli.registry import EMPTY_FOR, REPOSITORIES, collect_garbage
from core.clock import utc_now
from core.db import SessionFactory
from core.ids import new_id
from jobqueue.executors.docker.executor import DockerExecutor
from jobqueue.executors.registry_token import CurrentRegistryToken
from jobqueue.images.catalog import sync
from jobqueue.images.models import Image
from jobqueue.images.registry import Registry
from jobqueue.images.tokens import RegistryTokens
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, RegistryToken
from scheduler.loops import Scheduler
from tenants.lifecycle.removal import request_removal, set_tenant_state
from tenants.lifecycle.removal_worker import SETTLE
from tenants.models import RemovalState, TenantRemoval, TenantState
from tenants.users.tokens import TokenLimits, create_api_token, revoke_api_token
from tests.cast import PASSWORD, Cast, scope_of
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from tests.fixtures.private_registry import PrivateRegistry, private_registry
from timeseries.store import Store

__all__ = ["private_registry"]

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]


class Client:
    """A Docker client whose user is signed in to the registry."""

    def __init__(self, engine: DockerEngine, host: str, username: str, password: str) -> None:
        self._client = docker.DockerClient(base_url=engine.url)
        self._engine, self._host = engine, host
        self._auth = {"username": username, "password": password}

    def login(self) -> None:
        """Sign in as `docker login` does; raises `APIError`."""
        self._client.login(**self._auth, registry=self._host, reauth=True)

    def push(self, name: str, tag: str = "1", *, labels: dict[str, str] | None = None) -> str:
        """Push the engine's image under a name, with labels if given; return the error."""
        image = self._client.images.get(self._engine.image)
        if labels:
            container = self._client.containers.create(image, ["true"], labels=labels)
            image = container.commit()
            container.remove()
        image.tag(f"{self._host}/{name}", tag=tag)
        lines = self._client.images.push(
            f"{self._host}/{name}", tag=tag, auth_config=self._auth, stream=True, decode=True
        )
        errors = [line["error"] for line in lines if "error" in line]
        self._client.images.remove(f"{self._host}/{name}:{tag}")
        return " ".join(errors)

    def pull(self, name: str) -> str:
        """Pull an image, and remove it again; return the error."""
        try:
            self._client.images.pull(f"{self._host}/{name}", tag="1", auth_config=self._auth)
        except APIError as error:
            return str(error)
        self._client.images.remove(f"{self._host}/{name}:1")
        return ""

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def clients(
    docker_engine: DockerEngine, private_registry: PrivateRegistry, cast: Cast
) -> Iterator[dict[str, Client]]:
    made = {
        user.email.partition("@")[0]: Client(
            docker_engine, private_registry.host, user.email, PASSWORD
        )
        for user in (cast.bob, cast.charlie, cast.olivia)
    }
    yield made
    for client in made.values():
        client.close()


def rows(sessions: SessionFactory) -> list[tuple[str, str, str | None]]:
    with sessions() as session:
        images = session.scalars(select(Image).order_by(Image.repository, Image.tag)).all()
        return [(image.repository, image.tag, image.tenant_id) for image in images]


def test_each_tenant_has_its_own_names_and_all_may_pull_shared_ones(
    clients: dict[str, Client], sessions: SessionFactory, cast: Cast
) -> None:
    for client in clients.values():
        client.login()
    assert clients["bob"].push("acme/train") == ""
    assert clients["olivia"].push("base/busybox") == ""
    eventually(
        lambda: rows(sessions) == [("acme/train", "1", cast.acme.id), ("base/busybox", "1", None)],
        what="pushed images to be listed",
    )
    with sessions() as session:
        image = session.scalars(select(Image).where(Image.repository == "acme/train")).one()
    assert image.digest.startswith("sha256:")
    assert image.size_bytes > sum(layer["size_bytes"] for layer in image.layers) > 100_000
    assert image.pushed_by == "bob@acme.example"

    assert clients["bob"].pull("acme/train") == ""
    assert clients["bob"].pull("base/busybox") == clients["charlie"].pull("base/busybox") == ""
    assert "denied" in clients["charlie"].push("acme/train", tag="2")
    assert "denied" in clients["charlie"].pull("acme/train")
    assert "denied" in clients["bob"].push("base/busybox", tag="2")
    assert "denied" in clients["olivia"].pull("acme/train")
    assert len(rows(sessions)) == 2


def test_api_tokens_do_what_their_scopes_allow_until_they_are_revoked(
    *,
    docker_engine: DockerEngine,
    private_registry: PrivateRegistry,
    sessions: SessionFactory,
    cast: Cast,
) -> None:
    scope = scope_of(cast.bob)
    with sessions.begin() as session:
        token, secret = create_api_token(session, scope, name="ci", now=utc_now())
        limits = TokenLimits(scopes=("read",))
        _, reading = create_api_token(session, scope, name="ro", limits=limits, now=utc_now())
    writer = Client(docker_engine, private_registry.host, "token", secret)
    reader = Client(docker_engine, private_registry.host, "token", reading)
    wrong = Client(docker_engine, private_registry.host, cast.bob.email, "not the password")
    try:
        assert writer.push("acme/train") == ""
        assert "denied" in reader.push("acme/train", tag="2")
        assert reader.pull("acme/train") == ""
        with sessions.begin() as session:
            revoke_api_token(session, scope, token.id, now=utc_now())
        assert "unauthorized" in writer.pull("acme/train").lower()
        for client in (writer, wrong):
            with pytest.raises(APIError, match=r"(?i)unauthorized"):
                client.login()
    finally:
        for client in (writer, reader, wrong):
            client.close()


def test_an_appliance_pulls_with_a_token_for_the_images_of_its_attempts(
    *,
    clients: dict[str, Client],
    docker_engine: DockerEngine,
    private_registry: PrivateRegistry,
    tmp_path: Path,
) -> None:
    assert clients["bob"].push("acme/train") == clients["bob"].push("acme/other") == ""
    tokens = RegistryTokens(private_registry.settings)
    image = f"{private_registry.host}/acme/train:1"
    foreign = tokens.pull_token("globex", [image], now=utc_now())
    assert foreign is None  # another tenant's name in a job gives nothing
    signed = tokens.pull_token("acme", [image, "busybox:1"], now=utc_now())
    assert signed is not None
    current = CurrentRegistryToken()
    current.set(RegistryToken(host=private_registry.host, token=signed))
    executor = DockerExecutor(
        owner="dgx-01", spool_dir=tmp_path / "spool", url=docker_engine.url, registry_token=current
    )
    try:
        allowed = ended(executor, image)
        assert (allowed.state, allowed.reason) == (ObservedState.SUCCEEDED, "")
        refused = ended(executor, f"{private_registry.host}/acme/other:1")
        assert refused.state is ObservedState.FAILED
        assert signed not in refused.message
    finally:
        for seen in executor.observe():
            executor.remove(seen.attempt_id)
        executor.close()


def test_a_deleted_image_is_gone_and_its_space_is_freed(
    *,
    clients: dict[str, Client],
    private_registry: PrivateRegistry,
    sessions: SessionFactory,
    cast: Cast,
) -> None:
    assert clients["bob"].push("acme/train") == clients["bob"].push("acme/train", tag="v2") == ""
    eventually(lambda: len(rows(sessions)) == 2, what="both tags")
    with sessions.begin() as session:
        image_id = session.scalars(select(Image.id)).first()
        _, secret = create_api_token(session, scope_of(cast.bob), name="api", now=utc_now())
        _, foreign = create_api_token(session, scope_of(cast.charlie), name="api", now=utc_now())

    api = private_registry.app.test_client()

    def call(method: str, path: str, by: str) -> Any:  # noqa: ANN401 - a response
        return api.open(f"/api/v1{path}", method=method, headers={"Authorization": f"Bearer {by}"})

    assert call("DELETE", f"/images/{image_id}", foreign).status_code == 404
    assert call("GET", "/images", foreign).get_json()["total"] == 0
    shown = call("GET", "/images?sort=tag", secret).get_json()["items"]
    assert [image["reference"] for image in shown] == [
        f"{private_registry.host}/acme/train:{tag}" for tag in ("1", "v2")
    ]
    assert call("DELETE", f"/images/{image_id}", secret).status_code == 204
    assert rows(sessions) == []
    assert clients["bob"].pull("acme/train") != ""

    blobs = private_registry.config.parent / "data"
    before = sum(path.stat().st_size for path in blobs.rglob("data") if path.is_file())
    collect_garbage(private_registry.program, private_registry.config, now=utc_now())
    after = sum(path.stat().st_size for path in blobs.rglob("data") if path.is_file())
    assert after == 0 < before


def test_a_removed_tenant_leaves_no_image_behind(
    *,
    clients: dict[str, Client],
    private_registry: PrivateRegistry,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
) -> None:
    assert clients["bob"].push("acme/train", labels={"run": "1"}) == ""
    assert clients["bob"].push("acme/train") == ""  # the manifest before has no tag now
    assert clients["bob"].push("acme/deep/er", tag="v2") == ""
    assert clients["charlie"].push("globex/own") == ""
    eventually(lambda: len(rows(sessions)) == 3, what="pushed images to be listed")
    operator = scope_of(cast.olivia)
    with sessions.begin() as session:
        set_tenant_state(session, operator, cast.acme.id, TenantState.CLOSED, now=utc_now())
        request_removal(
            session, operator, cast.acme.id, name="Acme", by="olivia", now=utc_now() - SETTLE
        )
    settings = private_registry.settings
    Scheduler(settings, sessions=sessions, store=store).tasks["remove_tenants"].run()
    with sessions() as session:
        assert session.scalars(select(TenantRemoval.state)).all() == [RemovalState.REMOVED]
    assert rows(sessions) == [("globex/own", "1", cast.globex.id)]
    registry = Registry(settings, RegistryTokens(settings), utc_now)
    assert [list(registry.tags(repository)) for repository in registry.repositories()] == [
        [],
        [],
        ["1"],
    ]

    data = private_registry.config.parent / "data"
    later = utc_now() + EMPTY_FOR + timedelta(minutes=1)
    collect_garbage(private_registry.program, private_registry.config, now=later)
    assert list(registry.repositories()) == ["globex/own"]
    assert not (data / REPOSITORIES / "acme").exists()
    with sessions() as session:
        image = session.scalars(select(Image)).one()
    blobs = {path.parent.name for path in data.rglob("blobs/**/data")}
    layers = {layer["digest"].partition(":")[2] for layer in image.layers}
    assert len(blobs) == 1 + 1 + len(layers)  # its manifest, its configuration, its layers
    assert layers < blobs
    assert clients["charlie"].pull("globex/own") == ""


def test_what_notifications_missed_is_found_by_a_comparison(
    *, clients: dict[str, Client], private_registry: PrivateRegistry, sessions: SessionFactory
) -> None:
    assert clients["bob"].push("acme/train") == ""
    eventually(lambda: len(rows(sessions)) == 1, what="the notification")
    with sessions.begin() as session:
        session.scalars(select(Image)).one().tag = "renamed"
    tokens = RegistryTokens(private_registry.settings)
    registry = Registry(private_registry.settings, tokens, utc_now)
    compare = {"shared_namespace": "base", "now": utc_now()}
    assert sync(sessions, registry, **compare) == 2  # type: ignore[arg-type] # both of a kind
    assert [tag for _, tag, _ in rows(sessions)] == ["1"]
    assert sync(sessions, registry, **compare) == 0  # type: ignore[arg-type]


def ended(executor: DockerExecutor, image: str) -> AttemptObservation:
    """Run an image, and return how it ended."""
    spec = AttemptSpec(
        attempt_id=new_id(),
        job_id="job-1",
        name="test",
        image=image,
        command=["true"],
        memory_bytes=64 * 2**20,
    )
    executor.start(spec)

    def probe() -> AttemptObservation | None:
        observations = {seen.attempt_id: seen for seen in executor.observe()}
        seen = observations.get(spec.attempt_id)
        return seen if seen is not None and seen.state.is_final else None

    seen = eventually(probe, within_seconds=60)
    assert seen is not None
    return seen
