"""A stop that meets a launch: its end is not reported while the container may still start."""

from pathlib import Path
from threading import Event

import msgspec
from docker.errors import APIError

from core.clock import utc_now
from jobqueue.executors.docker.launch import Launches
from jobqueue.executors.docker.logs import LogSpool
from jobqueue.executors.docker.mapping import observe_container
from jobqueue.executors.docker.storage import DockerStorage
from jobqueue.executors.registry_token import CurrentRegistryToken
from protocol.attempts import AttemptSpec, ObservedState, RegistryToken, StopReason

SPEC = AttemptSpec(attempt_id="a-1", job_id="j-1", name="train", image="busybox")


class SlowEngine:
    """An engine whose start of a container, or its answer about an image, waits for the test."""

    def __init__(self, waits_in: str) -> None:
        self.reached, self.goes_on = Event(), Event()
        self.was_started = False
        self.labels: dict[str, str] = {}
        self._waits_in = waits_in
        self.images = self.containers = self
        self.id = "sha256:1"

    def info(self) -> dict[str, list[str]]:
        self._wait("info")
        return {"SecurityOptions": ["name=seccomp,profile=builtin"]}

    def get(self, _name: str) -> "SlowEngine":
        return self

    def create(self, *, labels: dict[str, str], **_options: object) -> "SlowEngine":
        self.labels = labels
        return self

    def start(self) -> None:
        self._wait("start")
        self.was_started = True
        raise APIError("The test is over.")

    def remove(self, **_options: object) -> None:
        pass

    def _wait(self, where: str) -> None:
        if where == self._waits_in:
            self.reached.set()
            assert self.goes_on.wait(30)


def launches_of(
    engine: SlowEngine,
    folder: Path,
    images: str = "images.json",
    tokens: CurrentRegistryToken | None = None,
) -> Launches:
    return Launches(
        lambda: engine,
        DockerStorage(lambda: engine, folder / images, utc_now),
        LogSpool(folder, limit_bytes=1000),
        owner="dgx-01",
        registry_token=tokens or CurrentRegistryToken(),
        pids_limit=10,
        clock=utc_now,
    )


def test_it_is_not_over_while_its_container_starts(tmp_path: Path) -> None:
    engine = SlowEngine("start")
    launches = launches_of(engine, tmp_path)
    launches.begin(SPEC)
    assert engine.reached.wait(30)
    launches.cancel(SPEC.attempt_id, StopReason.USER)
    seen = launches.observe()[SPEC.attempt_id]
    engine.goes_on.set()
    assert seen.state is ObservedState.STARTING


def test_it_is_over_before_its_container_is_created(tmp_path: Path) -> None:
    engine = SlowEngine("info")
    launches = launches_of(engine, tmp_path)
    launches.begin(SPEC)
    assert engine.reached.wait(30)
    launches.cancel(SPEC.attempt_id, StopReason.USER)
    seen = launches.observe()[SPEC.attempt_id]
    engine.goes_on.set()
    assert seen.state is ObservedState.STOPPED
    assert not engine.was_started


def test_it_goes_on_while_the_disk_of_the_agent_can_not_be_written(tmp_path: Path) -> None:
    engine = SlowEngine("start")
    (tmp_path / "file").touch()
    launches = launches_of(engine, tmp_path, "file/images.json")
    launches.begin(SPEC)
    assert engine.reached.wait(30)
    engine.goes_on.set()


class StoredEngine(SlowEngine):
    """An engine that has the image already, and notes with which credentials it is pulled."""

    def __init__(self) -> None:
        super().__init__("start")
        self.pulls: list[object] = []
        self.api = self

    def pull(self, _name: str, *, auth_config: object, **_options: object) -> list[object]:
        self.pulls.append(auth_config)
        return []


def pulls_of(folder: Path, spec: AttemptSpec, *specs: AttemptSpec) -> list[object]:
    """Return the credentials of the pulls of an attempt, on an appliance with a token."""
    engine = StoredEngine()
    tokens = CurrentRegistryToken()
    tokens.set(RegistryToken(host="registry.example", token="provider"), [spec, *specs])
    launches = launches_of(engine, folder, tokens=tokens)
    launches.begin(spec)
    assert engine.reached.wait(30)
    engine.goes_on.set()
    return engine.pulls


def test_a_stored_image_is_not_pulled_again(tmp_path: Path) -> None:
    assert pulls_of(tmp_path, SPEC) == []


def test_a_rented_attempt_pulls_a_stored_image_by_its_own_token_alone(tmp_path: Path) -> None:
    rented = msgspec.structs.replace(SPEC, always_pulls=True, image="registry.example/globex/a:1")
    token = RegistryToken(host="registry.example", token="customer")
    allowed = msgspec.structs.replace(rented, registry=token)
    other = msgspec.structs.replace(allowed, attempt_id="a-2")
    assert pulls_of(tmp_path, allowed) == [{"registrytoken": "customer"}]
    assert pulls_of(tmp_path, rented, other) == [{}]  # neither the provider's nor another's
    public = msgspec.structs.replace(allowed, image="python:3.13")
    assert pulls_of(tmp_path, public) == [{}]


def test_the_times_of_a_pull_are_reported_and_stay_with_the_container(tmp_path: Path) -> None:
    engine = StoredEngine()
    launches = launches_of(engine, tmp_path)
    launches.begin(msgspec.structs.replace(SPEC, always_pulls=True))
    assert engine.reached.wait(30)
    seen = launches.observe()[SPEC.attempt_id]
    engine.goes_on.set()
    assert seen.pull_began_at_ns is not None
    assert seen.pull_ended_at_ns is not None
    assert seen.pull_began_at_ns <= seen.pull_ended_at_ns
    container = {"State": {"Status": "created"}, "Config": {"Labels": engine.labels}}
    later = observe_container(SPEC.attempt_id, container, stop_reason=None)
    assert later == msgspec.structs.replace(seen, message=later.message)
