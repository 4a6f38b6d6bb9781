"""A Marathon of the releases 1.4 to 1.10: apps, deployments, tasks, queue and events.

Source: Marathon's RAML of these releases, its `MarathonExceptionMapper` and `AppValidation`.
"""

import math
import re
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import RLock, Thread

import requests
from docker.errors import APIError

from tests.mesos.cluster import Cluster, Task, TaskRequest, timestamp
from tests.mesos.serving import Answer, HTTPError, message, ticking

DEFAULTS: Answer = {
    "cmd": None, "args": None, "cpus": 1, "mem": 128, "disk": 0, "gpus": 0, "instances": 1,
    "backoffSeconds": 1, "backoffFactor": 1.15, "maxLaunchDelaySeconds": 300, "env": {},
    "labels": {}, "constraints": [], "healthChecks": [], "fetch": [], "dependencies": [],
    "acceptedResourceRoles": None, "executor": "", "taskKillGracePeriodSeconds": None,
    "upgradeStrategy": {"minimumHealthCapacity": 1, "maximumOverCapacity": 1},
    "killSelection": "YOUNGEST_FIRST",
}  # fmt: skip
SCALING = frozenset({"instances"})
SEGMENT = re.compile(r"([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9])(\.[a-z0-9][a-z0-9-]*)*")
OPERATORS = frozenset({"UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS"})
LOCKED = (
    "App is locked by one or more deployments. Override with the option '?force=true'. "
    "View details at '/v2/deployments/<DEPLOYMENT_ID>'."
)
MAX_DEPLOYMENTS = 100
TICK_SECONDS = 0.05


@dataclass(slots=True)
class App:
    """One app: its definition, tasks and versions."""

    spec: Answer
    config_version: str
    tasks: list[Task] = field(default_factory=list)
    versions: dict[str, Answer] = field(default_factory=dict)
    last_failure: Answer | None = None
    failures: int = 0
    launch_at: float = 0.0
    since: str = field(default_factory=timestamp)
    processed: int = 0
    declined: dict[str, int] = field(default_factory=dict)
    is_deleted: bool = False


@dataclass(slots=True)
class Deployment:
    """One change of one app, until it has arrived; those of a group have the same id."""

    app_id: str
    action: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    version: str = field(default_factory=timestamp)
    before: Answer | None = None


class Marathon:
    """The state of a Marathon, which a thread brings about step by step."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        version: str = "1.8.222",
        features: tuple[str, ...] = ("gpu_resources",),
    ) -> None:
        self.cluster, self.version, self.features = cluster, version, features
        self.release = tuple(int(part) for part in version.split(".")[:2])
        self.framework = f"{uuid.uuid4()}-0001"
        self.apps: dict[str, App] = {}
        self.deployments: list[Deployment] = []
        # The groups that were created, with or without apps.
        self.groups: set[str] = set()
        self.listeners: list[SimpleQueue[Answer]] = []
        self.lock = RLock()
        ticking(self.tick, is_over=cluster.closing.is_set, seconds=TICK_SECONDS)

    # Changes

    def create(self, spec: Answer) -> tuple[App, Deployment]:
        """Add an app."""
        app_id = "/" + str(spec.get("id", "")).strip("/")
        spec = {**spec, "id": app_id}
        self.validate(spec)
        if app_id in self.apps:
            raise message(409, f"An app with id [{app_id}] already exists.")
        if len(self.deployments) >= MAX_DEPLOYMENTS:
            text = "Max number (100) of concurrent deployments reached. Please wait for them"
            raise message(403, text)
        deployment = Deployment(app_id, "StartApplication")
        app = App({}, deployment.version)
        self.apps[app_id] = app
        self._set(app, spec, deployment)
        return app, deployment

    def change(self, app_id: str, changes: Answer, *, is_partial: bool, force: bool) -> Deployment:
        """Change an app: scale it, or replace its tasks."""
        app = self.app(app_id)
        if "version" in changes and len(changes) == 1:
            changes = app.versions[changes["version"]]
        spec = {**(app.spec if is_partial else {}), **changes, "id": app.spec["id"]}
        self.validate(spec)
        self._lock_out(app.spec["id"], force=force)
        full = {**DEFAULTS, **spec}
        is_scaling = all(full.get(key) == app.spec.get(key) for key in full if key not in SCALING)
        action = "ScaleApplication" if is_scaling else "RestartApplication"
        deployment = Deployment(app.spec["id"], action, before=app.spec)
        if not is_scaling:
            app.config_version, app.failures, app.launch_at = deployment.version, 0, 0.0
        self._set(app, spec, deployment)
        return deployment

    def delete(self, app_id: str, *, force: bool) -> Deployment:
        """Stop an app's tasks, then forget it."""
        app = self.app(app_id)
        self._lock_out(app.spec["id"], force=force)
        app.is_deleted, app.spec = True, {**app.spec, "instances": 0}
        deployment = Deployment(app.spec["id"], "StopApplication")
        self.deployments.append(deployment)
        return deployment

    def restart(self, app_id: str, *, force: bool) -> Deployment:
        """Replace the tasks of an app."""
        app = self.app(app_id)
        self._lock_out(app.spec["id"], force=force)
        deployment = Deployment(app.spec["id"], "RestartApplication", before=app.spec)
        app.config_version = deployment.version
        self._set(app, app.spec, deployment)
        return deployment

    def kill(self, tasks: list[Task], *, is_scaling: bool, force: bool) -> Deployment | None:
        """Kill tasks, which are launched again unless their apps are scaled down by them."""
        counts = Counter(task.notes["app"] for task in tasks)
        for app_id in counts if is_scaling else ():
            self._lock_out(app_id, force=force)
        for task in tasks:
            self.cluster.kill(task)
        parts = []
        for app_id, count in counts.items() if is_scaling else ():
            instances = max(0, int(self.apps[app_id].spec["instances"]) - count)
            change = {"instances": instances}
            parts.append(self.change(app_id, change, is_partial=True, force=True))
        return together(parts) if parts else None

    def cancel(self, deployment_id: str, *, force: bool) -> Deployment | None:
        """Roll a deployment back; with force, only end it."""
        parts = [part for part in self.deployments if part.id == deployment_id]
        if not parts:
            raise message(404, f"Deployment {deployment_id} does not exist")
        for part in parts:
            self.deployments.remove(part)
        self.emit("deployment_failed", id=deployment_id)
        if force:
            return None
        return together([self._roll_back(part) for part in parts])

    def _roll_back(self, part: Deployment) -> Deployment:
        if part.before is None:
            return self.delete(part.app_id, force=True)
        return self.change(part.app_id, part.before, is_partial=False, force=True)

    def app(self, app_id: str) -> App:
        """Return an app, or 404."""
        name = "/" + app_id.lstrip("/")
        if name not in self.apps:
            raise message(404, f"App '{name}' does not exist")
        return self.apps[name]

    def emit(self, event_type: str, **fields: object) -> None:
        """Send an event to whoever listens now; nothing is repeated for others."""
        event = {"eventType": event_type, "timestamp": timestamp(), **fields}
        for listener in list(self.listeners):
            listener.put(event)

    def validate(self, spec: Answer) -> None:  # noqa: C901, PLR0912 - one rule after another
        """Refuse a wrong definition with 422 and all its faults."""
        faults: dict[str, str] = {}
        segments = str(spec.get("id", "")).strip("/").split("/")
        if not all(SEGMENT.fullmatch(segment) for segment in segments):
            faults["/id"] = (
                "must fully match regular expression "
                "'^(([a-z0-9]|[a-z0-9][a-z0-9\\-]*[a-z0-9])\\.)*([a-z0-9]|[a-z0-9][a-z0-9\\-]*[a-z0-9])"
                "|(\\.|\\.\\.)$'"
            )
        if spec.get("cmd") and spec.get("args"):
            faults["/"] = (
                "AppDefinition must either contain one of 'cmd' or 'args', and/or a 'container'."
            )
        container = spec.get("container") or {}
        docker = container.get("docker") or {}
        gpus = spec.get("gpus") or 0
        if not isinstance(gpus, int) or isinstance(gpus, bool):
            faults["/gpus"] = "error.expected.jsinteger"
        elif gpus > 0 and container.get("type") == "DOCKER":
            faults["/"] = "GPU resources only work with the Mesos containerizer"
        elif gpus > 0 and "gpu_resources" not in self.features:
            faults["/"] = (
                "Feature gpu_resources is not enabled. Enable with --enable_features gpu_resources)"
            )
        if container.get("type") == "MESOS":
            for key in ("network", "parameters", "portMappings", "credential"):
                if docker.get(key):
                    faults[f"/container/docker/{key}"] = "must be empty"
        if not spec.get("cmd") and not spec.get("args") and not docker.get("image"):
            faults["/"] = (
                "AppDefinition must either contain one of 'cmd' or 'args', and/or a 'container'."
            )
        modes = {network.get("mode") for network in spec.get("networks") or []}
        if modes & {"container", "container/bridge"} and spec.get("portDefinitions"):
            faults["/portDefinitions"] = "must be empty"
        for key, value in (spec.get("upgradeStrategy") or {}).items():
            if not 0 <= value <= 1:
                faults[f"/upgradeStrategy/{key}"] = "got 2, expected between 0.0 and 1.0"
        for name, value in (spec.get("env") or {}).items():
            if not isinstance(value, str):
                faults[f"/env({name})"] = "error.expected.jsstring"
        for index, constraint in enumerate(spec.get("constraints") or []):
            if constraint[1] not in OPERATORS:
                faults[f"/constraints({index})"] = "operator must be one of the following"
        if faults:
            details = [{"path": path, "errors": [text]} for path, text in faults.items()]
            raise message(422, "Object is not valid", details=details)

    # Steps

    def tick(self) -> None:
        """Bring each app one step nearer to its definition."""
        with self.lock:
            for app in list(self.apps.values()):
                self._step(app)

    def _step(self, app: App) -> None:
        spec = app.spec
        current = [task for task in app.tasks if task.notes["config"] == app.config_version]
        old = [task for task in app.tasks if task.notes["config"] != app.config_version]
        wanted, strategy = int(spec["instances"]), spec["upgradeStrategy"]
        ready = [task for task in app.tasks if _is_ready(task, spec) and not task.is_killed]
        keep = math.ceil(wanted * strategy["minimumHealthCapacity"])
        grace = float(spec.get("taskKillGracePeriodSeconds") or 3)
        surplus = [task for task in current if not task.is_killed][wanted:]
        replaceable = [task for task in old if not task.is_killed]
        if wanted:
            spare = max(0, len(ready) - keep)
            unready = [task for task in replaceable if task not in ready]
            replaceable = unready + [task for task in replaceable if task in ready][:spare]
        for task in surplus + replaceable:
            self.cluster.kill(task, grace_seconds=grace)
        limit = wanted + math.floor(wanted * strategy["maximumOverCapacity"]) if old else wanted
        missing = min(wanted - len(current), limit - len(app.tasks))
        if missing > 0 and time.monotonic() >= app.launch_at:
            self._launch(app)
        is_done = len(current) == wanted == len(app.tasks)
        if is_done and all(_is_ready(task, spec) for task in current):
            self._finish(app)

    def _launch(self, app: App) -> None:
        request = task_request(app.spec, release=self.release)
        reasons = self.cluster.rejections(request)
        app.processed += 1
        for reason in reasons[:1]:
            app.declined[reason] = app.declined.get(reason, 0) + 1
        if reasons:
            return
        name = app.spec["id"].strip("/").replace("/", "_")
        suffix = f"instance-{uuid.uuid4()}._app.1" if self.release >= (1, 9) else str(uuid.uuid4())
        task = self.cluster.launch(
            f"{name}.{suffix}", request, framework=self.framework, on_update=self._on_update
        )
        task.notes |= {"app": app.spec["id"], "config": app.config_version}
        app.tasks.append(task)
        app.processed, app.declined = 0, {}
        checks = app.spec["healthChecks"]
        if checks:
            Thread(target=self._check, args=(task, checks[0]), daemon=True).start()

    def _on_update(self, task: Task) -> None:
        with self.lock:
            app_id = task.notes.get("app", "")
            self.emit(
                "status_update_event", slaveId=self.cluster.agent_id, taskId=task.id,
                taskStatus=task.state, message=task.message, appId=app_id,
                host=self.cluster.hostname, ports=[], ipAddresses=[],
                version=task.notes.get("config", ""),
            )  # fmt: skip
            app = self.apps.get(app_id)
            if app is None or not task.is_final or task not in app.tasks:
                return
            app.tasks.remove(task)
            if task.state == "TASK_FAILED":
                app.failures += 1
                app.last_failure = {
                    "appId": app_id, "host": self.cluster.hostname, "message": task.message,
                    "state": task.state, "taskId": task.id, "timestamp": timestamp(),
                    "version": task.notes["config"], "slaveId": self.cluster.agent_id,
                }  # fmt: skip
            if not task.is_killed:
                factor = app.spec["backoffFactor"] ** max(0, app.failures - 1)
                delay = min(app.spec["backoffSeconds"] * factor, app.spec["maxLaunchDelaySeconds"])
                app.launch_at = time.monotonic() + delay

    def _check(self, task: Task, check: Answer) -> None:
        """Check a task's health until it ends; kill it when it stays unhealthy."""
        began, failures = time.monotonic(), 0
        while not task.is_final and not self.cluster.closing.is_set():
            if task.state == "TASK_RUNNING":
                is_alive = self._is_alive(task, check)
                is_early = time.monotonic() - began < check.get("gracePeriodSeconds", 300)
                failures = 0 if is_alive else failures + (not is_early)
                task.notes["health"] = [{"alive": is_alive, "consecutiveFailures": failures}]
                if failures >= check.get("maxConsecutiveFailures", 3):
                    self.emit("unhealthy_task_kill_event", appId=task.notes["app"], taskId=task.id)
                    self.cluster.kill(task)
                    return
            time.sleep(check.get("intervalSeconds", 60))

    def _is_alive(self, task: Task, check: Answer) -> bool:
        protocol = check["protocol"].removeprefix("MESOS_")
        if protocol == "COMMAND":
            container = task.container
            command = ["/bin/sh", "-c", check["command"]["value"]]
            try:
                return container is not None and container.exec_run(command).exit_code == 0
            except APIError:  # it has ended
                return False
        port = check.get("port") or task.notes.get("ports", [0])[check.get("portIndex", 0)]
        try:
            url = f"http://127.0.0.1:{port}{check.get('path', '/')}"
            return requests.get(url, timeout=check.get("timeoutSeconds", 20)).status_code < 400
        except requests.RequestException:
            return False

    def _set(self, app: App, spec: Answer, deployment: Deployment) -> None:
        app.spec = {**DEFAULTS, **spec, "version": deployment.version}
        app.versions[deployment.version] = app.spec
        self.deployments.append(deployment)

    def _lock_out(self, app_id: str, *, force: bool) -> None:
        locking = [deployment for deployment in self.deployments if deployment.app_id == app_id]
        if locking and not force:
            raise HTTPError(
                409,
                {
                    "message": LOCKED,
                    "deployments": [{"id": deployment.id} for deployment in locking],
                },
            )
        for deployment in locking:
            self.deployments.remove(deployment)
            self.emit("deployment_failed", id=deployment.id)

    def _finish(self, app: App) -> None:
        for deployment in [
            deployment for deployment in self.deployments if deployment.app_id == app.spec["id"]
        ]:
            self.deployments.remove(deployment)
            self.emit("deployment_success", id=deployment.id)
        if app.is_deleted:
            self.apps.pop(app.spec["id"], None)
            self.emit("app_terminated_event", appId=app.spec["id"])

    # Answers

    def app_answer(self, app: App, *, embed: set[str]) -> Answer:
        """Return an app as the API shows it."""
        running = [task for task in app.tasks if task.state == "TASK_RUNNING"]
        healthy = [task for task in running if _is_ready(task, app.spec)]
        answer = {
            **app.spec,
            "versionInfo": {
                "lastScalingAt": app.spec["version"], "lastConfigChangeAt": app.config_version,
            },
            "unreachableStrategy": {"inactiveAfterSeconds": 0, "expungeAfterSeconds": 0},
        }  # fmt: skip
        if self.release >= (1, 9):
            answer["tty"], answer["resourceLimits"] = None, None
        if "counts" in embed:
            answer |= {
                "tasksStaged": len(app.tasks) - len(running), "tasksRunning": len(running),
                "tasksHealthy": len(healthy) if app.spec["healthChecks"] else 0,
                "tasksUnhealthy": len(running) - len(healthy),
            }  # fmt: skip
        if "deployments" in embed:
            own = [
                deployment for deployment in self.deployments if deployment.app_id == app.spec["id"]
            ]
            answer["deployments"] = [{"id": deployment.id} for deployment in own]
        if "tasks" in embed:
            answer["tasks"] = [self.task_answer(task) for task in app.tasks]
        if "lastTaskFailure" in embed and app.last_failure is not None:
            answer["lastTaskFailure"] = app.last_failure
        return answer

    def task_answer(self, task: Task) -> Answer:
        """Return a task as the API shows it."""
        answer = {
            "id": task.id, "appId": task.notes["app"], "host": self.cluster.hostname,
            "slaveId": self.cluster.agent_id, "ports": task.notes.get("ports", []),
            "state": "TASK_KILLING" if task.is_killed and not task.is_final else task.state,
            "stagedAt": task.staged_at, "startedAt": task.started_at,
            "version": task.notes["config"], "ipAddresses": [],
            "healthCheckResults": task.notes.get("health", []),
        }  # fmt: skip
        return answer | ({"checkResult": None} if self.release >= (1, 9) else {})

    def deployment_answers(self) -> list[Answer]:
        """Return the deployments as the API shows them."""
        ids = dict.fromkeys(part.id for part in self.deployments)
        return [
            _deployment_answer([part for part in self.deployments if part.id == deployment_id])
            for deployment_id in ids
        ]

    def queue_answer(self) -> list[Answer]:
        """Return the apps that wait for a launch, with the reasons."""
        items = []
        for app in self.apps.values():
            missing = int(app.spec["instances"]) - len(app.tasks)
            if missing <= 0:
                continue
            seconds_left = max(0, math.ceil(app.launch_at - time.monotonic()))
            names = (
                "UnfulfilledRole", "UnfulfilledConstraint", "NoCorrespondingReservationFound",
                "InsufficientCpus", "InsufficientMemory", "InsufficientDisk", "InsufficientGpus",
                "InsufficientPorts", "DeclinedScarceResources",
            )  # fmt: skip
            rejected = [
                {"reason": name, "declined": app.declined.get(name, 0), "processed": app.processed}
                for name in names
            ]
            item = {
                "app": app.spec, "count": missing,
                "delay": {"timeLeftSeconds": seconds_left, "overdue": seconds_left == 0},
                "since": app.since,
                "processedOffersSummary": {
                    "processedOffersCount": app.processed,
                    "unusedOffersCount": sum(app.declined.values()),
                    "rejectSummaryLastOffers": rejected, "rejectSummaryLaunchAttempt": rejected,
                },
            }  # fmt: skip
            items.append(item | ({"role": "*"} if self.release >= (1, 9) else {}))
        return items


def task_request(spec: Answer, *, release: tuple[int, ...]) -> TaskRequest:
    """Return what an app's task asks of the agent."""
    container = spec.get("container") or {}
    docker = container.get("docker") or {}
    modes = {
        network.get("mode", "container") for network in spec.get("networks") or [{"mode": "host"}]
    }
    is_host = "host" in modes if release >= (1, 5) else docker.get("network", "HOST") == "HOST"
    return TaskRequest(
        cpus=float(spec["cpus"]), mem=float(spec["mem"]), gpus=int(spec["gpus"]),
        image=docker.get("image", ""), containerizer=container.get("type", "MESOS"),
        force_pull=bool(docker.get("forcePullImage")), shell=spec.get("cmd") or "",
        args=spec.get("args") or [], env=spec["env"], constraints=spec["constraints"],
        roles=spec.get("acceptedResourceRoles") or [], has_host_network=is_host,
    )  # fmt: skip


def _is_ready(task: Task, spec: Answer) -> bool:
    if task.state != "TASK_RUNNING":
        return False
    if not spec["healthChecks"]:
        return True
    results = task.notes.get("health") or []
    return bool(results) and all(result["alive"] for result in results)


def together(parts: list[Deployment]) -> Deployment:
    """Make changes of several apps one deployment."""
    for part in parts:
        part.id, part.version = parts[0].id, parts[0].version
    return parts[0]


def _deployment_answer(parts: list[Deployment]) -> Answer:
    actions = [
        {"action": part.action, "app": part.app_id, "readinessCheckResults": []} for part in parts
    ]
    return {
        "id": parts[0].id, "version": parts[0].version,
        "affectedApps": [part.app_id for part in parts], "affectedPods": [],
        "steps": [{"actions": actions}], "currentActions": actions,
        "currentStep": 1, "totalSteps": 1,
    }  # fmt: skip
