"""The periodic tasks of logs."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from alerting.notification.senders.webhooks import AddressPolicy
from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.secretbox import SecretBox
from core.settings import ServerSettings
from jobqueue.logs.log_files import LogFiles
from logs.forwarding.forwarder import forward_due
from logs.forwarding.queue import trim_queue
from logs.forwarding.sending import ForwardSender
from logs.packing import bound_files, index_job_logs, pack_lines, sweep_lines

log = logging.getLogger(__name__)


class LogTasks:
    """Moves lines into files, and deletes what is too old or too much."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._settings = settings
        self._context = context
        self._files = LogFiles(settings.resolved_log_url)
        self._sender = ForwardSender(
            settings.webhook_timeout_seconds,
            box=SecretBox.of(settings),
            policy=AddressPolicy(allowed=settings.webhook_networks),
        )

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.pack_lines, 60),
            PeriodicTask(self.index_job_logs, 30),
            PeriodicTask(self.forward_lines, 5),
            PeriodicTask(self.trim_queue, 60),
            PeriodicTask(self.sweep_lines, 3600),
        ]

    def forward_lines(self) -> None:
        """Forward lines to the targets that tenants chose."""
        forward_due(self._context.sessions, self._sender, now=self._context.clock())

    def trim_queue(self) -> None:
        """Delete what was forwarded, and bound what waits."""
        max_bytes = self._settings.max_forward_queue_bytes_per_tenant
        with transaction(self._context.sessions) as session:
            dropped = trim_queue(session, max_bytes=max_bytes)
        if dropped:
            log.warning("dropped %d log lines that waited to be forwarded", dropped)

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
