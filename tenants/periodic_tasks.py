"""The periodic tasks of tenants and their appliances."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from tenants.fleet.events import prune_events
from tenants.fleet.rollout_progress import advance_rollouts
from tenants.lifecycle.pruning import BATCH, KINDS, prune

log = logging.getLogger(__name__)


class TenantTasks:
    """Carries out rollouts of agents, and deletes what is obsolete."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._settings = settings
        self._context = context

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.advance_rollouts, 10),
            PeriodicTask(self.prune, 600),
            PeriodicTask(self.expire_events, 3600),
        ]

    def advance_rollouts(self) -> None:
        """Start the next updates of agents, and pause rollouts that fail."""
        with transaction(self._context.sessions) as session:
            advance_rollouts(session, now=self._context.clock())

    def prune(self) -> None:
        """Delete expired sessions, tokens and other obsolete rows."""
        context = self._context
        for kind in KINDS:
            count = BATCH
            while count >= BATCH and not context.is_stopping():
                with transaction(context.sessions) as session:
                    count = prune(session, now=context.clock(), kinds=[kind])[kind.name]
                if count:
                    log.info("pruned %d %s", count, kind.name)

    def expire_events(self) -> None:
        """Delete events of appliances that are older than their retention."""
        before = self._context.clock() - timedelta(days=self._settings.event_retention_days)
        pruned = 1
        while pruned:
            with transaction(self._context.sessions) as session:
                pruned = prune_events(session, before=before)
