"""One Mesos agent: its resources, offers, tasks as Docker containers, and their sandboxes.

Messages of tasks are those of Mesos 1.9 (`src/launcher/executor.cpp`, `src/docker/executor.cpp`).
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, RLock, Thread
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

FINAL = frozenset({"TASK_FINISHED", "TASK_FAILED", "TASK_KILLED", "TASK_ERROR"})
SIGNAL_BASE, KILLED_CODE = 128, 137
# Where a sandbox would be on the agent; only its name matters here.
SANDBOXES = "/var/lib/mesos/slaves"
NANO = 1_000_000_000
MEBIBYTE = 2**20


def timestamp(at: datetime | None = None) -> str:
    """Return an instant as the Mesos frameworks write it."""
    return f"{at or datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A task that a framework wants to run; `shell` is run by /bin/sh, else `args` by the image."""

    cpus: float
    mem: float
    gpus: int = 0
    image: str
    containerizer: str = "MESOS"
    shell: str = ""
    args: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    has_host_network: bool = False
    force_pull: bool = False
    constraints: list[list[str]] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Task:
    """One task; its sandbox has the files `stdout` and `stderr`."""

    id: str
    framework: str
    request: TaskRequest
    on_update: Callable[["Task"], None]
    directory: str
    state: str = "TASK_STAGING"
    message: str = ""
    staged_at: str = field(default_factory=timestamp)
    started_at: str | None = None
    finished_at: str | None = None
    container: Any = None
    is_killed: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    # The framework's notes about it.
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Return whether it has ended."""
        return self.state in FINAL


class Cluster:
    """The agent's resources and tasks."""

    def __init__(
        self, docker_url: str, *, cpus: float, mem: float, gpus: int, hostname: str = "localhost"
    ) -> None:
        self.client = docker.DockerClient(base_url=docker_url)
        self.cpus, self.mem, self.gpus, self.hostname = cpus, mem, gpus, hostname
        self.agent_id = f"{uuid.uuid4()}-S0"
        self.tasks: dict[str, Task] = {}
        self.lock = RLock()
        self.closing = Event()

    def rejections(self, request: TaskRequest) -> list[str]:
        """Return why the agent's offer doesn't fit a request, in Marathon's words."""
        with self.lock:
            used = [task.request for task in self.tasks.values() if not task.is_final]
        checks = {
            "UnfulfilledRole": bool(request.roles) and "*" not in request.roles,
            "UnfulfilledConstraint": any(
                self._is_unmet(constraint) for constraint in request.constraints
            ),
            "InsufficientCpus": request.cpus > self.cpus - sum(other.cpus for other in used),
            "InsufficientMemory": request.mem > self.mem - sum(other.mem for other in used),
            "InsufficientGpus": request.gpus > self.gpus - sum(other.gpus for other in used),
        }
        return [reason for reason, is_unmet in checks.items() if is_unmet]

    def launch(
        self,
        task_id: str,
        request: TaskRequest,
        *,
        framework: str,
        on_update: Callable[[Task], None],
    ) -> Task:
        """Start a task; `on_update` hears of each change of its state."""
        directory = (
            f"{SANDBOXES}/{self.agent_id}/frameworks/{framework}/executors/{task_id}"
            f"/runs/{uuid.uuid4()}"
        )
        task = Task(
            id=task_id, framework=framework, request=request, on_update=on_update,
            directory=directory,
        )  # fmt: skip
        with self.lock:
            self.tasks[task_id] = task
        Thread(target=self._run, args=(task,), daemon=True).start()
        return task

    def kill(self, task: Task, *, grace_seconds: float = 3.0) -> None:
        """Kill a task: SIGTERM, then SIGKILL after the grace."""
        with self.lock:
            if task.is_killed or task.is_final:
                return
            task.is_killed = True
            container = task.container
        if container is not None:
            Thread(target=self._stop, args=(container, grace_seconds), daemon=True).start()

    def read(self, task: Task, name: str) -> bytes:
        """Return a file of the sandbox."""
        with self.lock:
            container, recorded = task.container, task.stdout if name == "stdout" else task.stderr
        if container is None:
            return recorded
        try:
            output: bytes = container.logs(stdout=name == "stdout", stderr=name == "stderr")
        except NotFound:
            return task.stdout if name == "stdout" else task.stderr
        return output

    def statistics(self, task: Task) -> dict[str, Any] | None:
        """Return the resource statistics of a running task."""
        if task.container is None or task.state != "TASK_RUNNING":
            return None
        try:
            stats = self.client.api.stats(task.container.id, stream=False, one_shot=True)
            usage = stats["cpu_stats"]["cpu_usage"]["total_usage"]
            memory = stats["memory_stats"]["usage"]
        except (KeyError, DockerException, requests.RequestException):
            return None  # it has just ended
        return {
            "cpus_limit": task.request.cpus,
            "cpus_user_time_secs": usage / NANO,
            "cpus_system_time_secs": 0.0,
            "mem_limit_bytes": int(task.request.mem * MEBIBYTE),
            "mem_rss_bytes": memory,
            "timestamp": time.time(),
        }

    def close(self) -> None:
        """Kill all tasks and disconnect."""
        self.closing.set()
        with self.lock:
            containers = [
                task.container for task in self.tasks.values() if task.container is not None
            ]
        for container in containers:
            with contextlib.suppress(DockerException):
                container.remove(force=True)
        self.client.close()

    def _is_unmet(self, constraint: list[str]) -> bool:
        name, operator, value = [*constraint, "", ""][:3]
        own = {"hostname": self.hostname, "@hostname": self.hostname}.get(name)
        return operator in {"CLUSTER", "IS", "LIKE", "EQUALS"} and bool(value) and own != value

    def _run(self, task: Task) -> None:
        try:
            container = self._create(task)
            if container is None:
                return
            with self.lock:
                task.container = container
                is_killed = task.is_killed
            if is_killed:
                container.remove(force=True)
                task.container = None
                self._update(task, "TASK_KILLED", "Container destroyed while preparing")
                return
            container.start()
            task.started_at = timestamp()
            self._update(task, "TASK_RUNNING", "")
            if task.is_killed:
                self._stop(container, 0)
            self._end(task, container, int(container.wait(timeout=None)["StatusCode"]))
        except APIError as error:
            self._discard(task)
            text = str(error.explanation)
            code = 127 if "executable file not found" in text or "no such file" in text else 125
            noun = "Container" if task.request.containerizer == "DOCKER" else "Command"
            task.stderr = f"docker: Error response from daemon: {text}.\n".encode()
            self._update(task, "TASK_FAILED", f"{noun} exited with status {code}")
        except (DockerException, requests.RequestException):
            if not self.closing.is_set():
                raise

    def _create(self, task: Task) -> Any:  # noqa: ANN401 - untyped SDK object
        request = task.request
        try:
            if request.force_pull or not self._has_image(request.image):
                self.client.images.pull(request.image)
        except APIError as error:
            self._update(task, "TASK_FAILED", _pull_message(request, str(error.explanation)))
            return None
        shell = ["/bin/sh", "-c", request.shell] if request.shell else None
        return self.client.containers.create(
            request.image,
            command=shell or request.args or None,
            # Mesos runs a shell command without the image's entrypoint.
            entrypoint=[] if shell else None,
            name=f"mesos-{uuid.uuid4()}",
            environment={
                **request.env,
                "MESOS_TASK_ID": task.id,
                "MESOS_SANDBOX": "/mnt/mesos/sandbox",
            },
            mem_limit=int(request.mem * MEBIBYTE),
            memswap_limit=int(request.mem * MEBIBYTE),
            nano_cpus=int(request.cpus * NANO),
            network_mode="host" if request.has_host_network else None,
        )

    def _has_image(self, image: str) -> bool:
        try:
            self.client.images.get(image)
        except NotFound:
            return False
        return True

    def _end(self, task: Task, container: Any, code: int) -> None:  # noqa: ANN401
        container.reload()
        is_out_of_memory = container.attrs["State"].get("OOMKilled", False)
        noun = "Container" if task.request.containerizer == "DOCKER" else "Command"
        how = f"exited with status {code}"
        if code == KILLED_CODE:
            how = "terminated with signal Killed"
        message, state = f"{noun} {how}", "TASK_FAILED" if code else "TASK_FINISHED"
        if task.is_killed:
            state = "TASK_KILLED"
        elif is_out_of_memory:
            message = (
                f"Memory limit exceeded: Requested: {task.request.mem:.0f}MB Maximum Used: "
                f"{task.request.mem:.0f}MB"
            )
        line = f"I1122 17:00:00.000000     7 executor.cpp:1003] {message} (pid: 12)\n"
        with self.lock:
            task.stdout = container.logs(stdout=True, stderr=False)
            task.stderr = container.logs(stdout=False, stderr=True) + line.encode()
        self._discard(task)
        self._update(task, state, message)

    def _discard(self, task: Task) -> None:
        with self.lock:
            container, task.container = task.container, None
        if container is not None:
            with contextlib.suppress(APIError):
                container.remove(force=True)

    def _stop(self, container: Any, grace_seconds: float) -> None:  # noqa: ANN401
        with contextlib.suppress(DockerException, requests.RequestException):
            container.stop(timeout=max(0, round(grace_seconds)))

    def _update(self, task: Task, state: str, message: str) -> None:
        with self.lock:
            task.state, task.message = state, message
            if task.is_final:
                task.finished_at = timestamp()
        task.on_update(task)


def _pull_message(request: TaskRequest, text: str) -> str:
    if request.containerizer == "DOCKER":
        return (
            f"Failed to launch container: Failed to run 'docker -H "
            f"unix:///var/run/docker.sock pull {request.image}': exited with status 1; "
            f"stderr='Error response from daemon: {text}'"
        )
    return (
        "Failed to launch container: Unexpected HTTP response '404 Not Found' when trying to "
        f"get the manifest of {request.image}"
    )
