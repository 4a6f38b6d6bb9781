"""The scheduler's lease: of several processes, only the one that has it runs the tasks."""

import logging
import threading
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement

from core.clock import Clock
from core.db import SessionFactory, transaction
from core.errors import DatabaseUnavailableError
from core.leases import SCHEDULER_LEASE, acquire_lease, lease_is_held, process_name, release_lease

log = logging.getLogger(__name__)

LEASE_DURATION = timedelta(seconds=15)
LEASE_RENEWAL_SECONDS = 5.0


class SchedulerLease:
    """Renews the lease in a thread of its own: tasks may fill the scheduler's pool."""

    def __init__(self, sessions: SessionFactory, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._holder = process_name()
        self._leased_until = datetime.min.replace(tzinfo=UTC)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @property
    def is_held(self) -> bool:
        """Return whether this process has the lease, which expires if the process was stopped."""
        return self._clock() < self._leased_until

    @property
    def is_own(self) -> ColumnElement[bool]:
        """The condition that no other process has taken the lease over."""
        return lease_is_held(SCHEDULER_LEASE, holder=self._holder)

    def start(self) -> None:
        """Acquire the lease if it is free, and renew it, or try again, until it is released."""
        self._renew()
        self._thread.start()

    def release(self) -> None:
        """Stop the renewals, and let another process have the lease."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with transaction(self._sessions) as session:
            release_lease(session, SCHEDULER_LEASE, holder=self._holder, now=self._clock())

    def _keep(self) -> None:
        while not self._stopping.wait(LEASE_RENEWAL_SECONDS):
            try:
                self._renew()
            except DatabaseUnavailableError as error:
                log.debug("the scheduler's lease was not renewed: %s", error.message)
            except Exception:
                # It runs out if this goes on; another process then takes over.
                log.exception("the scheduler's lease was not renewed; retrying")

    def _renew(self) -> None:
        now, was_held = self._clock(), self.is_held
        with transaction(self._sessions) as session:
            has_lease = acquire_lease(
                session, SCHEDULER_LEASE, holder=self._holder, now=now, duration=LEASE_DURATION
            )
        self._leased_until = now + LEASE_DURATION if has_lease else now
        if has_lease != was_held:
            log.info(
                "scheduler %s",
                "is active" if has_lease else "is on standby: another process has the lease",
            )
