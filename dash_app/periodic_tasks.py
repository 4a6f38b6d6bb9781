"""The periodic tasks of saved reports."""

from collections.abc import Sequence

from core.periodic_tasks import PeriodicTask, SchedulerContext
from dash_app.reports.emails import delete_files, email_due
from timeseries.store import Store


class ReportTasks:
    """Emails saved reports, and deletes their files later."""

    def __init__(self, context: SchedulerContext, store: Store, *, public_url: str) -> None:
        self._context = context
        self._store = store
        self._public_url = public_url

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.email_reports, 15),
            PeriodicTask(self.delete_report_files, 600),
        ]

    def email_reports(self) -> None:
        """Queue the emails of the saved reports that are due."""
        context = self._context
        email_due(context.sessions, self._store, public_url=self._public_url, now=context.clock())

    def delete_report_files(self) -> None:
        """Delete the files of reports that were delivered."""
        delete_files(self._context.sessions, now=self._context.clock())
