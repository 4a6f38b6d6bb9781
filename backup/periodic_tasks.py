"""The periodic task that makes backups."""

from collections.abc import Sequence

from backup.making import make_backup
from backup.runs import take_due
from core.db import transaction
from core.errors import ConfigurationError, UnavailableError
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from timeseries.store import Store


class BackupTasks:
    """Makes backups when they are due or requested."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext, store: Store) -> None:
        self._settings = settings
        self._context = context
        self._store = store

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [PeriodicTask(self.make_backups, 5)]

    def make_backups(self) -> None:
        """Make the backup that is due, if one is."""
        context = self._context
        with transaction(context.sessions) as session:
            run = take_due(session, self._settings, now=context.clock())
        if run is None:
            return
        try:
            make_backup(
                self._settings,
                context.sessions,
                self._store,
                run.id,
                clock=context.clock,
                is_stopping=context.is_stopping,
            )
        except ConfigurationError as error:
            # The scheduler logs it without a traceback.
            raise UnavailableError(error.message) from error
