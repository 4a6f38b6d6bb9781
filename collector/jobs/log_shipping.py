"""Sends the output of attempts to the portal."""

import logging
from collections.abc import Callable, Collection

from collector.sending.portal_connection import PortalConnection
from jobqueue.executors.base import Executor, ExecutorError
from protocol.attempts import AttemptObservation, LogChunk

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
# The size of all chunks in a request, whose limit is 1 MiB.
UPLOAD_BYTES = 768 * 1024
UPLOADS_PER_STEP = 8


class LogShipper:
    """Sends attempts' output to the portal, from the offset that the portal asks for.

    For one thread. `on_output` gets what was sent of an attempt, some of it again after a restart.

    Attributes:
        delivered: attempts whose whole log the portal has, or does not accept.
    """

    def __init__(
        self, executor: Executor, on_output: Callable[[str, bytes], object] = lambda *_: None
    ) -> None:
        self._executor = executor
        self._on_output = on_output
        self._offsets: dict[str, int] = {}
        self.delivered: set[str] = set()

    def ship(self, portal: PortalConnection, observations: Collection[AttemptObservation]) -> None:
        """Send new output of all attempts, in one request while there is little.

        Raises:
            PortalUnreachableError: the portal does not respond; nothing is lost.
            PortalRefusedError: the portal refuses this agent.
        """
        for _ in range(UPLOADS_PER_STEP):
            chunks = self._new_output(observations)
            if not chunks:
                return
            for chunk, ack in zip(chunks, portal.ship_logs(chunks), strict=True):
                self._on_output(chunk.attempt_id, chunk.data)
                self._offsets[chunk.attempt_id] = ack.next_offset
                if ack.is_unknown:
                    log.warning("the portal has no attempt %s", chunk.attempt_id)
                if ack.is_full or ack.is_unknown:
                    self.delivered.add(chunk.attempt_id)

    def forget(self, attempt_id: str) -> None:
        """Forget an attempt that was removed."""
        self._offsets.pop(attempt_id, None)
        self.delivered.discard(attempt_id)

    def _new_output(self, observations: Collection[AttemptObservation]) -> list[LogChunk]:
        live = [
            observation
            for observation in observations
            if observation.attempt_id not in self.delivered
        ]
        limit = min(CHUNK_BYTES, UPLOAD_BYTES // max(1, len(live)))
        chunks = []
        for observation in live:
            offset = self._offsets.get(observation.attempt_id, 0)
            try:
                data = self._executor.read_log(observation.attempt_id, offset=offset, limit=limit)
            except ExecutorError as error:
                log.warning("can't read the log of %s: %s", observation.attempt_id, error)
                continue
            if data:
                chunks.append(LogChunk(attempt_id=observation.attempt_id, offset=offset, data=data))
            elif observation.state.is_final:
                self.delivered.add(observation.attempt_id)
        return chunks
