"""Behavior of the Marathon, Metronome and Chronos executors beyond the contract of all."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import requests
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collector.checks.connections import Verdict
from collector.checks.schedulers import check_schedulers
from collector.config import AgentConfig
from core.ids import new_id
from jobqueue.executors.base import (
    Executor,
    ExecutorError,
    ExecutorUnavailableError,
    UncertainError,
)
from jobqueue.executors.mesos.agent import MesosAgent
from jobqueue.executors.mesos.chronos import ChronosExecutor
from jobqueue.executors.mesos.executor import MesosExecutor, Site
from jobqueue.executors.mesos.marathon import MarathonExecutor
from jobqueue.executors.mesos.metronome import MetronomeExecutor
from jobqueue.executors.settings import MesosSettings, ServerSettings
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.job_spec import HealthCheck, HealthCheckKind
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.mesos_site import HOSTNAME, MesosSite
from tests.fixtures.polling import eventually
from tests.mesos.marathon import Marathon
from tests.mesos.marathon_api import marathon_app
from tests.mesos.metronome import Metronome, metronome_app
from tests.mesos.serving import Secured, Server
from tests.servers import free_port

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]

GPUS = ["GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"]
Kind = Callable[[ServerSettings, Site], MesosExecutor]
Open = Callable[..., Any]
MakeSpec = Callable[..., AttemptSpec]


@pytest.fixture
def site(mesos_site: MesosSite, tmp_path: Path) -> Site:
    """This appliance in the cluster."""
    return Site(
        owner=new_id(),
        hostname=HOSTNAME,
        state_dir=tmp_path / "state",
        mesos=MesosAgent(ServerSettings(url=mesos_site.agent_url)),
        stop_grace_seconds=1,
    )


@pytest.fixture
def opened(site: Site) -> Iterator[Open]:
    """Open executors, which the test's end removes with their attempts."""
    executors: list[MesosExecutor] = []

    def open_one(kind: Kind, url: str, **settings: Any) -> MesosExecutor:  # noqa: ANN401
        executors.append(kind(ServerSettings(url=url, **settings), site))
        return executors[-1]

    yield open_one
    for executor in executors:
        for seen in executor.observe():
            executor.remove(seen.attempt_id)
        executor.close()


@pytest.fixture
def marathon(opened: Open, mesos_site: MesosSite) -> MarathonExecutor:
    executor: MarathonExecutor = opened(MarathonExecutor, mesos_site.marathon_url)
    return executor


@pytest.fixture
def make_spec(docker_engine: DockerEngine) -> MakeSpec:
    def make(script: str, **changes: object) -> AttemptSpec:
        fields: dict[str, object] = {
            "attempt_id": new_id(), "job_id": "job-1", "name": "test",
            "image": docker_engine.image, "command": ["/bin/sh", "-c", script],
            "memory_bytes": 64 * 2**20, "cpus": 0.5,
        }  # fmt: skip
        return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names

    return make


def until(
    executor: Executor, spec: AttemptSpec, done: Callable[[AttemptObservation], bool]
) -> AttemptObservation:
    def probe() -> AttemptObservation | None:
        observations = (
            observation
            for observation in executor.observe()
            if observation.attempt_id == spec.attempt_id
        )
        seen = next(observations, None)
        return seen if seen is not None and done(seen) else None

    seen = eventually(probe, within_seconds=60)
    assert seen is not None
    return seen


def until_state(executor: Executor, spec: AttemptSpec, state: ObservedState) -> AttemptObservation:
    return until(executor, spec, lambda seen: seen.state is state)


def app_in(url: str, site: Site, spec: AttemptSpec) -> dict[str, Any]:
    reply = requests.get(f"{url}/v2/apps/vedette/{site.owner}/{spec.attempt_id}", timeout=30)
    app: dict[str, Any] = reply.json()["app"]
    return app


def test_a_service_with_gpus_waits_in_marathon_until_they_are_free(
    marathon: MarathonExecutor, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    first = make_spec("sleep 600", is_service=True, gpu_uuids=GPUS)
    second = make_spec("sleep 600", is_service=True, gpu_uuids=GPUS[:1])
    marathon.start(first)
    until_state(marathon, first, ObservedState.RUNNING)
    marathon.start(second)
    waiting = until(marathon, second, lambda seen: "not enough GPUs" in seen.message)
    assert waiting.state is ObservedState.STARTING
    app = app_in(mesos_site.marathon_url, site, second)
    assert (app["gpus"], app["container"]["type"]) == (1, "MESOS")
    assert app["upgradeStrategy"] == {"minimumHealthCapacity": 0, "maximumOverCapacity": 0}
    marathon.stop(first.attempt_id, grace_seconds=0)
    until_state(marathon, second, ObservedState.RUNNING)


def test_gpus_without_the_feature_and_a_wrong_app_fail_with_what_marathon_says(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite
) -> None:
    plain = Marathon(mesos_site.cluster, features=())
    executor = opened(MarathonExecutor, mesos_site.serve(marathon_app(plain)).url)
    gpus = make_spec("true", is_service=True, gpu_uuids=GPUS)
    no_image = make_spec("", is_service=True, image="", command=[])
    wrong_id = make_spec("true", is_service=True, attempt_id="Not-Lower-Case")
    for spec, text in (
        (gpus, "--enable_features gpu_resources"),
        (no_image, "Marathon runs containers; set an image."),
        (wrong_id, "invalid path"),
    ):
        executor.start(spec)
        ended = until_state(executor, spec, ObservedState.FAILED)
        assert ended.reason == "invalid_job"
        assert text in ended.message


def test_the_check_names_versions_features_and_what_does_not_answer(
    mesos_site: MesosSite, tmp_path: Path
) -> None:
    plain = mesos_site.serve(marathon_app(Marathon(mesos_site.cluster, features=()))).url

    def verdicts(**tables: ServerSettings) -> dict[str, tuple[Verdict, str]]:
        config = AgentConfig(data_dir=tmp_path, executor="marathon", **tables)  # type: ignore[arg-type]
        return {check.name: (check.verdict, check.message) for check in check_schedulers(config)}

    results = verdicts(
        marathon=ServerSettings(url=mesos_site.marathon_url),
        metronome=ServerSettings(url=mesos_site.metronome_url),
        mesos=MesosSettings(url=mesos_site.agent_url, hostname=HOSTNAME),
    )
    assert [verdict for verdict, _ in results.values()] == [Verdict.OK] * 3
    assert "version 1.10.26, with gpu_resources" in results["Marathon"][1]
    results = verdicts(
        marathon=ServerSettings(url=plain),
        chronos=ServerSettings(url=mesos_site.chronos_urls[2]),
        mesos=MesosSettings(url=mesos_site.agent_url, hostname="other"),
    )
    assert results["Marathon"][0] is Verdict.WARNING
    assert "generation 2.x" in results["Chronos"][1]
    assert results["Mesos agent"][0] is Verdict.FAIL
    results = verdicts(marathon=ServerSettings(url=f"http://127.0.0.1:{free_port()}"))
    assert results["Marathon"][0] is Verdict.FAIL
    assert "does not answer" in results["Marathon"][1]
    assert results["Mesos agent"][0] is Verdict.WARNING


def test_an_unhealthy_service_is_restarted_by_marathon(
    marathon: MarathonExecutor, make_spec: MakeSpec
) -> None:
    check = HealthCheck(
        kind=HealthCheckKind.COMMAND, command="exit 1", interval_seconds=1, grace_seconds=0,
        max_failures=1,
    )  # fmt: skip
    spec = make_spec("echo up; exec sleep 600", is_service=True, health_check=check)
    marathon.start(spec)

    def has_restarted() -> bool:
        marathon.observe()
        output = marathon.read_log(spec.attempt_id, offset=0, limit=1000)
        return output.count(b"up\n") > 1

    eventually(has_restarted)


def test_a_service_that_exits_is_launched_again_and_says_why(
    marathon: MarathonExecutor, make_spec: MakeSpec
) -> None:
    spec = make_spec("sleep 0.1; exit 3", is_service=True)
    marathon.start(spec)
    seen = until(marathon, spec, lambda seen: "exited with status 3" in seen.message)
    assert seen.state in {ObservedState.STARTING, ObservedState.RUNNING}


def test_an_app_that_was_suspended_in_marathon_is_stopped_outside(
    marathon: MarathonExecutor, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    spec = make_spec("exec sleep 600", is_service=True)
    marathon.start(spec)
    until_state(marathon, spec, ObservedState.RUNNING)
    app_id = app_in(mesos_site.marathon_url, site, spec)["id"]
    url = f"{mesos_site.marathon_url}/v2/apps{app_id}"
    eventually(lambda: requests.put(url, json={"instances": 0}, timeout=30).ok)
    assert until_state(marathon, spec, ObservedState.STOPPED).reason == "stopped_outside"


def test_attempts_are_adopted_without_their_records(
    opened: Open, marathon: MarathonExecutor, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    spec = make_spec("echo hello; sleep 600", is_service=True)
    marathon.start(spec)
    until_state(marathon, spec, ObservedState.RUNNING)
    marathon.close()
    shutil.rmtree(site.state_dir)
    restarted = opened(MarathonExecutor, mesos_site.marathon_url)
    until_state(restarted, spec, ObservedState.RUNNING)
    restarted.start(spec)
    eventually(lambda: restarted.read_log(spec.attempt_id, offset=0, limit=100) == b"hello\n")
    assert len(app_in(mesos_site.marathon_url, site, spec)["tasks"]) == 1


@pytest.mark.parametrize("version", ["1.4.13", "1.5.13"])
def test_older_releases_get_their_own_networks(
    version: str, opened: Open, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    server = mesos_site.serve(marathon_app(Marathon(mesos_site.cluster, version=version)))
    executor = opened(MarathonExecutor, server.url)
    spec = make_spec("exec sleep 600", is_service=True)
    executor.start(spec)
    until_state(executor, spec, ObservedState.RUNNING)
    app = app_in(server.url, site, spec)
    is_old = version.startswith("1.4")
    assert app["container"]["docker"].get("network") == ("BRIDGE" if is_old else None)
    assert app.get("networks") == (None if is_old else [{"mode": "container/bridge"}])


def test_marathon_is_found_again_after_its_restart_with_events(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite
) -> None:
    app, port = marathon_app(Marathon(mesos_site.cluster)), free_port()
    server = Server(app, port).start()
    executor = opened(MarathonExecutor, server.url)
    spec = make_spec("exec sleep 600", is_service=True)
    executor.start(spec)
    until_state(executor, spec, ObservedState.RUNNING)
    server.stop()

    def is_gone() -> bool:
        try:
            executor.observe()
        except ExecutorUnavailableError:
            return True
        return False

    eventually(is_gone)
    mesos_site.servers.append(Server(app, port).start())
    until_state(executor, spec, ObservedState.RUNNING)
    executor.stop(spec.attempt_id, grace_seconds=0)
    until_state(executor, spec, ObservedState.STOPPED)


@pytest.mark.parametrize(
    ("wanted", "given", "is_accepted"),
    [
        ({"basic": "alice:secret"}, {"username": "alice", "password_file": "secret"}, True),
        ({"basic": "alice:other"}, {"username": "alice", "password_file": "secret"}, False),
        ({"token": "secret"}, {"token_file": "secret"}, True),
        ({"token": "secret"}, {}, False),
    ],
)
def test_credentials_are_basic_or_the_token_of_dcos(
    wanted: dict[str, str],
    given: dict[str, str],
    is_accepted: bool,  # noqa: FBT001 - a column of the table
    site: Site,
    mesos_site: MesosSite,
) -> None:
    secret = site.state_dir.with_name("secret")
    secret.write_text("secret\n")
    server = mesos_site.serve(Secured(marathon_app(Marathon(mesos_site.cluster)), **wanted))
    settings: dict[str, Any] = {
        key: secret if "file" in key else value for key, value in given.items()
    }
    executor = MarathonExecutor(ServerSettings(url=server.url, **settings), site)
    if is_accepted:
        assert executor.observe() == []
    else:
        with pytest.raises(ExecutorUnavailableError, match="refuses the credentials"):
            executor.observe()
    executor.close()


class SilentOnce:
    """Executes one POST on a path, and never answers it."""

    def __init__(self, app: ASGIApp, path_end: str) -> None:
        self._app, self._path_end = app, path_end
        self.has_executed = Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_it = scope.get("method") == "POST" and scope["path"].endswith(self._path_end)
        if not is_it or self.has_executed.is_set():
            await self._app(scope, receive, send)
            return

        async def drop(_message: Message) -> None:
            pass

        await self._app(scope, receive, drop)
        self.has_executed.set()


def test_a_run_whose_answer_is_lost_is_not_started_twice(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    metronome = Metronome(mesos_site.cluster)
    silent = SilentOnce(metronome_app(metronome), "/runs")
    executor = opened(MetronomeExecutor, mesos_site.serve(silent).url, timeout_seconds=2)
    spec = make_spec("echo hello")
    with pytest.raises(UncertainError):
        executor.start(spec)
    assert silent.has_executed.is_set()
    with contextlib.suppress(ExecutorError):
        executor.start(spec)
    until_state(executor, spec, ObservedState.SUCCEEDED)
    executor.start(spec)
    job = metronome.jobs[f"vedette.{site.owner}.{spec.attempt_id}"]
    assert (len(job.runs), len(job.succeeded)) == (0, 1)


def test_metronome_runs_one_time_work_with_gpus(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    executor = opened(MetronomeExecutor, mesos_site.metronome_url)
    with_gpu = make_spec("exec sleep 600", gpu_uuids=GPUS[:1])
    executor.start(with_gpu)
    until_state(executor, with_gpu, ObservedState.RUNNING)
    url = f"{mesos_site.metronome_url}/v1/jobs/vedette.{site.owner}.{with_gpu.attempt_id}"
    run = requests.get(url, timeout=30).json()["run"]
    assert (run["gpus"], run["restart"]) == (1, {"policy": "NEVER"})
    assert "docker" not in run


@pytest.mark.parametrize("generation", [2, 3])
def test_chronos_in_both_generations_runs_a_job_once_and_leaves_none_behind(
    generation: int, opened: Open, make_spec: MakeSpec, mesos_site: MesosSite
) -> None:
    executor = opened(ChronosExecutor, mesos_site.chronos_urls[generation])
    once = make_spec("echo hello; exit 0")
    executor.start(once)
    until_state(executor, once, ObservedState.SUCCEEDED)
    executor.start(once)
    prefix = "/scheduler" if generation == 2 else "/v1/scheduler"
    url = f"{mesos_site.chronos_urls[generation]}{prefix}/jobs/search"
    query = {"name": once.attempt_id}
    [job] = requests.get(url, query, timeout=30).json()
    assert job["schedule"].startswith("R0/")
    assert (job["disabled"], job["successCount"], job["retries"]) == (True, 1, 0)
    executor.remove(once.attempt_id)
    assert requests.get(url, query, timeout=30).json() == []


def test_a_run_that_was_killed_in_chronos_is_noticed(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite, site: Site
) -> None:
    executor, spec = opened(ChronosExecutor, mesos_site.chronos_urls[3]), make_spec("sleep 600")
    executor.start(spec)
    until_state(executor, spec, ObservedState.RUNNING)
    name = f"vedette.{site.owner}.{spec.attempt_id}"
    url = f"{mesos_site.chronos_urls[3]}/v1/scheduler/task/kill/{name}"
    assert requests.delete(url, timeout=30).status_code == 204
    ended = until_state(executor, spec, ObservedState.STOPPED)
    assert ended.reason == "stopped_outside"


def test_chronos_passes_gpus_by_their_uuids(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite
) -> None:
    executor = opened(ChronosExecutor, mesos_site.chronos_urls[3])
    spec = make_spec("echo $NVIDIA_VISIBLE_DEVICES", gpu_uuids=GPUS[:1])
    executor.start(spec)
    until_state(executor, spec, ObservedState.SUCCEEDED)
    output = executor.read_log(spec.attempt_id, offset=0, limit=1000)
    assert output.splitlines()[0].decode() == GPUS[0]
    [job] = requests.get(
        f"{mesos_site.chronos_urls[3]}/v1/scheduler/jobs/search?name={spec.attempt_id}", timeout=30
    ).json()
    assert {"key": "runtime", "value": "nvidia"} in job["container"]["parameters"]
    assert {"key": "cap-drop", "value": "ALL"} in job["container"]["parameters"]


def test_the_mesos_agent_reports_a_signal_and_memory(
    opened: Open, make_spec: MakeSpec, mesos_site: MesosSite
) -> None:
    executor = opened(MetronomeExecutor, mesos_site.metronome_url)
    spec = make_spec("exec tail /dev/zero", memory_bytes=32 * 2**20)
    executor.start(spec)
    assert until_state(executor, spec, ObservedState.FAILED).reason == "out_of_memory"


def test_output_without_the_mesos_agent_says_what_to_configure(
    make_spec: MakeSpec, mesos_site: MesosSite, tmp_path: Path
) -> None:
    site = Site(owner=new_id(), hostname="*", state_dir=tmp_path)
    executor = MetronomeExecutor(ServerSettings(url=mesos_site.metronome_url), site)
    spec = make_spec("echo hello; exit 2")
    executor.start(spec)
    ended = until_state(executor, spec, ObservedState.FAILED)
    assert (ended.reason, ended.exit_code) == ("exit_code", None)
    assert "Set [mesos] url" in ended.message
    output = executor.read_log(spec.attempt_id, offset=0, limit=1000)
    assert b"set [mesos] url" in output
    executor.remove(spec.attempt_id)
    executor.close()
