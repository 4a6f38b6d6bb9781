"""What attempts need before they start: data, folders for results, the network of their gang."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StagingProgress

log = logging.getLogger(__name__)


class PreparationError(Exception):
    """An attempt can't be prepared: `reason` is one of `AttemptObservation`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Preparation:
    """Prepares attempts. Called by the thread of attempts, which must not wait: work is done in
    threads of its own, which wake that one.
    """

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt as its executor gets it; None while it is being prepared.

        Idempotent: it is called again at each step until the attempt has started, also after a
        restart of the agent.

        Raises:
            PreparationError: how the attempt fails.
        """
        raise NotImplementedError

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:  # noqa: ARG002
        """Return a message about an attempt that is being prepared, and how far its data is."""
        return "", None

    def update(self, specs: Sequence[AttemptSpec], observed: Collection[str]) -> None:
        """Apply the desired attempts, to those of them that the executor has."""

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed, also of attempts that are being prepared.

        So ended attempts run on until their results are safe.
        """
        return list(observed)

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Remove what was made for other attempts, also what a killed agent left.

        Not called before the desired state and the executor's attempts are known.
        """

    def close(self) -> None:
        """End the threads; what attempts use stays."""


class CommonStart(Preparation):
    """Lets the members of a gang start together, when all are prepared: the portal says so."""

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt once its gang may start."""
        return spec if spec.gang is None or spec.gang.may_start else None

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:  # noqa: ARG002
        """Return what it waits for."""
        return "Ready; waiting for the other members of the gang.", None


class Preparations:
    """All preparations of an agent's attempts, in their order, and a common start of gangs.

    For one thread.
    """

    def __init__(self, preparations: Sequence[Preparation] = ()) -> None:
        self._preparations = (*preparations, CommonStart())
        self._waiting: dict[str, Preparation] = {}
        self._failures: dict[tuple[str, str], str] = {}

    def prepared(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt as its executor gets it; None while it is being prepared.

        Raises:
            PreparationError: how the attempt fails.
        """
        for preparation in self._preparations:
            try:
                prepared = preparation.prepare(spec)
            except PreparationError:
                raise
            except Exception as error:
                # It would fail again: only this attempt ends, and the others go on.
                log.exception("attempt %s can't be prepared", spec.attempt_id)
                raise PreparationError("start_failed", _failure(error)) from error
            if prepared is None:
                self._waiting[spec.attempt_id] = preparation
                return None
            spec = prepared
        self._waiting.pop(spec.attempt_id, None)
        return spec

    def observations(self) -> dict[str, AttemptObservation]:
        """Return the attempts that are being prepared, by id."""
        observations = []
        for attempt_id, preparation in self._waiting.items():
            message, staging = "", None
            with self._kept_apart(preparation, "progress"):
                message, staging = preparation.progress(attempt_id)
            observation = AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.STARTING,
                message=message,
                staging=staging,
                is_prepared=isinstance(preparation, CommonStart),
            )
            observations.append(observation)
        return {seen.attempt_id: seen for seen in self.review(observations)}

    def update(self, specs: Sequence[AttemptSpec], observed: Collection[str]) -> None:
        """Let all apply the desired attempts."""
        for preparation in self._preparations:
            with self._kept_apart(preparation, "update"):
                preparation.update(specs, observed)

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed, where attempts run on until their results are safe."""
        reviewed = list(observed)
        for preparation in self._preparations:
            with self._kept_apart(preparation, "review"):
                reviewed = preparation.review(reviewed)
        return reviewed

    def keep_only(self, starting: Collection[str], attempt_ids: Collection[str]) -> None:
        """Forget attempts that no longer start, and remove what others than these have left."""
        for attempt_id in self._waiting.keys() - set(starting):
            del self._waiting[attempt_id]
        for preparation in self._preparations:
            with self._kept_apart(preparation, "keep_only"):
                preparation.keep_only(attempt_ids)

    def close(self) -> None:
        """End the threads of all."""
        for preparation in self._preparations:
            with self._kept_apart(preparation, "close"):
                preparation.close()

    @contextmanager
    def _kept_apart(self, preparation: Preparation, step: str) -> Iterator[None]:
        """Log a failure of one preparation, once until it works again: the others go on."""
        key = type(preparation).__name__, step
        try:
            yield
        except Exception as error:
            failure = repr(error)
            if self._failures.get(key) != failure:
                log.exception("%s.%s failed", *key)
                self._failures[key] = failure
        else:
            self._failures.pop(key, None)


def _failure(error: Exception) -> str:
    """Return why an attempt could not be prepared; its log says more than the portal may show."""
    reason = error.strerror if isinstance(error, OSError) else None
    return f"The agent can't prepare the attempt: {reason or type(error).__name__}. See its log."


def failed(attempt_id: str, error: PreparationError) -> AttemptObservation:
    """Return how an attempt ends that can't be prepared."""
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.FAILED,
        reason=error.reason,
        message=str(error),
    )
