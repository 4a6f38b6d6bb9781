"""Services as apps of Marathon, releases 1.4 to 1.10.

An app with GPUs runs under Mesos' own containerizer, all others under Docker's. A stopped service
is an app without instances until it is removed. An app whose task exits is launched again, with
success too, so one-time work belongs to Metronome or Chronos.

Source: Marathon's documentation of its REST API, "Health checks", "Event bus", "GPU resources".
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from threading import Event, Thread
from typing import Any

import requests
import urllib3

from core.clock import to_ns
from jobqueue.executors.abilities import refusal
from jobqueue.executors.base import ConflictError, ExecutorError, InvalidError, NotFoundError
from jobqueue.executors.confinement import docker_parameters
from jobqueue.executors.mesos.agent import explain
from jobqueue.executors.mesos.executor import MesosExecutor, Site, memory_of, ns_of, volumes_of
from jobqueue.executors.mesos.marathon_client import Answer, Marathon, MarathonApp, MarathonError
from jobqueue.executors.recorded import environment_of
from jobqueue.executors.settings import ServerSettings
from protocol.attempts import AttemptObservation, AttemptSpec, Health, ObservedState
from protocol.job_spec import HealthCheck, HealthCheckKind, Port

log = logging.getLogger(__name__)

OWNER_LABEL = "VEDETTE_APPLIANCE"
GPU_FEATURE = "gpu_resources"
# Since this release, an app's networks and port mappings stand outside of `docker`.
NETWORKS_SINCE = (1, 5)
EVENT_TYPES = (
    "status_update_event",
    "deployment_success",
    "deployment_failed",
    "health_status_changed_event",
    "instance_health_changed_event",
    "app_terminated_event",
)
# While events arrive, the state is also read when this much time has passed without one.
READ_SECONDS = 10.0
RECONNECT_SECONDS = 5.0
# A task that exits is launched again after a pause of 1 s, which grows as Docker's does.
BACKOFF_FACTOR = 2.0
LONGEST_BACKOFF_SECONDS = 60
REASONS = {
    "UnfulfilledRole": "the agent's resources are reserved for another role",
    "UnfulfilledConstraint": "no Mesos agent meets the constraints",
    "InsufficientCpus": "not enough CPUs",
    "InsufficientMemory": "not enough memory",
    "InsufficientDisk": "not enough disk space",
    "InsufficientGpus": "not enough GPUs",
    "InsufficientPorts": "a port is taken",
    "DeclinedScarceResources": "the agent's GPUs are kept for apps with GPUs",
}


class MarathonExecutor(MesosExecutor):
    """Runs services through Marathon."""

    name = "marathon"
    names: Sequence[str] = (name,)
    is_submit_idempotent = True

    def __init__(self, settings: ServerSettings, site: Site) -> None:
        super().__init__(site)
        self._client = Marathon(settings)
        self._release: tuple[int, ...] = ()
        self._last: dict[str, AttemptObservation] | None = None
        self._changed, self._closed = Event(), Event()
        self._is_connected = False
        self._read_at_ns = 0
        self._listener: Thread | None = None

    def close(self) -> None:
        """Close the connections; apps continue."""
        self._closed.set()
        self._client.close()
        if self._listener is not None:
            self._listener.join()

    def _unsupported(self, spec: AttemptSpec) -> str:
        if not spec.is_service:
            return (
                "Marathon runs services only: it launches an app again whose command has ended. "
                "Configure [metronome] or [chronos] on this appliance for one-time jobs."
            )
        if spec.gpu_uuids and GPU_FEATURE not in features_of(self._info()):
            return "Marathon does not offer GPUs: start it with --enable_features gpu_resources."
        return refusal(self.name, spec)

    def _submit(self, spec: AttemptSpec) -> None:
        app = app_of(
            spec, self._site, app_id=self._app_id(spec.attempt_id), release=self._version()
        )
        self._last = None
        try:
            self._client.create_app(app.id, app)
        except ConflictError:
            log.info("Marathon has app %s already", app.id)

    def _stop(self, attempt_id: str) -> None:
        self._last = None
        try:
            suspended = MarathonApp(instances=0)
            self._client.update_app(self._app_id(attempt_id), suspended, force=True)
        except NotFoundError:
            log.debug("app of %s is gone", attempt_id)

    def _delete(self, attempt_id: str) -> None:
        self._last = None
        try:
            self._client.delete_app(self._app_id(attempt_id), force=True)
        except NotFoundError:
            log.debug("app of %s is gone", attempt_id)

    def _read(self) -> Mapping[str, AttemptObservation]:
        """Read the apps, unless no event has come since the last time."""
        self._listen()
        now_ns = to_ns(self._site.clock())
        is_fresh = self._is_connected and now_ns - self._read_at_ns < READ_SECONDS * 1e9
        if self._last is not None and is_fresh and not self._changed.is_set():
            return self._last
        self._changed.clear()
        apps = self._client.list_apps(
            label=f"{OWNER_LABEL}=={self._site.owner}",
            embed_tasks=True,
            embed_counts=True,
            embed_deployments=True,
            embed_last_task_failure=True,
        )
        is_waiting = any(int(app["instances"]) > app.get("tasksRunning", 0) for app in apps)
        queue = self._client.list_queue() if is_waiting else []
        waiting = {item["app"]["id"]: item for item in queue if "app" in item}
        deployments = (
            {deployment["id"]: deployment for deployment in self._client.list_deployments()}
            if apps
            else {}
        )
        observations = {}
        for app in apps:
            attempt_id = app["id"].rpartition("/")[2]
            observations[attempt_id] = observe_app(
                attempt_id, app, waiting.get(app["id"]), deployments
            )
        self._last, self._read_at_ns = observations, now_ns
        for attempt_id, seen in observations.items():
            if seen.state is ObservedState.FAILED:
                self._stop(attempt_id)  # Marathon would try again for ever
        return observations

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = Thread(target=self._follow, name="marathon-events", daemon=True)
            self._listener.start()

    def _follow(self) -> None:
        """Note that something has changed whenever an event comes; connect again and again."""
        while not self._closed.is_set():
            try:
                for _ in self._client.events(*EVENT_TYPES):
                    self._is_connected = True
                    self._changed.set()
                    if self._closed.is_set():
                        return
            except (
                ExecutorError,
                requests.RequestException,
                urllib3.exceptions.HTTPError,
            ) as error:
                log.debug("Marathon's events: %s", error)
            finally:
                self._is_connected = False
            self._closed.wait(RECONNECT_SECONDS)

    def _info(self) -> Answer:
        info: Answer = self._client.get_info()
        return info

    def _version(self) -> tuple[int, ...]:
        if not self._release:
            self._release = release_of(self._info())
        return self._release

    def _app_id(self, attempt_id: str) -> str:
        return f"/vedette/{self._site.owner}/{attempt_id}"


def features_of(info: Mapping[str, Any]) -> list[str]:
    """Return the optional features that `/v2/info` lists: as a list, or separated by commas."""
    features = info.get("marathon_config", {}).get("features") or []
    return features.split(",") if isinstance(features, str) else list(features)


def release_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return `(1, 8)` for version 1.8.222."""
    numbers = re.findall(r"\d+", str(info.get("version", "")))
    return tuple(int(number) for number in numbers[:2])


def app_of(spec: AttemptSpec, site: Site, *, app_id: str, release: tuple[int, ...]) -> MarathonApp:
    """Return the app of a service.

    A change in Marathon's own pages ends the task before it starts a new one: its default would
    need twice the GPUs, and wait for them for ever.
    """
    has_gpus, has_networks = bool(spec.gpu_uuids), release >= NETWORKS_SINCE
    docker: Answer = {"image": spec.image, "forcePullImage": False}
    container: Answer = {"type": "MESOS" if has_gpus else "DOCKER", "docker": docker}
    options: Answer = {}
    if has_gpus:
        docker |= {"privileged": False}
        options["portDefinitions"] = [
            {"port": port.container_port, **named} for port, named in _named(spec.ports)
        ]
        options["requirePorts"] = bool(spec.ports)
    else:
        docker["parameters"] = docker_parameters(spec, pids_limit=site.pids_limit)
        mappings = [
            {"containerPort": port.container_port, "hostPort": 0, **named}
            for port, named in _named(spec.ports)
        ]
        (container if has_networks else docker)["portMappings"] = mappings
        if not has_networks:
            docker["network"] = "BRIDGE"
    if has_networks:
        options["networks"] = [{"mode": "host" if has_gpus else "container/bridge"}]
    container["volumes"] = volumes_of(spec)
    if spec.command:
        options["args"] = list(spec.command)
    if spec.health_check is not None:
        ports = [port.container_port for port in spec.ports]
        options["healthChecks"] = [_health_check(spec.health_check, ports)]
    if not site.is_anywhere:
        options["constraints"] = [["hostname", "CLUSTER", site.hostname]]
    fields: Answer = {
        "id": app_id,
        "cpus": spec.cpus,
        "mem": memory_of(spec),
        "disk": 0,
        "gpus": len(spec.gpu_uuids),
        "instances": 1,
        "env": environment_of(spec),
        "labels": {
            OWNER_LABEL: site.owner,
            "VEDETTE_JOB": spec.job_id,
            "VEDETTE_NAME": spec.name,
        },
        "container": container,
        "upgradeStrategy": {"minimumHealthCapacity": 0, "maximumOverCapacity": 0},
        "backoffFactor": BACKOFF_FACTOR,
        "maxLaunchDelaySeconds": LONGEST_BACKOFF_SECONDS,
        "taskKillGracePeriodSeconds": site.grace_seconds_of(spec),
        **options,
    }
    try:
        app: MarathonApp = MarathonApp.from_json(fields)
    except (ValueError, MarathonError) as error:  # the package's own checks
        raise InvalidError(str(error)) from error
    return app


def observe_app(
    attempt_id: str,
    app: Mapping[str, Any],
    waiting: Mapping[str, Any] | None,
    deployments: Mapping[str, Mapping[str, Any]],
) -> AttemptObservation:
    """Return the observation of a service from its app, queue item and deployments."""
    tasks, instances = app.get("tasks") or [], int(app["instances"])
    running = [task for task in tasks if task.get("state") == "TASK_RUNNING"]
    if not instances:
        state = ObservedState.RUNNING if tasks else ObservedState.STOPPED
        message = "The app was suspended in Marathon, not through the portal."
        return AttemptObservation(
            attempt_id=attempt_id,
            state=state,
            reason="" if tasks else "stopped_outside",
            message="Stopping." if tasks else message,
        )
    failure = app.get("lastTaskFailure") or {}
    is_current = failure.get("version", "") >= app.get("versionInfo", {}).get(
        "lastConfigChangeAt", ""
    )
    if failure and is_current and not running:
        image = app.get("container", {}).get("docker", {}).get("image", "")
        ending = explain(image, str(failure.get("message", "")))
        if ending.reason == "image_not_found":
            return AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.FAILED,
                reason=ending.reason,
                message=ending.message,
            )
    started = [ns_of(task["startedAt"]) for task in running if task.get("startedAt")]
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.RUNNING if running else ObservedState.STARTING,
        message=_progress(app, running, waiting, deployments, failure if is_current else {}),
        started_at_ns=min(started, default=None),
        endpoints=_endpoints(app, running),
        health=health_of(app, running),
    )


def health_of(app: Mapping[str, Any], running: list[Answer]) -> Health:
    """Return the health of a service by its tasks' results; one without results has just started.

    Marathon replaces a task after `maxConsecutiveFailures`.
    """
    if not app.get("healthChecks"):
        return Health.UNKNOWN
    results = [task.get("healthCheckResults") or [] for task in running]
    if any(not result.get("alive", True) for task_results in results for result in task_results):
        return Health.UNHEALTHY
    return Health.HEALTHY if results and all(results) else Health.STARTING


def queue_message(item: Mapping[str, Any]) -> str:
    """Return why Marathon has not launched an app, from its queue."""
    summary = item.get("processedOffersSummary", {})
    declined = [
        f"{REASONS.get(reason['reason'], reason['reason'])} "
        f"({reason['declined']} of {reason['processed']} offers)"
        for reason in summary.get("rejectSummaryLastOffers", [])
        if reason.get("declined")
    ]
    if declined:
        return f"Waits in Marathon: {', '.join(declined)}."
    left_seconds = int(item.get("delay", {}).get("timeLeftSeconds", 0))
    if left_seconds:
        return f"Marathon launches it again in {left_seconds} s."
    return "Waits for an offer of the Mesos agent."


def _progress(
    app: Mapping[str, Any],
    running: list[Answer],
    waiting: Mapping[str, Any] | None,
    deployments: Mapping[str, Mapping[str, Any]],
    failure: Mapping[str, Any],
) -> str:
    if running:
        is_unhealthy = health_of(app, running) is Health.UNHEALTHY
        return "The health check fails." if is_unhealthy else ""
    parts = []
    if failure:
        parts.append(f"The last task failed: {str(failure.get('message', '')).rstrip('.')}.")
    if waiting is not None:
        parts.append(queue_message(waiting))
    for reference in app.get("deployments") or []:
        deployment = deployments.get(reference["id"])
        if deployment:
            actions = {action.get("action", "") for action in deployment.get("currentActions", [])}
            step = f"step {deployment.get('currentStep', 1)} of {deployment.get('totalSteps', 1)}"
            parts.append(f"Deployment: {', '.join(sorted(actions))}, {step}.")
    return " ".join(parts)


def _health_check(check: HealthCheck, ports: list[int]) -> Answer:
    fields: Answer = {
        "gracePeriodSeconds": round(check.grace_seconds),
        "intervalSeconds": max(1, round(check.interval_seconds)),
        "timeoutSeconds": max(1, round(check.timeout_seconds)),
        "maxConsecutiveFailures": check.max_failures,
    }
    if check.kind is HealthCheckKind.COMMAND:
        return {**fields, "protocol": "COMMAND", "command": check.command}
    fields["protocol"] = "MESOS_HTTP" if check.kind is HealthCheckKind.HTTP else "MESOS_TCP"
    if check.kind is HealthCheckKind.HTTP:
        fields["path"] = check.path
    if check.port in ports:
        return {**fields, "portIndex": ports.index(check.port)}
    return {**fields, "port": check.port}


def _named(ports: Sequence[Port]) -> Iterator[tuple[Port, dict[str, str]]]:
    """Yield the ports and their names in Marathon's letters; a taken one gets its number."""
    taken: set[str] = set()
    for port in ports:
        name = re.sub(r"[^a-z0-9-]+", "-", port.name.lower()).strip("-")
        while name in taken:
            name += f"-{port.container_port}"
        taken |= {name} - {""}
        yield port, {"name": name} if name else {}


def _endpoints(app: Mapping[str, Any], running: list[Answer]) -> dict[str, str]:
    """Return where the ports of the first task listen; Marathon lists them in the app's order."""
    container = app.get("container") or {}
    docker = container.get("docker") or {}
    ports = container.get("portMappings") or docker.get("portMappings")
    ports = ports or app.get("portDefinitions") or []
    names = [port.get("name") or str(port.get("containerPort", port.get("port"))) for port in ports]
    return {
        name: f"{task['host']}:{port}"
        for task in running[:1]
        for name, port in zip(names, task.get("ports") or [], strict=False)
    }
