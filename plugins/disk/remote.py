"""Asks remote file systems for their space, without waiting for a server that does not answer.

`statvfs` of a hung NFS mount does not come back until the server does, and nothing can interrupt
it. So a thread of its own asks. When it does not finish in time, the mount that it waits for is
*stuck*: it is left alone until its thread comes back, and a new thread asks the others.
"""

import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread

StatVFS = Callable[[bytes], os.statvfs_result]


class RemoteReader:
    """Reads remote mounts in one thread, and one more for each mount that is stuck."""

    def __init__(self, *, wait_seconds: float, statvfs: StatVFS = os.statvfs) -> None:
        self._wait_seconds = wait_seconds
        self._statvfs = statvfs
        self._worker: _Worker | None = None
        self._stuck: dict[bytes, _Worker] = {}

    @property
    def stuck(self) -> list[bytes]:
        """Mount points whose server does not answer."""
        return sorted(path for path, worker in self._stuck.items() if worker.thread.is_alive())

    def read(self, paths: Sequence[bytes]) -> dict[bytes, os.statvfs_result]:
        """Return what each mount point answered in time."""
        stuck = self.stuck
        self._stuck = {path: self._stuck[path] for path in stuck}
        asked = [path for path in paths if path not in self._stuck]
        if not asked:
            return {}
        if self._worker is None:
            self._worker = _Worker(self._statvfs)
        task = _Task(asked)
        self._worker.tasks.put(task)
        if not task.is_done.wait(self._wait_seconds):
            self._abandon(self._worker, task)
        return dict(task.found)

    def close(self) -> None:
        """End the thread; those of stuck mounts end when their server answers."""
        if self._worker:
            self._worker.tasks.put(None)
            self._worker = None

    def _abandon(self, worker: "_Worker", task: "_Task") -> None:
        task.is_abandoned = True
        self._stuck[task.current] = worker
        self.close()


class _Task:
    """Mounts to ask, and what they answered so far."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self.paths = paths
        self.current = paths[0]
        self.found: dict[bytes, os.statvfs_result] = {}
        self.is_done = Event()
        self.is_abandoned = False


class _Worker:
    def __init__(self, statvfs: StatVFS) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._statvfs = statvfs
        self.thread = Thread(target=self._run, name="remote-mounts", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (task := self.tasks.get()) is not None:
            for path in task.paths:
                if task.is_abandoned:
                    break
                task.current = path
                try:
                    task.found[path] = self._statvfs(path)
                except OSError:  # unmounted just now, or not ours to look at
                    continue
            task.is_done.set()
