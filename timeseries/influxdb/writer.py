"""The one thread that writes to an InfluxDB: it joins small submissions into one request.

What the server refuses although it was vetted (another process gave a field its type, a limit is
reached, a point is older than the retention policy) is found by sending ever smaller halves: to
write a line twice changes nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

from core.errors import VedetteError
from timeseries.batch import Batch
from timeseries.influxdb.delivery import Delivery, open_delivery
from timeseries.influxdb.errors import LinesRefusedError, RequestTooLargeError
from timeseries.influxdb.http import InfluxDBConnection
from timeseries.influxdb.requests import (
    MAX_REQUEST_LINES,
    Pending,
    Piece,
    all_rejected,
    encoded,
    packed,
    parts,
    pieces_of,
)
from timeseries.influxdb.vetting import FieldTypes, vet
from timeseries.store import RejectedPoint, StoreUnavailableError
from timeseries.write_queue import Chore, Submission, WriteQueue

_log = logging.getLogger(__name__)


class InfluxDBWriter:
    """Owns the queue before a server, and the thread that empties it.

    Args:
        connection: the server; used by this thread and others.
        load_types: reads the types of a measurement's fields.
        max_queued_points: how many points may wait before `submit` refuses.
    """

    def __init__(
        self,
        connection: InfluxDBConnection,
        *,
        load_types: Callable[[str], Mapping[str, str]],
        max_queued_points: int,
    ) -> None:
        self._connection = connection
        self._types = FieldTypes(load_types)
        self._delivery: Delivery | None = None
        self._is_closing = threading.Event()
        self._outage: StoreUnavailableError | None = None
        self._queue = WriteQueue(max_points=max_queued_points, max_group_points=MAX_REQUEST_LINES)
        self._thread = threading.Thread(target=self._run, name="influxdb-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue points for the next request."""
        submission = Submission(batch, dict(identity))
        self._queue.put(submission)
        return submission.future

    def run(self, change: Callable[[], None]) -> None:
        """Run something between two requests, in turn, and wait for it."""

        def changed() -> None:
            # What is deleted takes the types of its fields with it.
            self._types.forget()
            change()

        chore = Chore(changed)
        self._queue.put(chore)
        chore.future.result()

    def close(self) -> None:
        """Write what is queued and stop; in an outage, give it up."""
        self._is_closing.set()
        self._queue.close()
        self._thread.join()
        if self._delivery is not None:
            self._delivery.close()

    def _run(self) -> None:
        while (work := self._queue.take()) is not None:
            if isinstance(work, Chore):
                self._do(work)
            else:
                self._write([item for item in work if item.future.set_running_or_notify_cancel()])

    def _do(self, chore: Chore) -> None:
        try:
            chore.run()
        except Exception as error:  # noqa: BLE001 - handed to the caller; the thread must go on
            chore.future.set_exception(_as_store_error(error))
        else:
            chore.future.set_result(None)

    def _write(self, group: Sequence[Submission]) -> None:
        """Write a group of submissions and answer each sender."""
        pending = [Pending(submission) for submission in group]
        if self._outage is not None and self._is_closing.is_set():
            # To wait for each request that is queued could take half an hour.
            for one in pending:
                one.error = self._outage
        else:
            self._send_all(pending)
        for one in pending:
            one.settle()

    def _send_all(self, pending: Sequence[Pending]) -> None:
        requests: list[list[Piece]] = []
        try:
            requests = list(packed(piece for one in pending for piece in self._pieces(one)))
            while requests:
                self._send(requests[0])
                del requests[0]
            self._outage = None
        except Exception as error:  # noqa: BLE001 - handed to the senders; the thread must go on
            # Types that this request would have brought may not be there.
            self._types.forget()
            _log.warning("points were not written: %s", error)
            told = _as_store_error(error)
            self._outage = told if isinstance(told, StoreUnavailableError) else None
            unsent = [piece.pending for request in requests for piece in request]
            for one in unsent or pending:
                one.error = told

    def _pieces(self, pending: Pending) -> Iterator[Piece]:
        batch, rejected = vet(pending.submission.batch, pending.submission.identity, self._types)
        pending.rejected.extend(rejected)
        return pieces_of(pending, batch)

    def _send(self, request: Sequence[Piece]) -> None:
        try:
            self._deliver(b"".join(piece.lines for piece in request))
        except LinesRefusedError:
            self._types.forget()
            for piece in request:
                self._send_what_is_good(piece)
            # What was refused has not given its fields a type.
            self._types.forget()
        except RequestTooLargeError:
            for piece in request:
                self._send_halves(piece.pending, piece.batch)

    def _send_what_is_good(self, piece: Piece) -> None:
        """Vet once more by the types that the server has now, then look for the rest by halves."""
        submission = piece.pending.submission
        kept = {at for block in piece.batch.blocks for at in block.positions}
        others = {at for block in submission.batch.blocks for at in block.positions} - kept
        batch, rejected = vet(submission.batch.without(others), submission.identity, self._types)
        piece.pending.rejected.extend(rejected)
        self._send_halves(piece.pending, batch)

    def _send_halves(self, pending: Pending, batch: Batch) -> None:
        if not len(batch):
            return
        is_one = len(batch) == 1
        try:
            self._deliver(encoded(batch))
        except LinesRefusedError as error:
            if is_one or error.dropped == len(batch):
                pending.rejected += all_rejected(batch, str(error))
                return
        except RequestTooLargeError:
            if is_one:
                pending.rejected += all_rejected(batch, "it is larger than the server takes")
                return
        else:
            return
        for half in parts(batch, (len(batch) + 1) // 2):
            self._send_halves(pending, half)

    def _deliver(self, lines: bytes) -> None:
        if self._delivery is None:
            self._delivery = open_delivery(self._connection)
        self._delivery.write(lines)


def _as_store_error(error: Exception) -> Exception:
    if isinstance(error, VedetteError):
        return error
    return StoreUnavailableError(f"The time series store could not write: {error}")
