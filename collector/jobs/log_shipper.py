"""Ships attempts' output to the portal, from the byte that the portal wants next."""

import logging

from collector.errors import PortalRefusedError
from collector.sending.link import PortalLink
from jobqueue.executors.base import AttemptObservation, Executor

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
CHUNKS_AT_ONCE = 8
# What the portal says of a log that it will never take; anything else may pass.
NOT_WANTED = frozenset({400, 404, 410, 413, 422})


class LogShipper:
    """Remembers how far each log has come. For one thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._offsets: dict[str, int] = {}
        self.delivered: set[str] = set()

    def ship(self, link: PortalLink, observation: AttemptObservation) -> None:
        """Send what is new of an attempt's output.

        Raises:
            PortalUnreachableError: the portal does not answer; nothing is lost.
            PortalRefusedError: the portal does not know this agent any more.
            ExecutorError: the output can't be read now.
        """
        attempt_id = observation.attempt_id
        for _ in range(CHUNKS_AT_ONCE):
            if attempt_id in self.delivered:
                return
            offset = self._offsets.get(attempt_id, 0)
            chunk = self._executor.read_log(attempt_id, offset=offset, limit=CHUNK_BYTES)
            if not chunk:
                if observation.state.is_final:
                    self.delivered.add(attempt_id)
                return
            self._send(link, attempt_id, offset, chunk)

    def forget(self, attempt_id: str) -> None:
        """Drop what is known of an attempt that was removed."""
        self._offsets.pop(attempt_id, None)
        self.delivered.discard(attempt_id)

    def _send(self, link: PortalLink, attempt_id: str, offset: int, chunk: bytes) -> None:
        try:
            ack = link.ship_log(attempt_id, offset=offset, chunk=chunk)
        except PortalRefusedError as error:
            if error.http_status not in NOT_WANTED:
                raise
            log.warning("the portal does not want the log of %s: %s", attempt_id, error.message)
            self.delivered.add(attempt_id)
            return
        self._offsets[attempt_id] = ack.next_offset
        if ack.is_full:
            self.delivered.add(attempt_id)
