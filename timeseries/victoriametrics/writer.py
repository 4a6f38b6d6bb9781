"""Writing to VictoriaMetrics: one thread sends what piled up while the last request was away.

A submission is answered when the server has answered its request; one that fails is answered with
the reason, and the sender keeps its samples.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from core.clock import Clock, to_ns
from core.errors import VedetteError
from timeseries.batch import Batch
from timeseries.store import RejectedPoint, StoreUnavailableError
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.flags import ServerFlags, parse_flags
from timeseries.victoriametrics.lines import Frame, Lines, encode
from timeseries.write_queue import Chore, Submission, WriteQueue

MAX_GROUP_POINTS = 20_000

log = logging.getLogger(__name__)


class VictoriaMetricsWriter:
    """The one writer of a store.

    Args:
        client: the server.
        database: what the store's series are marked with.
        clock: tells which times the server keeps.
        max_queued_points: how many points may wait before `submit` refuses.
    """

    def __init__(
        self, client: VictoriaMetricsClient, *, database: str, clock: Clock, max_queued_points: int
    ) -> None:
        self._client = client
        self._database = database
        self._clock = clock
        self._flags: ServerFlags | None = None
        self._told: set[object] = set()
        self._queue = WriteQueue(max_points=max_queued_points, max_group_points=MAX_GROUP_POINTS)
        self._thread = threading.Thread(target=self._run, name="victoriametrics-writer")
        self._thread.daemon = True
        self._thread.start()

    def submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next request."""
        submission = Submission(batch, identity)
        self._queue.put(submission)
        return submission.future

    def run_alone(self, chore: Callable[[], None]) -> None:
        """Run something after all that was queued before it, and wait for it."""
        item = Chore(chore)
        self._queue.put(item)
        item.future.result()

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._queue.close()
        self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.take()) is not None:
            if isinstance(work, Chore):
                self._do(work)
            else:
                self._write(work)

    def _do(self, chore: Chore) -> None:
        try:
            chore.run()
        except Exception as fault:  # noqa: BLE001 - the one who waits is told
            chore.future.set_exception(fault)
        else:
            chore.future.set_result(None)

    def _write(self, group: list[Submission]) -> None:
        try:
            encoded = self._encoded(group)
            text = "".join(lines.text for lines in encoded)
            if text:
                self._client.write(text.encode())
        except Exception as fault:
            self._flags = None  # A server that comes back may have other options.
            if not isinstance(fault, VedetteError):
                log.exception("a batch could not be written")
            for submission in group:
                submission.future.set_exception(fault)
        else:
            for submission, lines in zip(group, encoded, strict=True):
                submission.future.set_result(lines.rejected)

    def _encoded(self, group: list[Submission]) -> list[Lines]:
        now_ms = to_ns(self._clock()) // 1_000_000
        first_ms, last_ms = self._server_flags().kept_ms(now_ms)
        encoded = [
            encode(one.batch, Frame(self._database, one.identity, first_ms, last_ms))
            for one in group
        ]
        for lines in encoded:
            for measurement, field in lines.left_out:
                self._tell_once(f"field {field!r} of {measurement!r} is text and is not kept")
        return encoded

    def _server_flags(self) -> ServerFlags:
        if self._flags is None:
            flags = parse_flags(self._client.flags())
            if flags.faults:
                raise StoreUnavailableError(
                    f"VictoriaMetrics at {self._client.url} is unfit: {'; '.join(flags.faults)}."
                )
            for warning in flags.warnings:
                self._tell_once(warning)
            self._flags = flags
        return self._flags

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            log.warning("VictoriaMetrics at %s: %s", self._client.url, sentence)
