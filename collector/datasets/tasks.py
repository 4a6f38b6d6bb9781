"""The tasks of the stager: one for each version that is being fetched, or source being indexed."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event, Thread

from collector.datasets.fetching import VersionFetch
from collector.datasets.progress import Progress
from protocol.datasets import CopyState, DatasetCopy, IndexOrder, StagedDataset

MAX_RUNNING = 2
RETRY_ORDER_SECONDS = 300.0
JOIN_SECONDS = 2.0
MAX_MESSAGE_LENGTH = 1000
ATTEMPT, AWAITED, PINNED, PREFETCH, INDEX = range(5)


@dataclass(slots=True)
class Task:
    """What is wanted of one version.

    Attributes:
        rank: who wants it most.
        failed_at: when it failed last, of the monotonic clock.
    """

    wanted: StagedDataset | IndexOrder
    rank: int
    progress: Progress
    stop: Event = field(default_factory=Event)
    thread: Thread | None = None
    fetch: VersionFetch | None = None
    error: str = ""
    failed_at: float | None = None
    is_done: bool = False

    @property
    def is_running(self) -> bool:
        """Whether a thread is at it."""
        return self.thread is not None and self.thread.is_alive()


class Tasks:
    """The tasks by version, and how much each version took. Its user locks it.

    Args:
        run: runs a task, in a thread of its own.
        monotonic: the clock of retries.
    """

    def __init__(self, run: Callable[[Task], None], *, monotonic: Callable[[], float]) -> None:
        self._run = run
        self._monotonic = monotonic
        self._tasks: dict[str, Task] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._bytes_per_second = 0

    def __iter__(self) -> Iterator[tuple[str, Task]]:
        return iter(self._tasks.items())

    def get(self, version_id: str) -> Task | None:
        """Return the task of a version, if it has one."""
        return self._tasks.get(version_id)

    @property
    def is_busy(self) -> bool:
        """Whether any is running."""
        return any(task.is_running for task in self._tasks.values())

    def settle(self, wanted: Mapping[str, tuple[StagedDataset | IndexOrder, int]]) -> None:
        """Begin and end tasks, so that they are those that are wanted."""
        for version_id, task in list(self._tasks.items()):
            if version_id in wanted:
                task.rank = wanted[version_id][1]
                continue
            task.stop.set()
            if not task.is_running:
                self._remove(version_id)
        for version_id, (order, rank) in wanted.items():
            present = self._tasks.get(version_id)
            if present is None:
                total_bytes = order.total_bytes if isinstance(order, StagedDataset) else 0
                self._tasks[version_id] = Task(order, rank, Progress(order.name, total_bytes))
            elif not present.is_running and self._is_retry_due(present):
                present.error, present.failed_at = "", None
        self._begin_next()

    def error(self, version_id: str) -> str:
        """Return why the task of a version has failed; "" if it hasn't."""
        task = self._tasks.get(version_id)
        return task.error if task is not None and not task.is_running else ""

    def forget_failure(self, version_id: str) -> None:
        """Let a version be tried anew if it has failed."""
        if self.error(version_id):
            self._remove(version_id)

    def end(self, task: Task, *, error: str, is_stopped: bool) -> None:
        """Record how a task has ended."""
        task.thread = None
        task.fetch = None
        task.error = error
        task.failed_at = self._monotonic() if error else None
        task.is_done = not (error or is_stopped or task.stop.is_set())

    def stop(self) -> list[Thread]:
        """Stop all; return their threads."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.stop.set()
        return [task.thread for task in tasks if task.thread is not None]

    # What they have done

    def counted(self, version_id: str) -> tuple[int, int]:
        """Return the bytes of a version that came over the line, and from peers."""
        fetched_bytes, peer_bytes = self._counts.get(version_id, (0, 0))
        if (task := self._tasks.get(version_id)) is not None:
            fetched_bytes += task.progress.fetched_bytes
            peer_bytes += task.progress.peer_bytes
        return fetched_bytes, peer_bytes

    def totals(self) -> tuple[int, int]:
        """Return the bytes of all versions that came over the line, and from peers."""
        counts = [self.counted(own) for own in self._tasks.keys() | self._counts.keys()]
        return sum(fetched for fetched, _ in counts), sum(peers for _, peers in counts)

    def rate(self) -> int:
        """Return how fast versions are fetched now, or were last; 0 while that is unknown."""
        rates = [task.progress.bytes_per_second() for task in self._tasks.values() if task.fetch]
        self._bytes_per_second = round(max((rate for rate in rates if rate), default=0)) or (
            self._bytes_per_second
        )
        return self._bytes_per_second

    def copy_of(self, version_id: str, task: Task) -> DatasetCopy:
        """Return how far the version of a task is."""
        state = CopyState.FETCHING
        if task.error:
            state = CopyState.FAILED
        elif task.is_done:
            state = CopyState.COMPLETE
        fetched_bytes, peer_bytes = self.counted(version_id)
        return DatasetCopy(
            version_id=version_id,
            state=state,
            cached_bytes=max(0, task.progress.staged_bytes),
            fetched_bytes=fetched_bytes,
            peer_bytes=peer_bytes,
            message=(task.error or task.progress.note)[:MAX_MESSAGE_LENGTH],
        )

    def _remove(self, version_id: str) -> None:
        self._counts[version_id] = self.counted(version_id)
        del self._tasks[version_id]

    def _is_retry_due(self, task: Task) -> bool:
        """Return whether an order that failed is tried again; an attempt that failed has ended."""
        if task.failed_at is None or task.rank in {ATTEMPT, INDEX}:
            return False
        return self._monotonic() - task.failed_at >= RETRY_ORDER_SECONDS

    def _begin_next(self) -> None:
        running = sum(task.is_running for task in self._tasks.values())
        ready = [
            task
            for task in self._tasks.values()
            if not task.is_running and not task.error and not task.is_done
        ]
        for task in sorted(ready, key=lambda task: task.rank):
            # The last place is kept for attempts.
            if running >= MAX_RUNNING or (task.rank != ATTEMPT and running >= MAX_RUNNING - 1):
                if task.rank == AWAITED:
                    self._pause_others()
                break
            task.stop = Event()
            task.thread = Thread(target=self._run, args=(task,), name="data-stage", daemon=True)
            task.thread.start()
            running += 1

    def _pause_others(self) -> None:
        """Stop to fetch what no job waits for; it goes on later from where it is."""
        for task in self._tasks.values():
            if task.is_running and task.rank in {PINNED, PREFETCH}:
                task.stop.set()


def join(threads: list[Thread]) -> None:
    """Wait a little for threads to end."""
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
