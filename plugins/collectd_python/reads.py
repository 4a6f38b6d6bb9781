"""Runs each read callback in its own thread, so that one that hangs does not block others."""

import logging
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from plugins.collectd_python.daemon import NAME_PREFIX, Callback, Daemon

log = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 86400.0
MOST_SLACK_SECONDS = 0.5


@dataclass(slots=True)
class _Read:
    """Schedule of a callback; `wait_seconds` grows while it fails."""

    callback: Callback
    interval_seconds: float
    wait_seconds: float
    planned_at: datetime
    thread: threading.Thread | None = None
    is_late: bool = False


class Reads:
    """Calls the read callbacks of a daemon when they are due. For one thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._reads: dict[str, _Read] = {}

    def run_due(self, now: datetime, *, wait_seconds: float) -> None:
        """Call what is due and wait this long; unfinished callbacks continue."""
        self._follow_registrations(now)
        started = [read for read in self._reads.values() if self._start(read, now)]
        deadline = time.monotonic() + wait_seconds
        for read in started:
            if read.thread is not None:
                read.thread.join(max(0.0, deadline - time.monotonic()))

    def _follow_registrations(self, now: datetime) -> None:
        registered = self._daemon.callbacks.read
        for name in self._reads.keys() - registered.keys():
            del self._reads[name]
        for name, (callback, own_seconds) in list(registered.items()):
            scheduled = self._reads.get(name)
            if scheduled is None or scheduled.callback is not callback:
                seconds = own_seconds or self._daemon.interval_seconds
                self._reads[name] = _Read(callback, seconds, seconds, now)

    def _start(self, read: _Read, now: datetime) -> bool:
        """Start a callback if it is due and the last call has returned."""
        slack_seconds = min(MOST_SLACK_SECONDS, read.interval_seconds / 10)
        if now < read.planned_at - timedelta(seconds=slack_seconds):
            return False
        if read.thread is not None and read.thread.is_alive():
            if not read.is_late:
                name = read.callback.name.removeprefix(NAME_PREFIX)
                log.warning("collectd_python: %s: its read callback hangs", name)
            read.is_late = True
            return False
        read.is_late = False
        is_on_beat = now - read.planned_at < timedelta(seconds=read.wait_seconds)
        began_at = read.planned_at if is_on_beat else now
        read.planned_at = began_at + timedelta(seconds=read.interval_seconds)
        read.thread = threading.Thread(
            target=self._call, args=(read, began_at), name=read.callback.name, daemon=True
        )
        read.thread.start()
        return True

    def _call(self, read: _Read, began_at: datetime) -> None:
        name = read.callback.name.removeprefix(NAME_PREFIX)
        with self._daemon.attributed_to(name, read.interval_seconds):
            if self._daemon.call(read.callback, "read"):
                read.wait_seconds = read.interval_seconds
                return
            read.wait_seconds = min(LONGEST_RETRY_SECONDS, read.wait_seconds * 2)
            read.planned_at = began_at + timedelta(seconds=read.wait_seconds)
            log.warning("collectd_python: %s: read failed, next in %.0f s", name, read.wait_seconds)
