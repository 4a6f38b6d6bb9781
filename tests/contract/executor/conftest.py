"""The executors under the contract, each with the images, kinds and times that suit it."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from core.clock import utc_now
from core.ids import new_id
from jobqueue.executors.base import Executor
from jobqueue.executors.docker.executor import DockerExecutor
from jobqueue.executors.kubernetes.executor import KubernetesExecutor
from jobqueue.executors.mesos.agent import MesosAgent
from jobqueue.executors.mesos.chronos import ChronosExecutor
from jobqueue.executors.mesos.executor import Site
from jobqueue.executors.mesos.marathon import MarathonExecutor
from jobqueue.executors.mesos.metronome import MetronomeExecutor
from jobqueue.executors.ray.executor import RayExecutor
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import RaySettings, ServerSettings
from jobqueue.executors.simulated.executor import SimulatedExecutor
from jobqueue.executors.slurm.executor import SlurmExecutor
from protocol.attempts import AttemptSpec
from tests.fixtures.empty_registry import empty_registry
from tests.fixtures.kubernetes_site import KubernetesSite, kubernetes_server, kubernetes_site
from tests.fixtures.mesos_site import HOSTNAME, MesosSite
from tests.fixtures.ray_head import RayCluster
from tests.fixtures.slurm import SlurmCluster

__all__ = ["empty_registry", "kubernetes_server", "kubernetes_site"]

MEBIBYTE = 2**20
SPEED = 10
FIRST_AT = utc_now()

DOCKER = pytest.param("docker", marks=pytest.mark.needs_docker)
MARATHON = pytest.param("marathon", marks=pytest.mark.needs_docker)
METRONOME = pytest.param("metronome", marks=pytest.mark.needs_docker)
CHRONOS = pytest.param("chronos-3", marks=pytest.mark.needs_docker)
SLURM = pytest.param("slurm", marks=pytest.mark.needs_slurm)
NIGHTLY = [
    pytest.param("chronos-2", marks=[pytest.mark.needs_docker, pytest.mark.nightly]),
    pytest.param("slurm-rest", marks=[pytest.mark.needs_slurm, pytest.mark.nightly]),
    pytest.param("ray", marks=[pytest.mark.needs_ray, pytest.mark.nightly]),
    pytest.param("kubernetes", marks=[pytest.mark.needs_java, pytest.mark.nightly]),
]
# Those that are quick by day pass the rest of the contract at night.
QUICK = ["simulated", DOCKER, METRONOME, CHRONOS, SLURM, *NIGHTLY]
BATCH = [
    "simulated",
    DOCKER,
    pytest.param("metronome", marks=[pytest.mark.needs_docker, pytest.mark.nightly]),
    pytest.param("chronos-3", marks=[pytest.mark.needs_docker, pytest.mark.nightly]),
    pytest.param("slurm", marks=[pytest.mark.needs_slurm, pytest.mark.nightly]),
    *NIGHTLY,
]
MESOS = frozenset({"marathon", "metronome", "chronos-2", "chronos-3"})
WITHOUT_ENGINE = frozenset({"simulated", "kubernetes"})


def fast_clock() -> datetime:
    """Return a time that passes faster than ours, so that simulated attempts do too."""
    return FIRST_AT + SPEED * (utc_now() - FIRST_AT)


@dataclass(frozen=True)
class Bench:
    """An executor with the words that make it run, fail and miss an image.

    `reopen` gives an executor as the next agent process would have it; `has_containers` says that
    it knows the containers of its attempts; `runs_services_only` that it has no one-time attempts;
    `runs_images` that attempts have images, and `tells_usage` what they use.
    """

    executor: Executor
    reopen: Callable[[], Executor]
    image: str
    missing_image: str
    has_containers: bool
    runs_services_only: bool
    runs_images: bool = True
    tells_usage: bool = True

    def spec(self, *, seconds: float = 0.0, exit_code: int = 0, **changes: object) -> AttemptSpec:
        """Return an attempt that says hello, takes a while and ends with a code."""
        script = f"echo hello; sleep {seconds}; exit {exit_code}"
        fields: dict[str, object] = {
            "attempt_id": new_id(),
            "job_id": new_id(),
            "name": "hello",
            "image": self.image,
            "command": ["/bin/sh", "-c", script],
            "env": {"SIM_SECONDS": str(seconds), "SIM_EXIT_CODE": str(exit_code)},
            "memory_bytes": 64 * MEBIBYTE,
            "is_service": self.runs_services_only,
        }
        return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names

    def service(self) -> AttemptSpec:
        """Return a service that would run for an hour."""
        return self.spec(seconds=3600, is_service=True)


@pytest.fixture(params=[*BATCH, MARATHON])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give each executor in turn, with attempts of a kind that it runs."""
    with open_bench(request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=BATCH)
def batch_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give each executor that runs one-time attempts."""
    with open_bench(request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=QUICK)
def quick_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give each executor that runs one-time attempts, more of them by day than the others."""
    with open_bench(request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=["simulated", DOCKER, MARATHON])
def service_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give each executor that runs services."""
    with open_bench(request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=[METRONOME, CHRONOS, MARATHON])
def one_kind_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give each executor that runs only one kind."""
    with open_bench(request, tmp_path) as opened:
        yield opened


@contextmanager
def open_bench(request: pytest.FixtureRequest, folder: Path) -> Iterator[Bench]:
    """Open the executor of the parameter; close what the test opened."""
    name, opened = request.param, list[Executor]()
    owner = new_id()
    image, missing_image = "hello:1", "missing:1"
    if name.startswith("slurm"):
        image = ""
    elif name == "ray":
        image = missing_image = ""
    elif name not in WITHOUT_ENGINE:
        image = request.getfixturevalue("docker_engine").image
        missing_image = request.getfixturevalue("empty_registry") + "/missing:1"

    def reopen() -> Executor:
        opened.append(_executor(name, request, folder, owner=owner))
        return opened[-1]

    yield Bench(
        executor=reopen(),
        reopen=reopen,
        image=image,
        missing_image=missing_image,
        has_containers=name == "docker",
        runs_services_only=name == "marathon",
        runs_images=name != "ray",
        tells_usage=name not in {"ray", "slurm-rest"},
    )
    for attempt in opened[-1].observe():
        opened[-1].remove(attempt.attempt_id)
    for executor in opened:
        executor.close()


def _executor(name: str, request: pytest.FixtureRequest, folder: Path, *, owner: str) -> Executor:
    if name == "simulated":
        return SimulatedExecutor(
            fast_clock,
            on_work=lambda *_: None,
            on_end=lambda *_: None,
            state_path=folder / "attempts.json",
        )
    if name == "docker":
        url = request.getfixturevalue("docker_engine").url
        return DockerExecutor(owner="dgx-01", spool_dir=folder / "spool", url=url)
    if name not in MESOS:
        return _connector(name, request, folder, owner=owner)
    mesos: MesosSite = request.getfixturevalue("mesos_site")
    site = Site(
        owner=owner,
        hostname=HOSTNAME,
        state_dir=folder / "mesos",
        mesos=MesosAgent(ServerSettings(url=mesos.agent_url)),
        stop_grace_seconds=1,
    )
    if name == "marathon":
        return MarathonExecutor(ServerSettings(url=mesos.marathon_url), site)
    if name == "metronome":
        return MetronomeExecutor(ServerSettings(url=mesos.metronome_url), site)
    generation = int(name.removeprefix("chronos-"))
    return ChronosExecutor(ServerSettings(url=mesos.chronos_urls[generation]), site)


def _connector(name: str, request: pytest.FixtureRequest, folder: Path, *, owner: str) -> Executor:
    own = ExecutorSite(owner=owner, state_dir=folder / "attempts", stop_grace_seconds=1)
    if name == "kubernetes":
        pods: KubernetesSite = request.getfixturevalue("kubernetes_site")
        return KubernetesExecutor(pods.settings, own)
    if name.startswith("slurm"):
        slurm: SlurmCluster = request.getfixturevalue("slurm_cluster")
        settings = slurm.rest_settings() if name == "slurm-rest" else slurm.settings()
        settings = dataclasses.replace(settings, containers="oci", image_dir=folder / "bundles")
        return SlurmExecutor(settings, own)
    ray: RayCluster = request.getfixturevalue("ray_head")
    return RayExecutor(RaySettings(url=ray.url, lost_seconds=5), own)
