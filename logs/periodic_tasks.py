"""The periodic tasks of logs."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from jobqueue.logs.log_files import LogFiles
from logs.packing import bound_files, index_job_logs, pack_lines, sweep_lines

log = logging.getLogger(__name__)


class LogTasks:
    """Moves lines into files, and deletes what is too old or too much."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._settings = settings
        self._context = context
        self._files = LogFiles(settings.resolved_log_url)

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.pack_lines, 60),
            PeriodicTask(self.index_job_logs, 30),
            PeriodicTask(self.sweep_lines, 3600),
        ]

    def pack_lines(self) -> None:
        """Move lines of appliances into files, and bound those of each tenant."""
        sessions, settings, now = self._context.sessions, self._settings, self._context.clock()
        pack_lines(sessions, self._files, now=now)
        deleted = bound_files(
            sessions,
            self._files,
            max_bytes=settings.max_appliance_log_bytes_per_tenant,
            max_age=timedelta(days=settings.appliance_log_retention_days),
            now=now,
        )
        if deleted:
            log.info("deleted %d files of appliances' logs that were too old or too many", deleted)

    def index_job_logs(self) -> None:
        """Write the files that searches read for logs of jobs that have ended."""
        index_job_logs(
            self._context.sessions,
            self._files,
            now=self._context.clock(),
            is_stopping=self._context.is_stopping,
        )

    def sweep_lines(self) -> None:
        """Delete files that nothing names."""
        sweep_lines(self._context.sessions, self._files, now=self._context.clock())
