"""Tells the database every few seconds that this process runs, and how busy it is.

Tunnels of processes that don't say so any longer are released: one that hangs would keep them.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from resource import getpagesize

from core.background import repeated
from core.broker import Broker, BrokerState
from core.clock import Clock, utc_now
from core.db import SessionFactory, changes_of, transaction
from core.errors import DatabaseUnavailableError
from core.leases import process_name
from jobqueue.services.tunnels import release_tunnels
from serving.watched import answered_requests
from tenants.lifecycle.server_processes import (
    BEAT_SECONDS,
    SILENT_AFTER,
    broker_states,
    forget_process,
    note_process,
    silent_urls,
)
from tenants.models import ServerProcess

log = logging.getLogger(__name__)

_STATM = Path("/proc/self/statm")


class Heartbeat:
    """Writes the row of this process.

    Args:
        sessions: of the database.
        parts: what the process serves.
        url: where other processes reach it.
        broker: leads to other processes.
        shared: fingerprints of what all processes must share, by name.
        clock: returns the current time.
    """

    def __init__(
        self,
        sessions: SessionFactory,
        parts: Collection[str],
        *,
        url: str,
        broker: Broker | None = None,
        shared: Mapping[str, str] | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._sessions = sessions
        self._parts = " ".join(sorted(parts))
        self._url = url
        self._broker = broker or Broker()
        self._broker_since: datetime | None = None
        self._shared = " ".join(f"{name}={text}" for name, text in (shared or {}).items())
        self._clock = clock
        self._started_at = clock()
        self._seen_at: datetime | None = None
        self._read = (time.monotonic(), time.process_time(), answered_requests())
        self._broker.watch(self._note_broker)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Write every few seconds during the block, and remove the row at its end."""
        self._try_to_beat()
        try:
            with repeated(self._try_to_beat, every_seconds=BEAT_SECONDS, name="heartbeat"):
                yield
        finally:
            self._try_to_forget()

    def beat(self) -> None:
        """Write the load since the last call."""
        readings, self._read = (
            self._read,
            (time.monotonic(), time.process_time(), answered_requests()),
        )
        seconds, cpu_seconds, requests = (
            new - old for new, old in zip(self._read, readings, strict=True)
        )
        process = ServerProcess(
            holder=process_name(),
            url=self._url,
            parts=self._parts,
            version=version("vedette"),
            started_at=self._started_at,
            seen_at=self._clock(),
            requests_per_second=requests / seconds if seconds else 0.0,
            cpu_percent=100 * cpu_seconds / seconds if seconds else 0.0,
            memory_bytes=_resident_bytes(),
            broker=self._broker.state.value,
            broker_since=self._broker_since,
            shared=self._shared,
        )
        with transaction(self._sessions) as session:
            note_process(session, process)
            now = process.seen_at
            states = broker_states(session, now=now)
        self._note_others(states)
        before, self._seen_at = self._seen_at, now
        # After an outage of the database, others have not written either.
        if before is not None and now - before < SILENT_AFTER:
            with transaction(self._sessions) as session:
                for url in silent_urls(session, now=now):
                    release_tunnels(session, url)

    def _note_broker(self, _state: BrokerState) -> None:
        self._broker_since = self._clock()

    def _note_others(self, states: Mapping[str, int]) -> None:
        """Poll while another process has no broker, or has lost it: its changes don't arrive."""
        changes = changes_of(self._sessions)
        if states.keys() == {BrokerState.CONNECTED}:
            changes.set_complete(True)
        if self._broker.state is not BrokerState.CONNECTED or len(states) > 1:
            changes.set_complete(False)

    def _try_to_beat(self) -> None:
        try:
            self.beat()
        except DatabaseUnavailableError:
            log.debug("the load of this process was not written")
        except Exception:
            log.exception("the load of this process was not written")

    def _try_to_forget(self) -> None:
        try:
            with transaction(self._sessions) as session:
                forget_process(session, process_name())
        except DatabaseUnavailableError:
            log.debug("the row of this process was not removed")


def _resident_bytes() -> int:
    return int(_STATM.read_text(encoding="ascii").split()[1]) * getpagesize()
