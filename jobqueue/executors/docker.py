"""Attempts as containers of a Docker engine.

Containers carry the attempt's id as a label and go on running when the agent restarts; it finds
them again by that label. A *launch* is the time before a container exists: its image is pulled in
a thread of its own, and what goes wrong there is kept as the attempt's end.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from core.clock import Clock, to_ns, utc_now
from jobqueue.executors.base import (
    ATTEMPT_LABEL,
    AttemptObservation,
    AttemptSpec,
    AttemptUsage,
    ExecutorError,
    ExecutorUnavailableError,
    ObservedState,
)
from jobqueue.executors.docker_logs import SPOOL_LIMIT_BYTES, LogSpool
from jobqueue.executors.docker_mapping import (
    container_name,
    container_options,
    engine_time_ns,
    observe_container,
    pull_fault,
    start_fault,
    usage_between,
)

log = logging.getLogger(__name__)

DEFAULT_URL = "unix:///var/run/docker.sock"
CALL_TIMEOUT_SECONDS = 30
# How long an ended container's output may stand still before its end is reported.
OUTPUT_PATIENCE_SECONDS = 5.0
STOPPED_EARLY = "The attempt was stopped before its container was started."


@dataclass(slots=True)
class _Launch:
    spec: AttemptSpec
    outcome: AttemptObservation
    is_cancelled: bool = field(default=False)


class DockerExecutor:
    """Runs attempts on a Docker engine, GPUs given by UUID.

    Args:
        url: the engine, such as `unix:///var/run/docker.sock`.
        spool_dir: where the containers' output is kept for the portal.
        clock: says when an attempt that never had a container has ended.
    """

    name = "docker"

    def __init__(
        self,
        *,
        spool_dir: Path,
        url: str = DEFAULT_URL,
        clock: Clock = utc_now,
        log_limit_bytes: int = SPOOL_LIMIT_BYTES,
    ) -> None:
        self._clock = clock
        self._url = url
        self._spool = LogSpool(spool_dir, limit_bytes=log_limit_bytes)
        self._lock = Lock()
        self._connected: Any = None
        self._container_ids: Mapping[str, str] = {}
        self._launches: dict[str, _Launch] = {}
        self._stop_threads: dict[str, Thread] = {}
        self._output_seen: dict[str, tuple[int, float]] = {}
        self._last_stats: dict[str, Any] = {}

    def start(self, spec: AttemptSpec) -> None:
        """Pull the image if need be, then create and start the container, in the background."""
        self._spool.path(spec.attempt_id)
        with self._lock:
            if spec.attempt_id in self._launches:
                return
        if self._container(spec.attempt_id) is not None:
            return
        launch = _Launch(
            spec, AttemptObservation(attempt_id=spec.attempt_id, state=ObservedState.STARTING)
        )
        with self._lock:
            self._launches[spec.attempt_id] = launch
        Thread(target=self._launch, args=(launch,), name="docker-launch", daemon=True).start()

    def stop(self, attempt_id: str, *, grace_seconds: float) -> None:
        """Cancel the launch, or have the engine stop the container in the background."""
        with self._lock:
            launch = self._launches.get(attempt_id)
            if launch is not None and not launch.outcome.state.is_final:
                launch.is_cancelled = True
        container = self._container(attempt_id)
        running = self._stop_threads.get(attempt_id)
        if container is None or (running is not None and running.is_alive()):
            return
        if container.status in {"exited", "dead"}:
            return
        self._spool.mark_stopped(attempt_id)
        thread = Thread(target=_stop_container, args=(container, grace_seconds), daemon=True)
        self._stop_threads[attempt_id] = thread
        thread.start()

    def observe(self) -> list[AttemptObservation]:
        """Return the attempts that have containers, and those whose launch goes on or failed."""
        observed = {}
        containers = self._containers()
        self._container_ids = {seen.id: seen.labels[ATTEMPT_LABEL] for seen in containers}
        for container in containers:
            observation = self._observe(container)
            observed[observation.attempt_id] = observation
        with self._lock:
            for attempt_id, launch in self._launches.items():
                observed.setdefault(attempt_id, _launch_observation(launch))
        return list(observed.values())

    def container_ids(self) -> Mapping[str, str]:
        """Return the containers that were listed last."""
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
        started_at_ns = engine_time_ns(container.attrs["State"]["StartedAt"]) or 0
        stats = self._ask(
            lambda: container.client.api.stats(container.id, stream=False, one_shot=True)
        )
        before = self._last_stats.get(attempt_id)
        self._last_stats[attempt_id] = stats
        return usage_between(stats, before, started_at_ns=started_at_ns)

    def remove(self, attempt_id: str) -> None:
        """Delete the container, its spool and what is known of its launch."""
        container = self._container(attempt_id)
        if container is not None:
            try:
                self._ask(lambda: container.remove(force=True, v=True))
            except _MissingError:
                log.debug("the container of %s was gone already", attempt_id)
        self._spool.remove(attempt_id)
        with self._lock:
            self._launches.pop(attempt_id, None)
        self._stop_threads.pop(attempt_id, None)
        self._output_seen.pop(attempt_id, None)
        self._last_stats.pop(attempt_id, None)

    def close(self) -> None:
        """Stop following output and leave the engine; containers go on."""
        self._spool.close()
        with self._lock:
            client, self._connected = self._connected, None
        if client is not None:
            client.close()

    def _observe(self, container: Any) -> AttemptObservation:  # noqa: ANN401 - untyped SDK object
        attempt_id = container.labels[ATTEMPT_LABEL]
        is_stop_asked = self._spool.is_marked_stopped(attempt_id)
        observation = observe_container(attempt_id, container.attrs, is_stop_asked=is_stop_asked)
        if observation.state is ObservedState.STARTING:
            return self._observe_created(attempt_id, container, observation)
        self._spool.follow(attempt_id, container)
        if observation.state.is_final and not self._has_all_output(attempt_id):
            return AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.RUNNING,
                started_at_ns=observation.started_at_ns,
            )
        return observation

    def _observe_created(
        self,
        attempt_id: str,
        container: Any,  # noqa: ANN401 - untyped SDK object
        observation: AttemptObservation,
    ) -> AttemptObservation:
        """Start a container that an earlier agent created and did not come to start."""
        with self._lock:
            launch = self._launches.get(attempt_id)
        if launch is not None:
            return _launch_observation(launch)
        self._ask(container.start)
        return observation

    def _has_all_output(self, attempt_id: str) -> bool:
        """Return whether no more of an ended attempt's output is to come, or none came for long."""
        if self._spool.is_complete(attempt_id):
            return True
        size, now = self._spool.size_bytes(attempt_id), time.monotonic()
        last_size, since = self._output_seen.get(attempt_id, (-1, now))
        if size != last_size:
            self._output_seen[attempt_id] = (size, now)
            return False
        return now - since > OUTPUT_PATIENCE_SECONDS

    def _launch(self, launch: _Launch) -> None:
        """Bring the container up; a fault becomes the attempt's end."""
        try:
            self._pull_if_missing(launch.spec.image)
            if launch.is_cancelled:
                self._end_launch(launch, ObservedState.STOPPED, "stopped_by_user", STOPPED_EARLY)
                return
            self._create_and_start(launch)
        except ImageNotFound as error:
            fault = pull_fault(launch.spec.image, _explain(error))
            self._end_launch(launch, ObservedState.FAILED, *fault)
        except (APIError, requests.RequestException, ExecutorError) as error:
            # The engine broke off; without its launch the attempt is unknown and started afresh.
            log.warning("attempt %s not launched: %s", launch.spec.attempt_id, _explain(error))
            with self._lock:
                self._launches.pop(launch.spec.attempt_id, None)

    def _pull_if_missing(self, image: str) -> None:
        client = self._client()
        try:
            client.images.get(image)
        except ImageNotFound:
            log.info("pulling %s", image)
            try:
                _pull(client, image)
            except APIError as error:
                raise ImageNotFound(str(error), explanation=_explain(error)) from error

    def _create_and_start(self, launch: _Launch) -> None:
        spec = launch.spec
        try:
            container = self._client().containers.create(**container_options(spec))
        except APIError as error:
            if error.status_code != requests.codes.conflict:
                self._end_launch(launch, ObservedState.FAILED, *start_fault(_explain(error)))
                return
            log.info("the container of attempt %s exists already", spec.attempt_id)
        else:
            if not self._start_container(launch, container):
                return
            self._spool.follow(spec.attempt_id, container)
        with self._lock:
            self._launches.pop(spec.attempt_id, None)

    def _start_container(self, launch: _Launch, container: Any) -> bool:  # noqa: ANN401
        """Return whether it runs; one that does not is deleted before its end is told."""
        outcome = (ObservedState.STOPPED, "stopped_by_user", STOPPED_EARLY)
        if not launch.is_cancelled:
            try:
                container.start()
            except APIError as error:
                outcome = (ObservedState.FAILED, *start_fault(_explain(error)))
            else:
                return True
        with contextlib.suppress(APIError):
            container.remove(force=True)
        self._end_launch(launch, *outcome)
        return False

    def _end_launch(self, launch: _Launch, state: ObservedState, reason: str, message: str) -> None:
        outcome = AttemptObservation(
            attempt_id=launch.spec.attempt_id,
            state=state,
            reason=reason,
            message=message,
            finished_at_ns=to_ns(self._clock()),
        )
        with self._lock:
            launch.outcome = outcome

    def _container(self, attempt_id: str) -> Any:  # noqa: ANN401 - untyped SDK object
        try:
            return self._ask(lambda: self._client().containers.get(container_name(attempt_id)))
        except _MissingError:
            return None

    def _containers(self) -> list[Any]:
        filters = {"label": ATTEMPT_LABEL}
        found = self._ask(
            lambda: self._client().containers.list(all=True, filters=filters, ignore_removed=True)
        )
        return list(found)

    def _ask(self, call: Any) -> Any:  # noqa: ANN401 - the SDK has no types
        try:
            return call()
        except NotFound as error:
            raise _MissingError(_explain(error)) from error
        except APIError as error:
            raise ExecutorError(f"The Docker engine refused: {_explain(error)}") from error
        except (DockerException, requests.RequestException) as error:
            raise ExecutorUnavailableError(f"{self._url} does not answer: {error}") from error

    def _client(self) -> Any:  # noqa: ANN401 - the SDK has no types
        with self._lock:
            if self._connected is None:
                if not _listens(self._url):
                    raise ExecutorUnavailableError(f"No Docker engine listens at {self._url}")
                try:
                    self._connected = docker.DockerClient(
                        base_url=self._url, timeout=CALL_TIMEOUT_SECONDS
                    )
                except DockerException as error:
                    raise ExecutorUnavailableError(
                        f"The Docker engine at {self._url} does not answer: {error}"
                    ) from error
            return self._connected


class _MissingError(ExecutorError):
    """The engine has no such container."""


def _listens(url: str) -> bool:
    """Return whether somebody takes connections; the SDK leaks a socket where nobody does."""
    if not url.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(url.removeprefix("unix://")) == 0


def _launch_observation(launch: _Launch) -> AttemptObservation:
    if launch.is_cancelled and not launch.outcome.state.is_final:
        return AttemptObservation(
            attempt_id=launch.spec.attempt_id,
            state=ObservedState.STOPPED,
            reason="stopped_by_user",
            message=STOPPED_EARLY,
        )
    return launch.outcome


def _pull(client: Any, image: str) -> None:  # noqa: ANN401 - the SDK has no types
    """Pull one image; the tag `latest` when none is named, never all tags."""
    last_part = image.rsplit("/", 1)[-1]
    is_exact = ":" in last_part or "@" in last_part
    client.images.pull(image if is_exact else f"{image}:latest")


def _stop_container(container: Any, grace_seconds: float) -> None:  # noqa: ANN401 - untyped SDK
    try:
        container.stop(timeout=max(0, round(grace_seconds)))
    except (DockerException, requests.RequestException) as error:
        log.warning("container %s could not be stopped, will try again: %s", container.name, error)


def _explain(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).strip().rstrip(".")
