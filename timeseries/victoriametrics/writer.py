"""Writing to VictoriaMetrics: one thread sends what was queued during the last request.

In a cluster each tenant has a request of its own. A submission is acknowledged when the server has
answered its request; if that fails, its sender gets the error and sends the points again.

What a server that was killed has lost is written again: every few seconds, and after each error,
the writer asks the server since when it runs.
"""

import logging
import threading
import time
from pathlib import Path

from core.clock import Clock, to_ns
from core.errors import VedetteError
from timeseries.store import TENANT_TAG, StoreUnavailableError
from timeseries.victoriametrics.client import ServerFlags, VictoriaMetricsClient, parse_flags
from timeseries.victoriametrics.lines import Lines, WriteContext, account_of, encode
from timeseries.victoriametrics.recent_writes import RecentWrites, write_mark
from timeseries.write_queue import Submission, Task, WriteQueue

MAX_GROUP_POINTS = 20_000
CHECK_SECONDS = 5.0

log = logging.getLogger(__name__)


class VictoriaMetricsWriter:
    """Owns the write queue of a store, and the thread that sends from it."""

    def __init__(
        self,
        client: VictoriaMetricsClient,
        *,
        database: str,
        clock: Clock,
        max_queued_points: int,
        recent_folder: Path | None = None,
    ) -> None:
        self._client = client
        self._recent_folder = recent_folder
        self._recent: RecentWrites | None = None
        self._started_at: tuple[str, ...] | None = None
        self._check_at = 0.0
        self._database = database
        self._clock = clock
        self._flags: ServerFlags | None = None
        self._warned: set[object] = set()
        self._queue = WriteQueue(max_points=max_queued_points, max_group_points=MAX_GROUP_POINTS)
        self.submit, self.run = self._queue.submit, self._queue.run
        self._thread = threading.Thread(target=self._run, name="victoriametrics-writer")
        self._thread.daemon = True
        self._thread.start()

    def close(self) -> None:
        """Write queued points and stop the thread."""
        self._queue.close()
        self._thread.join()
        if self._recent is not None:
            self._recent.close()

    def _run(self) -> None:
        while (work := self._queue.take()) is not None:
            if isinstance(work, Task):
                work.execute()
            else:
                self._write(work)

    def _write(self, group: list[Submission]) -> None:
        if not self._client.is_cluster:
            self._write_to(self._client, group)
            return
        by_account: dict[str, list[Submission]] = {}
        for submission in group:
            account = account_of(self._database, submission.identity.get(TENANT_TAG, ""))
            by_account.setdefault(account, []).append(submission)
        for account, submissions in by_account.items():
            self._write_to(self._client.within(account), submissions)

    def _write_to(self, client: VictoriaMetricsClient, group: list[Submission]) -> None:
        try:
            encoded = self._encoded(group)
            text = "".join(lines.text for lines in encoded)
            if text:
                self._store(client, text.encode())
        except Exception as error:
            self._flags = None  # After a restart the server may have other flags.
            self._check_at = 0.0
            if not isinstance(error, VedetteError):
                log.exception("could not write a batch")
            for submission in group:
                submission.future.set_exception(error)
        else:
            for submission, lines in zip(group, encoded, strict=True):
                submission.future.set_result(lines.rejected)

    def _store(self, client: VictoriaMetricsClient, lines: bytes) -> None:
        if self._recent_folder is None:
            client.write(lines)
            return
        try:
            if self._recent is None:
                # Not before the first write: a process that writes nothing would take over the
                # files of one that was killed, and never write them again.
                self._recent = RecentWrites(self._recent_folder)
            if time.monotonic() >= self._check_at:
                self._check_restart(self._recent)
            client.write(lines)
            self._recent.add(client.account, lines)
        except OSError as error:
            raise _not_stored(error, self._recent_folder) from error

    def forget(self, mark: bytes) -> None:
        """Never write lines with a mark again.

        Raises:
            StoreUnavailableError: the disk is full, for example.
        """
        if self._recent_folder is not None:
            try:
                write_mark(self._recent_folder, mark)
            except OSError as error:
                raise _not_stored(error, self._recent_folder) from error

    def _check_restart(self, recent: RecentWrites) -> None:
        """Write what may be lost again if the server was started since the last check."""
        started_at = self._client.started_at()
        if started_at is None:
            self._warn_once(
                "/metrics is not reachable: samples of its last seconds are lost if it is killed"
            )
            # Nothing would ever show that the server has them on its disk.
            recent.forget_old()
        elif started_at == self._started_at:
            recent.forget_old()
        else:
            for account, lines in recent.records():
                self._client.within(account).write(lines)
            self._started_at = started_at
        self._check_at = time.monotonic() + CHECK_SECONDS

    def _encoded(self, group: list[Submission]) -> list[Lines]:
        now_ms = to_ns(self._clock()) // 1_000_000
        first_ms, last_ms = self._server_flags().accepted_ms(now_ms)
        encoded = [
            encode(
                submission.batch,
                WriteContext(self._database, submission.identity, first_ms, last_ms),
            )
            for submission in group
        ]
        for lines in encoded:
            for measurement, field in lines.left_out:
                self._warn_once(f"field {field!r} of {measurement!r} is text and is dropped")
        return encoded

    def _server_flags(self) -> ServerFlags:
        if self._flags is None:
            flags = parse_flags(self._client.flags())
            if flags.errors:
                raise StoreUnavailableError(
                    f"VictoriaMetrics at {self._client.url} has unsupported flags: "
                    f"{'; '.join(flags.errors)}."
                )
            for warning in flags.warnings:
                self._warn_once(warning)
            self._flags = flags
        return self._flags

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning("VictoriaMetrics at %s: %s", self._client.url, message)


def _not_stored(error: OSError, folder: Path) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"Samples can't be stored: {error.strerror or error}. VictoriaMetrics may lose the newest "
        f"ones if it is killed, so the server keeps them in {folder}."
    )
