"""Attempts as containers of a Docker engine.

Containers have the attempt's id as a label and continue when the agent restarts; it finds them by
that label. `docker_launch` has the phase before a container exists.
"""

import logging
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import docker
import msgspec
import requests
from docker.errors import APIError, DockerException, NotFound

from core.clock import Clock, to_ns, utc_now
from jobqueue.executors.base import (
    ATTEMPT_LABEL,
    OWNER_LABEL,
    AttemptUsage,
    Challenges,
    ExecSession,
    ExecutorError,
    ExecutorUnavailableError,
    ImageError,
    NoExecError,
    Probe,
)
from jobqueue.executors.confinement import PIDS_LIMIT
from jobqueue.executors.docker import mapping
from jobqueue.executors.docker.challenge import DockerChallenges
from jobqueue.executors.docker.health import ContainerHealth
from jobqueue.executors.docker.launch import Launches
from jobqueue.executors.docker.logs import LogSpool
from jobqueue.executors.docker.own_containers import MACHINES, DockerProbe, OwnContainers
from jobqueue.executors.docker.pull import PullError
from jobqueue.executors.docker.storage import DockerStorage
from jobqueue.executors.pull_failures import pull_failure
from jobqueue.executors.registry_token import CurrentRegistryToken
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StopReason

log = logging.getLogger(__name__)

DEFAULT_URL = "unix:///var/run/docker.sock"
CALL_TIMEOUT_SECONDS = 30
# An ended container is reported when no more output arrives for this time.
OUTPUT_TIMEOUT_SECONDS = 5.0


class DockerExecutor:
    """Runs attempts on a Docker engine, GPUs given by UUID.

    `owner` is the appliance's id, by which this agent knows its own containers. `spool_dir` is the
    folder of their output; `docker_config` the `config.json` with the credentials of registries, by
    default that of this user. Those of the portal's registry are in `registry_token`.
    """

    name = "docker"
    names: Sequence[str] = (name,)

    def __init__(
        self,
        *,
        owner: str,
        spool_dir: Path,
        url: str = DEFAULT_URL,
        clock: Clock = utc_now,
        log_limit_bytes: int = SPOOL_LIMIT_BYTES,
        pids_limit: int = PIDS_LIMIT,
        docker_config: Path | None = None,
        registry_token: CurrentRegistryToken | None = None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._owner = owner
        self._docker_config = docker_config
        registry_token = registry_token or CurrentRegistryToken()
        self._storage = DockerStorage(self._client, spool_dir / "images.json", clock)
        self._spool = LogSpool(spool_dir, limit_bytes=log_limit_bytes)
        self._lock = Lock()
        self._connected: Any = None
        self._container_ids: Mapping[str, str] = {}
        self._launches = Launches(
            self._client,
            self._storage,
            self._spool,
            owner=owner,
            registry_token=registry_token,
            pids_limit=pids_limit,
            clock=clock,
        )
        containers = OwnContainers(
            client=self._client, owner=owner, registry_token=registry_token, pids_limit=pids_limit
        )
        self._probe, self._challenges = DockerProbe(containers), DockerChallenges(containers)
        self._stop_threads: dict[str, Thread] = {}
        self._health = ContainerHealth()
        self._output_seen: dict[str, tuple[int, float]] = {}
        self._last_stats: dict[str, Any] = {}

    def start(self, spec: AttemptSpec) -> None:
        """Pull the image if need be, then create and start the container, in the background."""
        self._spool.path(spec.attempt_id)
        is_known = spec.attempt_id in self._launches.observe()
        if not is_known and self._container(spec.attempt_id) is None:
            self._launches.begin(spec)

    def pull_image(
        self, spec: AttemptSpec, on_progress: Callable[[str], bool], note: Callable[..., None]
    ) -> None:
        """Pull the image of an attempt if the engine lacks it."""
        try:
            self._launches.pull_if_missing(spec, on_progress, note)
        except PullError as error:
            raise ImageError(*pull_failure(spec.image, str(error))) from error
        except (APIError, OSError) as error:
            raise ExecutorError(mapping.explain(error)) from error

    def stop(
        self, attempt_id: str, *, grace_seconds: float, reason: StopReason = StopReason.USER
    ) -> None:
        """Cancel the launch, or have the engine stop the container in the background."""
        self._launches.cancel(attempt_id, reason)
        container = self._container(attempt_id)
        running = self._stop_threads.get(attempt_id)
        if running is not None and running.is_alive():
            return
        if container is None or container.status in {"exited", "dead"}:
            return
        self._spool.mark_stopped(attempt_id, reason)
        grace_seconds = float(container.labels.get(mapping.STOP_GRACE_LABEL, grace_seconds))
        thread = Thread(target=_stop_container, args=(container, grace_seconds), daemon=True)
        self._stop_threads[attempt_id] = thread
        thread.start()

    def observe(self) -> list[AttemptObservation]:
        """Return the attempts with containers, and those in launch or with a failed launch."""
        observed = {}
        launches = self._launches.observe()
        restarting = self._health.restarting()
        containers = self._containers()
        self._container_ids = {seen.id: seen.labels[ATTEMPT_LABEL] for seen in containers}
        for container in containers:
            attempt_id = container.labels[ATTEMPT_LABEL]
            # The engine calls a container exited that could not start; the launch knows why.
            seen = launches.get(attempt_id) or self._observe(attempt_id, container)
            observed[attempt_id] = restarting.get(attempt_id, seen)
        return list((launches | observed).values())

    def container_ids(self) -> Mapping[str, str]:
        """Return the containers of the last `observe`."""
        return self._container_ids

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return the container's output from the spool."""
        return self._spool.read(attempt_id, offset=offset, limit=limit)

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return CPU since the last call and memory now; takes a few milliseconds."""
        container = self._container(attempt_id)
        if container is None or container.status != "running":
            self._last_stats.pop(attempt_id, None)
            return None
        started_at_ns = mapping.engine_time_ns(container.attrs["State"]["StartedAt"]) or 0
        stats = self._call(
            lambda: container.client.api.stats(container.id, stream=False, one_shot=True)
        )
        before = self._last_stats.get(attempt_id)
        self._last_stats[attempt_id] = stats
        return mapping.usage_between(stats, before, started_at_ns=started_at_ns)

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        """Run a command in the container, with its user, environment and folder."""
        # Load modules for tunnels only when they are used.
        import asyncio  # noqa: PLC0415

        from jobqueue.executors.docker.exec import run_in_container  # noqa: PLC0415

        container = await asyncio.to_thread(self._container, attempt_id)
        if container is None:
            raise NoExecError("The job has no container now.")
        return await run_in_container(container.client.api, self._url, container.id, session)

    def remove(self, attempt_id: str) -> None:
        """Delete the container, its spool and its launch."""
        container = self._container(attempt_id)
        if container is not None:
            try:
                self._call(lambda: container.remove(force=True, v=True))
            except _MissingError:
                log.debug("the container of %s was already deleted", attempt_id)
        self._spool.remove(attempt_id)
        self._health.forget(attempt_id)
        self._launches.forget(attempt_id)
        self._stop_threads.pop(attempt_id, None)
        self._output_seen.pop(attempt_id, None)
        self._last_stats.pop(attempt_id, None)

    def storage(self) -> DockerStorage:
        """Return the images and stopped containers of the engine."""
        return self._storage

    def probe(self) -> Probe | None:
        """Return what runs probes on the engine; None on processors that it has no program for."""
        return self._probe.run if platform.machine() in MACHINES else None

    def challenges(self) -> Challenges | None:
        """Return what runs challenges on the engine."""
        return self._challenges

    def close(self) -> None:
        """Stop following output and disconnect; containers continue."""
        self._spool.close()
        self._health.close()
        with self._lock:
            client, self._connected = self._connected, None
        if client is not None:
            client.close()

    def _observe(self, attempt_id: str, container: Any) -> AttemptObservation:  # noqa: ANN401 - untyped SDK object
        stop_reason = self._spool.stop_reason(attempt_id)
        observation = mapping.observe_container(
            attempt_id, container.attrs, stop_reason=stop_reason
        )
        if observation.state is ObservedState.STARTING:
            # An earlier run of the agent created it but did not start it.
            return self._start_again(container, observation)
        self._spool.follow(attempt_id, container)
        if observation.state is ObservedState.RUNNING and stop_reason is None:
            return self._health.observed(observation, container)
        is_open = mapping.is_cause_open(observation, now_ns=to_ns(self._clock()))
        if observation.state.is_final and (is_open or not self._has_all_output(attempt_id)):
            return AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.RUNNING,
                started_at_ns=observation.started_at_ns,
            )
        return observation

    def _start_again(
        self,
        container: Any,  # noqa: ANN401 - untyped SDK object
        observation: AttemptObservation,
    ) -> AttemptObservation:
        try:
            self._call(container.start)
        except ExecutorUnavailableError:
            raise
        except ExecutorError as error:
            if not mapping.joins_network(container.attrs):
                raise
            # Its sandbox ended with the engine or the host.
            return msgspec.structs.replace(
                observation,
                state=ObservedState.FAILED,
                reason="network_failed",
                message=f"The network of its gang is gone: {error}",
            )
        return observation

    def _has_all_output(self, attempt_id: str) -> bool:
        """Return whether an ended attempt's output is complete, or has stopped arriving."""
        if self._spool.is_complete(attempt_id):
            return True
        size, now = self._spool.size_bytes(attempt_id), time.monotonic()
        last_size, since = self._output_seen.get(attempt_id, (-1, now))
        if size != last_size:
            self._output_seen[attempt_id] = (size, now)
            return False
        return now - since > OUTPUT_TIMEOUT_SECONDS

    def _container(self, attempt_id: str) -> Any:  # noqa: ANN401 - untyped SDK object
        try:
            return self._call(
                lambda: self._client().containers.get(mapping.container_name(attempt_id))
            )
        except _MissingError:
            return None

    def _containers(self) -> list[Any]:
        labels = [ATTEMPT_LABEL, f"{OWNER_LABEL}={self._owner}"]
        options = {"all": True, "filters": {"label": labels}, "ignore_removed": True}
        return list(self._call(lambda: self._client().containers.list(**options)))

    def _call(self, call: Any) -> Any:  # noqa: ANN401 - the SDK has no types
        try:
            return call()
        except NotFound as error:
            raise _MissingError(mapping.explain(error)) from error
        except APIError as error:
            message = f"The Docker engine returned an error: {mapping.explain(error)}"
            raise ExecutorError(message) from error
        except (DockerException, requests.RequestException) as error:
            message = f"The Docker engine at {self._url} does not answer: {error}"
            raise ExecutorUnavailableError(message) from error

    def _client(self) -> Any:  # noqa: ANN401 - the SDK has no types
        with self._lock:
            if self._connected is None:
                try:
                    if self._url.startswith("unix://"):  # the SDK leaks a socket if none listens
                        with socket.socket(socket.AF_UNIX) as probe:
                            probe.connect(self._url.removeprefix("unix://"))
                    self._connected = docker.DockerClient(
                        base_url=self._url, timeout=CALL_TIMEOUT_SECONDS
                    )
                    if self._docker_config is not None:
                        self._connected.api.reload_config(str(self._docker_config))
                except (OSError, DockerException) as error:
                    raise ExecutorUnavailableError(
                        f"The Docker engine at {self._url} does not answer: {error}"
                    ) from error
            return self._connected


class _MissingError(ExecutorError):
    """The engine has no such container."""


def _stop_container(container: Any, grace_seconds: float) -> None:  # noqa: ANN401 - untyped SDK
    try:
        container.stop(timeout=max(0, round(grace_seconds)))
    except (DockerException, requests.RequestException) as error:
        log.warning("can't stop container %s, retrying: %s", container.name, error)
