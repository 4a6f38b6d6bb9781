"""Writing to InfluxDB: one thread packs the submissions of each tenant into requests.

Each tenant has its own database (`databases.py`) with its own field types; requests of several
tenants run concurrently, and an error reaches only the tenant's senders. Small submissions share a
request, a large one takes several; its sender gets one response when all of them are done. What the
server rejects although it passed validation (another process set a field's type, a limit is
reached, a point is older than the retention policy) is found by sending halves: writing a line
twice changes nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from core.errors import InvalidInputError, VedetteError
from timeseries.influxdb.client import InfluxDBConnection, LinesRejectedError, RequestTooLargeError
from timeseries.influxdb.databases import TenantDatabase, TenantDatabases
from timeseries.influxdb.validation import FieldTypes, validate
from timeseries.lineprotocol.encode import encode_batch
from timeseries.points import Batch, Block
from timeseries.store import TENANT_TAG, RejectedPoint, StoreUnavailableError
from timeseries.write_queue import Submission, Task, WriteQueue, as_store_error

MAX_REQUEST_LINES = 5_000
MAX_REQUEST_BYTES = 1024 * 1024
# Each takes a connection.
CONCURRENT_TENANTS = 8
_PIECE_POINTS = 500
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PendingSubmission:
    """A submission being sent, with the points rejected so far."""

    submission: Submission
    rejected: list[RejectedPoint] = field(default_factory=list)
    error: Exception | None = None

    def resolve(self) -> None:
        """Resolve the sender's future."""
        if self.error is not None:
            self.submission.future.set_exception(self.error)
        else:
            self.submission.future.set_result(
                sorted(self.rejected, key=lambda point: point.position)
            )


@dataclass(frozen=True, slots=True)
class Piece:
    """Some points of a submission, encoded as lines."""

    pending: PendingSubmission
    batch: Batch
    lines: bytes


def split_submission(pending: PendingSubmission, batch: Batch) -> Iterator[Piece]:
    """Yield the points of a submission in pieces; points that can't be encoded are rejected."""
    for part in split_batch(batch, _PIECE_POINTS):
        yield from _encodable(pending, part)


def encode_lines(batch: Batch) -> bytes:
    """Return points as lines."""
    return encode_batch(batch, extra_tags={})


def pack_requests(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of each request."""
    request: list[Piece] = []
    points = size = 0
    for piece in pieces:
        is_full = points + len(piece.batch) > MAX_REQUEST_LINES
        if request and (is_full or size + len(piece.lines) > MAX_REQUEST_BYTES):
            yield request
            request, points, size = [], 0, 0
        request.append(piece)
        points += len(piece.batch)
        size += len(piece.lines)
    if request:
        yield request


def split_batch(batch: Batch, max_points: int) -> Iterator[Batch]:
    """Yield a batch in parts of at most `max_points`."""
    blocks: list[Block] = []
    room = max_points
    for block in batch.blocks:
        start = 0
        while start < len(block):
            part = _rows(block, start, start + room)
            blocks.append(part)
            start += len(part)
            room -= len(part)
            if not room:
                yield Batch(tuple(blocks))
                blocks, room = [], max_points
    if blocks:
        yield Batch(tuple(blocks))


def _encodable(pending: PendingSubmission, batch: Batch) -> Iterator[Piece]:
    try:
        lines = encode_lines(batch)
    except InvalidInputError as error:
        if len(batch) == 1:
            pending.rejected += reject_all(batch, error.message)
            return
    else:
        yield Piece(pending, batch, lines)
        return
    for half in split_batch(batch, (len(batch) + 1) // 2):
        yield from _encodable(pending, half)


def _rows(block: Block, start: int, end: int) -> Block:
    if start == 0 and end >= len(block):
        return block
    return replace(
        block,
        tag_set_of=block.tag_set_of[start:end],
        values=tuple(column[start:end] for column in block.values),
        times_ns=block.times_ns[start:end],
        positions=block.positions[start:end],
    )


def reject_all(batch: Batch, reason: str) -> list[RejectedPoint]:
    """Return every point of a batch as rejected by the server."""
    return [
        RejectedPoint(position, f"InfluxDB rejected it: {reason}")
        for block in batch.blocks
        for position in block.positions
    ]


class InfluxDBWriter:
    """Owns the write queue of a server, and the threads that send from it.

    Args:
        connection: the server; shared with other threads.
        databases: where the samples of each tenant belong.
        load_types: reads the field types of a measurement in a database.
        max_queued_points: how many points may wait before `submit` refuses.
    """

    def __init__(
        self,
        connection: InfluxDBConnection,
        *,
        databases: TenantDatabases,
        load_types: Callable[[str, str], Mapping[str, str]],
        max_queued_points: int,
    ) -> None:
        self._connection = connection
        self._databases = databases
        self._load_types = load_types
        self._senders: dict[str, _TenantSender] = {}
        self._is_closing = threading.Event()
        self._outage: StoreUnavailableError | None = None
        self._queue = WriteQueue(max_points=max_queued_points, max_group_points=MAX_REQUEST_LINES)
        self.submit = self._queue.submit
        self._pool = ThreadPoolExecutor(CONCURRENT_TENANTS, thread_name_prefix="influxdb-sender")
        self._thread = threading.Thread(target=self._run, name="influxdb-writer", daemon=True)
        self._thread.start()

    def run(self, change: Callable[[], None]) -> None:
        """Run a deletion between two requests and wait for it."""

        def run() -> None:
            # Deleting all values of a field deletes its type.
            self._senders.clear()
            change()

        self._queue.run(run)

    def close(self) -> None:
        """Write queued points and stop; during an outage, fail them instead."""
        self._is_closing.set()
        self._queue.close()
        self._thread.join()
        self._pool.shutdown()

    def _run(self) -> None:
        while (work := self._queue.take()) is not None:
            if isinstance(work, Task):
                work.execute()
            else:
                self._write([item for item in work if item.future.set_running_or_notify_cancel()])

    def _write(self, group: Sequence[Submission]) -> None:
        """Write a group of submissions and resolve their futures."""
        pending = [PendingSubmission(submission) for submission in group]
        if self._outage is not None and self._is_closing.is_set():
            # Waiting for the timeout of every queued request could take half an hour.
            for entry in pending:
                entry.error = self._outage
        else:
            self._send_all(pending)
        for entry in pending:
            entry.resolve()

    def _send_all(self, pending: Sequence[PendingSubmission]) -> None:
        """Send the submissions of each tenant together, and those of several tenants at once."""
        by_tenant: dict[str, list[PendingSubmission]] = {}
        for entry in pending:
            tenant = entry.submission.identity.get(TENANT_TAG, "")
            by_tenant.setdefault(tenant, []).append(entry)
        try:
            work = [(self._sender(tenant), group) for tenant, group in by_tenant.items()]
        except VedetteError as error:
            outages = [_fail(pending, error)]
        else:
            if len(work) == 1:
                outages = [_TenantSender.send(*work[0])]
            else:
                outages = list(self._pool.map(lambda pair: _TenantSender.send(*pair), work))
        self._outage = next(filter(None, outages), None)

    def _sender(self, tenant: str) -> "_TenantSender":
        sender = self._senders.get(tenant)
        if sender is None:
            database = TenantDatabase(self._connection, self._databases, tenant)
            sender = self._senders[tenant] = _TenantSender(database, self._load_types)
        return sender


class _TenantSender:
    """Sends the points of one tenant to its database."""

    def __init__(
        self, database: TenantDatabase, load_types: Callable[[str, str], Mapping[str, str]]
    ) -> None:
        self._database = database
        self._types = FieldTypes(lambda measurement: load_types(database.name, measurement))

    def send(self, pending: Sequence[PendingSubmission]) -> StoreUnavailableError | None:
        """Send submissions, and hand an error to their senders; return that of an outage."""
        requests: list[list[Piece]] = []
        try:
            requests = list(
                pack_requests(piece for entry in pending for piece in self._pieces(entry))
            )
            while requests:
                self._send(requests[0])
                del requests[0]
        except Exception as error:  # noqa: BLE001 - handed to the senders; the thread must go on
            # Fields that this request would have created may not exist.
            self._types.clear()
            unsent = [piece.pending for request in requests for piece in request]
            return _fail(unsent or pending, error)
        return None

    def _pieces(self, pending: PendingSubmission) -> Iterator[Piece]:
        batch, rejected = validate(
            pending.submission.batch, pending.submission.identity, self._types
        )
        pending.rejected.extend(rejected)
        return split_submission(pending, batch)

    def _send(self, request: Sequence[Piece]) -> None:
        try:
            self._database.write(b"".join(piece.lines for piece in request))
        except LinesRejectedError:
            self._types.clear()
            for piece in request:
                self._resend_valid(piece)
            # Rejected points have not set the types of their fields.
            self._types.clear()
        except RequestTooLargeError:
            for piece in request:
                self._send_halves(piece.pending, piece.batch)

    def _resend_valid(self, piece: Piece) -> None:
        """Validate again with the server's current types, then find bad points by halves."""
        submission = piece.pending.submission
        positions = {at for block in piece.batch.blocks for at in block.positions}
        others = {at for block in submission.batch.blocks for at in block.positions} - positions
        batch, rejected = validate(
            submission.batch.without(others), submission.identity, self._types
        )
        piece.pending.rejected.extend(rejected)
        self._send_halves(piece.pending, batch)

    def _send_halves(self, pending: PendingSubmission, batch: Batch) -> None:
        if not len(batch):
            return
        is_one = len(batch) == 1
        try:
            self._database.write(encode_lines(batch))
        except LinesRejectedError as error:
            if is_one or error.dropped == len(batch):
                pending.rejected += reject_all(batch, str(error))
                return
        except RequestTooLargeError:
            if is_one:
                pending.rejected += reject_all(batch, "it exceeds the server's request size limit")
                return
        else:
            return
        for half in split_batch(batch, (len(batch) + 1) // 2):
            self._send_halves(pending, half)


def _fail(pending: Sequence[PendingSubmission], error: Exception) -> StoreUnavailableError | None:
    """Hand an error to senders; return it if the server is unavailable."""
    _log.warning("could not write points: %s", error)
    store_error = as_store_error(error)
    for entry in pending:
        entry.error = store_error
    return store_error if isinstance(store_error, StoreUnavailableError) else None
