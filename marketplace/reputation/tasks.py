"""The periodic task of reputations."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.reputation.refresh import refresh_reputations
from timeseries.store import Store

log = logging.getLogger(__name__)


class ReputationTasks:
    """Measures providers, and lets placement know."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext, store: Store) -> None:
        self._half_life = timedelta(days=settings.reputation_half_life_days)
        self._context = context
        self._store = store

    def table(self) -> Sequence[PeriodicTask]:
        """Return the task."""
        return [PeriodicTask(self.refresh_reputations, 3600, runs_at_start=True)]

    def refresh_reputations(self) -> None:
        """Bring evidence, reputations and their history up to date."""
        context = self._context
        count = refresh_reputations(
            context.sessions,
            self._store,
            now=context.clock(),
            half_life=self._half_life,
            is_stopping=context.is_stopping,
        )
        log.debug("brought the reputation of %d providers up to date", count)
