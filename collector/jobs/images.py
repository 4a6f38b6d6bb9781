"""The images of gangs' members are pulled before the common start, beside their data.

A framework waits only minutes for a member. Attempts outside of gangs start on their own, so their
executor pulls the image then.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock, Thread

import msgspec

from collector.jobs.preparations import Preparation, PreparationError
from jobqueue.executors.base import ExecutorError, ImageError, PullsImages
from protocol.attempts import AttemptObservation, AttemptSpec, StagingProgress

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0


@dataclass(slots=True)
class _Pull:
    """The pull of one attempt's image; `retry_at` is of the monotonic clock."""

    message: str = ""
    times: dict[str, int] = field(default_factory=dict)
    is_running: bool = True
    is_cancelled: bool = False
    is_done: bool = False
    failure: ImageError | None = None
    retry_at: float = 0.0


class ImagePreparation(Preparation):
    """Prepares members of gangs.

    Pulls begin with the desired state, so that they don't wait for what is prepared before.
    """

    def __init__(
        self,
        executor: PullsImages,
        *,
        wake: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._wake = wake
        self._monotonic = monotonic
        self._lock = Lock()
        self._pulls: dict[str, _Pull] = {}

    def update(self, specs: Sequence[AttemptSpec], observed: Collection[str]) -> None:
        """Pull the images of members that have not started."""
        for spec in specs:
            if _waits(spec) and spec.attempt_id not in observed:
                self._begin(spec)

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt once its image is there.

        One whose gang may start is not held up: all others are ready.
        """
        if not _waits(spec):
            return spec
        pull = self._begin(spec)
        if pull.failure is not None:
            raise PreparationError(pull.failure.reason, str(pull.failure)) from pull.failure
        return spec if pull.is_done else None

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:
        """Return how far the pull is."""
        with self._lock:
            pull = self._pulls.get(attempt_id)
        return pull.message if pull is not None else "", None

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed, with the times of the pulls before the start."""
        with self._lock:
            times = {attempt_id: dict(pull.times) for attempt_id, pull in self._pulls.items()}
        return [
            msgspec.structs.replace(seen, **times[seen.attempt_id])
            if times.get(seen.attempt_id) and seen.pull_began_at_ns is None
            else seen
            for seen in observed
        ]

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Cancel the pulls for other attempts; what is pulled stays on the engine."""
        with self._lock:
            for attempt_id in self._pulls.keys() - set(attempt_ids):
                self._pulls.pop(attempt_id).is_cancelled = True

    def close(self) -> None:
        """End the pulls."""
        self.keep_only(())

    def _begin(self, spec: AttemptSpec) -> _Pull:
        """Return the pull of an attempt, which is begun if none runs, and none is done."""
        with self._lock:
            pull = self._pulls.get(spec.attempt_id)
            is_over = pull is not None and (pull.is_running or pull.is_done or pull.failure)
            if pull is not None and (is_over or self._monotonic() < pull.retry_at):
                return pull
            pull = self._pulls[spec.attempt_id] = _Pull(message=f"Pulling image {spec.image}.")
        Thread(target=self._run, args=(spec, pull), name="image-pull", daemon=True).start()
        return pull

    def _run(self, spec: AttemptSpec, pull: _Pull) -> None:
        def on_progress(text: str) -> bool:
            pull.message = text
            return not pull.is_cancelled

        def note(**times: int) -> None:
            pull.times |= times

        try:
            self._executor.pull_image(spec, on_progress, note)
            pull.is_done = True
        except ImageError as failure:
            pull.failure = failure
        except ExecutorError as error:
            if not pull.is_cancelled:
                log.warning("the image of attempt %s is not pulled: %s", spec.attempt_id, error)
            pull.message = f"Pulling image {spec.image} again soon: {error}."
        except Exception:
            log.exception("the image of attempt %s is not pulled", spec.attempt_id)
            pull.message = f"Pulling image {spec.image} again soon. See the agent's log."
        finally:
            pull.retry_at = self._monotonic() + RETRY_SECONDS
            pull.is_running = False
            self._wake()


def _waits(spec: AttemptSpec) -> bool:
    return spec.gang is not None and not spec.gang.may_start
