"""What attempts need before they start: data, folders for results, the network of their gang."""

import logging
from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StagingProgress

log = logging.getLogger(__name__)


class PreparationError(Exception):
    """An attempt can't be prepared: `reason` is one of `AttemptObservation`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Preparation(Protocol):
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

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:
        """Return a message about an attempt that is being prepared, and how far its data is."""

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed, where ended attempts run on until their results are safe."""

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Remove what was made for other attempts, also what a killed agent left.

        Not called before the desired state and the executor's attempts are known.
        """

    def close(self) -> None:
        """End the threads; what attempts use stays."""


@runtime_checkable
class Following(Protocol):
    """A preparation that also follows changes of attempts while they run."""

    def update(self, specs: Sequence[AttemptSpec], observed: Collection[str]) -> None:
        """Apply the desired attempts, to those of them that the executor has."""


class Preparations:
    """All preparations of an agent's attempts, in their order. For one thread."""

    def __init__(self, preparations: Sequence[Preparation] = ()) -> None:
        self._preparations = preparations
        self._waiting: dict[str, Preparation] = {}

    def prepared(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt as its executor gets it; None while it is being prepared.

        Raises:
            PreparationError: how the attempt fails.
        """
        for preparation in self._preparations:
            prepared = preparation.prepare(spec)
            if prepared is None:
                self._waiting[spec.attempt_id] = preparation
                return None
            spec = prepared
        self._waiting.pop(spec.attempt_id, None)
        return spec

    def observations(self) -> dict[str, AttemptObservation]:
        """Return the attempts that are being prepared, by id."""
        return {
            attempt_id: _observation(attempt_id, *preparation.progress(attempt_id))
            for attempt_id, preparation in self._waiting.items()
        }

    def update(self, specs: Sequence[AttemptSpec], observed: Collection[str]) -> None:
        """Let those that follow changes apply the desired attempts."""
        for preparation in self._preparations:
            if isinstance(preparation, Following):
                preparation.update(specs, observed)

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed, where attempts run on until their results are safe."""
        reviewed = list(observed)
        for preparation in self._preparations:
            reviewed = preparation.review(reviewed)
        return reviewed

    def keep_only(self, starting: Collection[str], attempt_ids: Collection[str]) -> None:
        """Forget attempts that no longer start, and remove what others than these have left."""
        for attempt_id in self._waiting.keys() - set(starting):
            del self._waiting[attempt_id]
        for preparation in self._preparations:
            preparation.keep_only(attempt_ids)

    def close(self) -> None:
        """End the threads of all."""
        for preparation in self._preparations:
            preparation.close()


def _observation(
    attempt_id: str, message: str, staging: StagingProgress | None
) -> AttemptObservation:
    return AttemptObservation(
        attempt_id=attempt_id, state=ObservedState.STARTING, message=message, staging=staging
    )


def failed(attempt_id: str, error: PreparationError) -> AttemptObservation:
    """Return how an attempt ends that can't be prepared."""
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.FAILED,
        reason=error.reason,
        message=str(error),
    )
