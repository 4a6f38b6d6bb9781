"""The output folders of attempts: made or restored before they start, uploaded while they run.

Each attempt with outputs has a thread of its own, with its own connection, so that one with a
terabyte delays no other's checkpoint. The end of an attempt waits until its results are uploaded,
for a limited time; what is left then goes on in the background, also after a restart of the agent.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from threading import Event, Thread, get_native_id

import msgspec

from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.jobs.preparations import Preparation, PreparationError
from collector.periodic_task import Backoff
from collector.results.client import DamagedError, PartClient
from collector.results.events import EventFiles
from collector.results.folders import Folder, Folders, remove
from collector.results.restoring import Restore, RestoreError
from collector.results.scanning import scan
from collector.results.settings import ResultSettings
from collector.results.uploads import StoppedError, UnknownAttemptError, Uploads
from collector.sending.byte_rate import ByteRate
from collector.sending.portal_connection import PortalConnection
from core.clock import Clock, to_ns
from core.quantities import format_size
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StagingProgress
from protocol.job_spec import Mount
from timeseries.points import Point

log = logging.getLogger(__name__)

# How often what can't be restored is tried before the attempt fails.
_RESTORE_TRIES = 5
_NICENESS = 10
# All threads together at the end; the agent's service is killed after a while.
_JOIN_SECONDS = 2.0
_NS = 1_000_000_000


class _Work:
    """The thread of one attempt's folders, and what it says of them."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.events = EventFiles(folder)
        self.wake = Event()
        self.stop = Event()
        self.is_done = False
        self.is_unknown = False
        self.error = ""
        self.problem = ""
        self.restore: Restore | None = None
        self.uploads: Uploads | None = None
        self.thread: Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self.thread is not None and self.thread.is_alive()


class OutputPreparation(Preparation):
    """Prepares the output folders of attempts.

    Args:
        settings: `[results]`.
        data_dir: where the folders are; the engine must see it at the same path.
        connect: opens a connection to the portal for one thread.
        add_points: takes metrics from event files.
        wake: wakes the thread of attempts.
        clock: the time.
    """

    def __init__(
        self,
        settings: ResultSettings,
        data_dir: Path,
        connect: Callable[[], PortalConnection],
        *,
        add_points: Callable[[list[Point]], object],
        wake: Callable[[], object],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._folders = Folders(data_dir)
        self._connect = connect
        self._add_points = add_points
        self._wake = wake
        self._clock = clock
        self._rate = ByteRate(settings.max_bytes_per_second)
        self._works: dict[str, _Work] = {}
        self._live: frozenset[str] = frozenset()
        self._is_closed = False
        self._is_loaded = False

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt with its folders as mounts, once they have what earlier ones left."""
        if spec.outputs is None or not spec.outputs.paths:
            return spec
        self._load()
        work = self._works.get(spec.attempt_id)
        if work is None:
            try:
                folder = self._take_over(spec)
            except OSError as error:
                raise PreparationError(
                    "start_failed",
                    f"The appliance can't make the output folders: {error.strerror or error}.",
                ) from error
            if folder is None:
                return None  # the attempt before is still stopping
            work = self._begin(folder)
        if work.error:
            raise PreparationError("data_unavailable", work.error)
        if not work.folder.state.is_ready:
            return None
        mounts = [
            Mount(source=str(host), target=path, is_read_only=False)
            for path, host in work.folder.pairs()
        ]
        return msgspec.structs.replace(spec, mounts=[*spec.mounts, *mounts])

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:
        """Return how far the files of earlier attempts are."""
        work = self._works.get(attempt_id)
        restore = work.restore if work is not None else None
        if work is not None and work.problem:
            return f"Can't restore results now, trying again. {work.problem}", None
        if restore is None or not restore.total_bytes:
            return "Preparing the output folders.", None
        fetched, total = restore.fetched_bytes, restore.total_bytes
        message = f"Restoring results: {format_size(fetched)} of {format_size(total)}."
        return message, StagingProgress(staged_bytes=min(fetched, total), total_bytes=total)

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed; ended attempts run on until their results are uploaded."""
        self._load()
        self._live = frozenset(seen.attempt_id for seen in observed if not seen.state.is_final)
        reviewed = [self._reviewed(seen) for seen in observed]
        observed_ids = {seen.attempt_id for seen in observed}
        held = [
            self._held(work, ended)
            for attempt_id, work in self._works.items()
            if attempt_id not in observed_ids
            and (ended := work.folder.state.ended) is not None
            and not work.folder.state.is_reported
        ]
        return reviewed + held

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Delete the folders of attempts that are gone, once all is uploaded."""
        now_ns = to_ns(self._clock())
        for attempt_id, work in list(self._works.items()):
            if attempt_id not in attempt_ids and self._is_over(work, now_ns):
                self._delete(work)
            elif not (work.is_alive or work.is_unknown or work.error or self._is_closed):
                self._begin(work.folder)  # it gave way to a next attempt that isn't there

    def _is_over(self, work: _Work, now_ns: int) -> bool:
        """Return whether the folders of an attempt that is gone are of no more use."""
        state = work.folder.state
        if not state.gone_at_ns:
            state.gone_at_ns = now_ns
            work.folder.save()
            work.wake.set()
        kept_ns = now_ns - state.gone_at_ns
        is_old = work.is_done and kept_ns >= self._settings.keep_seconds * _NS
        return work.is_unknown or is_old or not state.is_ready

    def close(self) -> None:
        """End the threads; folders stay."""
        self._is_closed = True
        works = list(self._works.values())
        for work in works:
            work.stop.set()
            work.wake.set()
        deadline = time.monotonic() + _JOIN_SECONDS
        for work in works:
            if work.thread is not None:
                work.thread.join(max(0.0, deadline - time.monotonic()))

    def _load(self) -> None:
        """Go on with what an earlier run of the agent has left."""
        if not self._is_loaded:
            self._is_loaded = True
            for folder in self._folders.load():
                self._begin(folder)

    def _take_over(self, spec: AttemptSpec) -> Folder | None:
        """Return the folders of the attempt before, or new ones; None while that one runs."""
        outputs = spec.outputs
        assert outputs is not None  # noqa: S101 - `prepare` has checked it
        before = next(
            (
                work
                for work in self._works.values()
                if outputs.previous_attempt_id in work.folder.state.attempt_ids
                and work.folder.state.paths == outputs.paths
                and work.folder.state.is_ready
            ),
            None,
        )
        if before is None:
            folder = self._folders.create(spec.attempt_id, spec.job_id, outputs.paths)
            if not outputs.previous_attempt_id:
                folder.state.is_ready = True
                folder.save()
            return folder
        if before.folder.attempt_id in self._live:
            return None
        self._end_thread(before)
        if before.is_alive:
            return None
        del self._works[before.folder.attempt_id]
        return self._folders.hand_on(before.folder, spec.attempt_id)

    def _begin(self, folder: Folder) -> _Work:
        work = _Work(folder)
        self._works[folder.attempt_id] = work
        name = f"results-{folder.attempt_id[:8]}"
        work.thread = Thread(target=self._run, args=(work,), name=name, daemon=True)
        work.thread.start()
        return work

    def _end_thread(self, work: _Work) -> None:
        work.stop.set()
        work.wake.set()

    def _delete(self, work: _Work) -> None:
        self._end_thread(work)
        if work.is_alive:
            return  # the next step deletes it
        remove(work.folder.root)
        del self._works[work.folder.attempt_id]

    def _reviewed(self, seen: AttemptObservation) -> AttemptObservation:
        work = self._works.get(seen.attempt_id)
        if work is None or not seen.state.is_final:
            return seen
        state = work.folder.state
        if state.ended is None:
            state.ended, state.ended_at_ns = seen, to_ns(self._clock())
            work.is_done = False
            work.folder.save()
            work.wake.set()
        return self._held(work, state.ended)

    def _held(self, work: _Work, ended: AttemptObservation) -> AttemptObservation:
        """Return an ended attempt as one that runs, while its results are uploaded."""
        state, uploads = work.folder.state, work.uploads
        now_ns = to_ns(self._clock())
        # A clock that was set back must not hold the end for as long.
        state.ended_at_ns = min(state.ended_at_ns, now_ns)
        waited_ns = now_ns - state.ended_at_ns
        is_late = waited_ns >= self._settings.end_wait_seconds * _NS
        left = _left(uploads)
        if not state.is_reported and (work.is_done or work.is_unknown or is_late):
            state.is_reported = True
            if not (work.is_done or work.is_unknown):
                text = f"Its results are still being uploaded: {left}. They are kept until then."
                state.ended = msgspec.structs.replace(
                    ended, message=f"{ended.message} {text}".strip()
                )
            work.folder.save()
        if state.is_reported:
            return state.ended or ended
        return AttemptObservation(
            attempt_id=ended.attempt_id,
            state=ObservedState.RUNNING,
            message=f"Uploading results: {left}.",
            started_at_ns=ended.started_at_ns,
        )

    def _run(self, work: _Work) -> None:
        """Restore, then upload until the attempt is gone and the portal has all."""
        _be_nice()
        client = PartClient(self._connect(), self._rate)
        backoff = Backoff()
        tries = 0
        try:
            while not work.stop.is_set():
                work.wake.clear()
                try:
                    wait_seconds = self._step(work, client)
                except (StoppedError, UnknownAttemptError) as error:
                    work.is_unknown = isinstance(error, UnknownAttemptError)
                    self._wake()
                    return
                except (RestoreError, DamagedError, PortalRefusedError) as error:
                    tries += 1
                    is_over = tries >= _RESTORE_TRIES or isinstance(error, RestoreError)
                    if is_over and not work.folder.state.is_ready:
                        work.error = f"The job's results can't be restored: {error}"
                        self._wake()
                        return
                    if work.problem != str(error):
                        log.warning("results of %s: %s", work.folder.attempt_id, error)
                        work.problem = str(error)
                    wait_seconds = backoff.next_seconds()
                except PortalUnreachableError as error:
                    if not backoff.failures:
                        log.warning("results of %s: %s", work.folder.attempt_id, error.message)
                    work.problem = error.message
                    wait_seconds = backoff.next_seconds(at_least=error.retry_after_seconds)
                except Exception:
                    log.exception("results of %s failed", work.folder.attempt_id)
                    wait_seconds = backoff.next_seconds()
                else:
                    backoff.reset()
                    work.problem = ""
                work.wake.wait(wait_seconds)
        finally:
            client.close()

    def _step(self, work: _Work, client: PartClient) -> float:
        """Do what is due; return the seconds until the next step."""
        folder = work.folder
        if not folder.state.is_ready:
            work.restore = Restore(folder, client, stop=work.stop)
            work.restore.run()
            folder.state.is_ready = True
            folder.save()
            self._wake()
        if work.uploads is None:
            work.uploads = Uploads(
                folder,
                client,
                self._settings,
                stop=work.stop,
                now_ns=lambda: to_ns(self._clock()),
            )
        has_ended = folder.state.ended is not None or folder.state.gone_at_ns > 0
        content = scan(folder.pairs())
        points = work.events.new_points(content)
        if points:
            self._add_points(points)
        is_complete = work.uploads.sync(content, is_final=has_ended)
        folder.save()
        if has_ended and is_complete and not work.is_done:
            work.is_done = True
            self._wake()
        return self._settings.interval_seconds if not work.is_done else 3600.0


def _left(uploads: Uploads | None) -> str:
    if uploads is None or not uploads.pending_files:
        return "looking for changes"
    files = f"{uploads.pending_files:,} file{'' if uploads.pending_files == 1 else 's'}"
    return f"{files}, {format_size(uploads.pending_bytes)} left"


def _be_nice() -> None:
    """Give this thread less of the CPU than jobs and metrics; Linux has niceness by thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)
    except OSError:
        log.debug("the priority of uploads can't be lowered")
