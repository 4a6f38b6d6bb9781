"""Launches of attempts on a Docker engine: the phase before a container exists.

A thread pulls the image, then creates and starts the container. A failure there is the attempt's
outcome.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import Any

import msgspec
import requests
from docker.errors import APIError, ImageNotFound

from core.clock import Clock, to_ns
from jobqueue.executors.base import STOPPED, ExecutorError
from jobqueue.executors.confinement import has_seccomp
from jobqueue.executors.docker import mapping
from jobqueue.executors.docker.logs import LogSpool
from jobqueue.executors.docker.mapping import explain
from jobqueue.executors.docker.pull import PullError, pull
from jobqueue.executors.docker.storage import DockerStorage
from jobqueue.executors.pull_failures import pull_failure
from jobqueue.executors.registry_token import CurrentRegistryToken
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StopReason

log = logging.getLogger(__name__)

NO_SECCOMP = (
    "The Docker engine runs containers without a seccomp filter. Remove `seccomp-profile` from its "
    "configuration, or use a kernel with seccomp."
)
STOPPED_EARLY = "Stopped before its container started."


@dataclass(slots=True)
class _Launch:
    spec: AttemptSpec
    outcome: AttemptObservation
    is_cancelled: bool = False
    is_creating: bool = False
    stop_reason: StopReason = StopReason.USER


class Launches:
    """The launches of one engine; a failed one stays until it is forgotten. Thread-safe."""

    def __init__(
        self,
        client: Callable[[], Any],
        storage: DockerStorage,
        spool: LogSpool,
        *,
        owner: str,
        registry_token: CurrentRegistryToken,
        pids_limit: int,
        clock: Clock,
    ) -> None:
        self._client = client
        self._storage = storage
        self._spool = spool
        self._owner = owner
        self._registry_token = registry_token
        self._pids_limit = pids_limit
        self._clock = clock
        self._lock = Lock()
        self._launches: dict[str, _Launch] = {}

    def begin(self, spec: AttemptSpec) -> None:
        """Launch an attempt in the background."""
        launch = _Launch(
            spec, AttemptObservation(attempt_id=spec.attempt_id, state=ObservedState.STARTING)
        )
        with self._lock:
            self._launches[spec.attempt_id] = launch
        Thread(target=self._launch, args=(launch,), name="docker-launch", daemon=True).start()

    def cancel(self, attempt_id: str, reason: StopReason) -> None:
        """Stop a launch as soon as it can be; others are ignored."""
        with self._lock:
            launch = self._launches.get(attempt_id)
            if launch is not None and not launch.outcome.state.is_final:
                launch.is_cancelled, launch.stop_reason = True, reason

    def observe(self) -> dict[str, AttemptObservation]:
        """Return the attempts in launch, and those whose launch has failed, by id."""
        with self._lock:
            return {ident: _observation(launch) for ident, launch in self._launches.items()}

    def forget(self, attempt_id: str) -> None:
        """Forget a launch."""
        with self._lock:
            self._launches.pop(attempt_id, None)

    def _launch(self, launch: _Launch) -> None:
        """Start the container; a failure becomes the attempt's outcome."""
        try:
            self._pull_if_missing(launch)
            engine = self._client().info()
            if not has_seccomp(engine):
                self._end_launch(launch, ObservedState.FAILED, "start_failed", NO_SECCOMP)
                return
            with self._lock:
                launch.is_creating = not launch.is_cancelled
            if not launch.is_creating:
                self._end_launch(launch, *_stopped_early(launch))
                return
            self._create_and_start(launch, engine)
        except PullError as error:
            failure = pull_failure(launch.spec.image, str(error))
            self._end_launch(launch, ObservedState.FAILED, *failure)
        except (APIError, OSError, ExecutorError) as error:
            # An engine or a disk failed; without its launch the attempt is unknown, and is started
            # again.
            log.warning("attempt %s not launched: %s", launch.spec.attempt_id, explain(error))
            self.forget(launch.spec.attempt_id)

    def _pull_if_missing(self, launch: _Launch) -> None:
        def on_progress(text: str) -> bool:
            self._note(launch, message=text)
            return not launch.is_cancelled

        self.pull_if_missing(launch.spec, on_progress, partial(self._note, launch))

    def pull_if_missing(
        self,
        spec: AttemptSpec,
        on_progress: Callable[[str], bool],
        note: Callable[..., None],
    ) -> None:
        """Pull the image of an attempt, which counts as used then.

        Args:
            note: called with the times at which a pull began and ended.

        Raises:
            PullError: the registry or the engine refused.
            APIError, OSError, ExecutorError: the engine failed.
        """
        client, image = self._client(), spec.image
        stored_image = None
        if not spec.always_pulls:
            with contextlib.suppress(ImageNotFound):
                stored_image = client.images.get(image)
        if stored_image is None:
            # The appliance's log is not the place for the images of other tenants.
            shown = f"the image of {spec.attempt_id}" if spec.always_pulls else image
            log.info("pulling %s", shown)
            credentials = self._registry_token.credentials_for(image, spec)
            note(pull_began_at_ns=to_ns(self._clock()))
            pull(client.api, image, credentials=credentials, on_progress=on_progress)
            note(pull_ended_at_ns=to_ns(self._clock()))
            stored_image = client.images.get(image)
        self._storage.note_use(stored_image.id)

    def _note(self, launch: _Launch, **facts: str | int) -> None:
        with self._lock:
            launch.outcome = msgspec.structs.replace(launch.outcome, **facts)

    def _create_and_start(self, launch: _Launch, engine: Mapping[str, Any]) -> None:
        spec = launch.spec
        try:
            options = mapping.container_options(
                spec, owner=self._owner, pids_limit=self._pids_limit, engine=engine
            )
            options["labels"] |= mapping.pull_label(launch.outcome)
            container = self._client().containers.create(**options)
        except APIError as error:
            if error.status_code != requests.codes.conflict:
                self._end_launch(
                    launch, ObservedState.FAILED, *mapping.start_failure(explain(error))
                )
                return
            log.info("the container of attempt %s exists already", spec.attempt_id)
        else:
            if not self._start_container(launch, container):
                return
            self._spool.follow(spec.attempt_id, container)
        self.forget(spec.attempt_id)

    def _start_container(self, launch: _Launch, container: Any) -> bool:  # noqa: ANN401
        """Return whether it started; if not, delete it and set the outcome."""
        outcome = _stopped_early(launch)
        if not launch.is_cancelled:
            try:
                container.start()
            except APIError as error:
                outcome = (ObservedState.FAILED, *mapping.start_failure(explain(error)))
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


def _observation(launch: _Launch) -> AttemptObservation:
    # A pull may take its time to be cancelled; a container that is being created may still start.
    is_over = launch.is_cancelled and not launch.is_creating
    if is_over and not launch.outcome.state.is_final:
        state, reason, message = _stopped_early(launch)
        return AttemptObservation(
            attempt_id=launch.spec.attempt_id, state=state, reason=reason, message=message
        )
    return launch.outcome


def _stopped_early(launch: _Launch) -> tuple[ObservedState, str, str]:
    return STOPPED[launch.stop_reason][0], launch.stop_reason.value, STOPPED_EARLY
