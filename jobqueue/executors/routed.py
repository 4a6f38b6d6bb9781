"""Several executors as one: services go to Marathon, all other jobs elsewhere."""

from collections.abc import Callable, Mapping, Sequence

from jobqueue.executors.base import (
    AttemptUsage,
    Challenges,
    ContainerStorage,
    ExecSession,
    Executor,
    NoExecError,
    Probe,
    PullsImages,
)
from protocol.attempts import AttemptObservation, AttemptSpec, StopReason


class RoutedExecutor:
    """Starts services on one executor and everything else on another.

    An attempt is looked for on both, so that it is found after a change of the configuration.
    """

    def __init__(self, name: str, *, services: Executor, batch: Executor) -> None:
        self.name = name
        self.names: Sequence[str] = (services.name, batch.name)
        self._services, self._batch = services, batch
        self._all = (services, batch)

    def start(self, spec: AttemptSpec) -> None:
        """Start an attempt on the executor of its kind."""
        (self._services if spec.is_service else self._batch).start(spec)

    def pull_image(
        self, spec: AttemptSpec, on_progress: Callable[[str], bool], note: Callable[..., None]
    ) -> None:
        """Pull the image of an attempt where it will run, if that executor can."""
        executor = self._services if spec.is_service else self._batch
        if isinstance(executor, PullsImages):
            executor.pull_image(spec, on_progress, note)

    def stop(
        self, attempt_id: str, *, grace_seconds: float, reason: StopReason = StopReason.USER
    ) -> None:
        """Stop an attempt on whichever executor has it."""
        for executor in self._all:
            executor.stop(attempt_id, grace_seconds=grace_seconds, reason=reason)

    def observe(self) -> list[AttemptObservation]:
        """Return the attempts of both; while one is unavailable, nothing is known."""
        return [seen for executor in self._all for seen in executor.observe()]

    def container_ids(self) -> Mapping[str, str]:
        """Return the containers of both."""
        return {**self._services.container_ids(), **self._batch.container_ids()}

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return output from the executor that has some."""
        for executor in self._all:
            if chunk := executor.read_log(attempt_id, offset=offset, limit=limit):
                return chunk
        return b""

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return the use that one of them knows."""
        for executor in self._all:
            if (usage := executor.usage(attempt_id)) is not None:
                return usage
        return None

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        """Run a command on the executor that can."""
        try:
            return await self._services.execute(attempt_id, session)
        except NoExecError:
            return await self._batch.execute(attempt_id, session)

    def remove(self, attempt_id: str) -> None:
        """Remove an attempt from whichever executor has it."""
        for executor in self._all:
            executor.remove(attempt_id)

    def probe(self) -> Probe | None:
        """Return the first that there is."""
        return next(filter(None, (executor.probe() for executor in self._all)), None)

    def challenges(self) -> Challenges | None:
        """Return the first that there is."""
        return next(filter(None, (executor.challenges() for executor in self._all)), None)

    def storage(self) -> ContainerStorage | None:
        """Return the storage of the one that has any."""
        return self._services.storage() or self._batch.storage()

    def close(self) -> None:
        """Close both."""
        for executor in self._all:
            executor.close()
