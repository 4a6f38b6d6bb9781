"""The periodic tasks of service levels."""

import logging
from collections.abc import Sequence

from core.periodic_tasks import PeriodicTask, SchedulerContext
from marketplace.service_levels.credits import settle
from marketplace.service_levels.detection import detect
from timeseries.store import Store

log = logging.getLogger(__name__)


class ServiceLevelTasks:
    """Finds what providers did not keep, and credits it."""

    def __init__(self, context: SchedulerContext, store: Store) -> None:
        self._context = context
        self._store = store

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.detect_breaches, 300),
            PeriodicTask(self.settle_breaches, 3600),
        ]

    def detect_breaches(self) -> None:
        """Record the promises that were not kept."""
        count = detect(self._context.sessions, self._store, now=self._context.clock())
        if count:
            log.info("recorded %d breaches of service levels", count)

    def settle_breaches(self) -> None:
        """Credit what was not kept, once its costs are final."""
        settle(self._context.sessions, now=self._context.clock())
