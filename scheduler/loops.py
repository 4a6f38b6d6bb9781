"""The scheduler runs the portal's periodic tasks with APScheduler.

Packages declare their tasks in a module `periodic_tasks`. Several processes may start a scheduler;
only the one with the lease runs the tasks.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta

from apscheduler.job import Job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from prometheus_client import Counter, Gauge, Histogram

from alerting.periodic_tasks import AlertTasks
from backup.periodic_tasks import BackupTasks
from core.background import repeated
from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.errors import DatabaseUnavailableError, OverloadedError, UnavailableError
from core.periodic_tasks import PeriodicTask, SchedulerContext, Task
from core.settings import ServerSettings
from dash_app.periodic_tasks import ReportTasks
from datasets.periodic_tasks import DatasetTasks
from jobqueue.periodic_tasks import JobTasks
from logs.periodic_tasks import LogTasks
from marketplace.periodic_tasks import market_tasks
from scheduler.alert_actions import HANDLERS
from scheduler.lease import SchedulerLease
from scheduler.placement import PlacementThread
from scheduler.portal_tasks import PortalTasks
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.periodic_tasks import TenantTasks
from timeseries.store import Store

log = logging.getLogger(__name__)

SCHEDULER = Actor(name="scheduler", via="scheduler")
CLOCK_CHECK_SECONDS = 5.0
# The first runs are up to a second later than the interval.
CLOCK_TOLERANCE = timedelta(seconds=5)
# After the database was busy, which is a matter of seconds.
RETRY_AFTER = timedelta(seconds=5)
SECOND_USAGE_SECONDS = 90.0
IS_ACTIVE = Gauge("vedette_scheduler_active", "1 while this process has the scheduler's lease.")
TASK_SECONDS = Histogram(
    "vedette_task_seconds",
    "Time that runs of periodic tasks took, of place_jobs the placement.",
    ["task"],
    buckets=(0.01, 0.1, 0.5, 2, 10, 60),
)
TASK_FAILURES = Counter("vedette_task_failures", "Runs of periodic tasks that failed.", ["task"])
TASK_SUCCEEDED_AT = Gauge(
    "vedette_task_last_success_timestamp_seconds",
    "When a periodic task last succeeded in this process.",
    ["task"],
)


class _Background(BackgroundScheduler):  # type: ignore[misc] # APScheduler ships no types
    """APScheduler's thread, which also ends well when a task that runs once is due as it stops."""

    def remove_job(self, job_id: str, jobstore: str | None = None) -> None:
        """Remove a job; one that is gone because the scheduler is stopping is no error."""
        with suppress(JobLookupError):
            super().remove_job(job_id, jobstore)


class Scheduler:
    """Runs the periodic tasks while this process has the lease."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        sessions: SessionFactory,
        store: Store,
        clock: Clock = utc_now,
    ) -> None:
        acting_sessions = acting(sessions, SCHEDULER, clock=clock)
        self._lease = SchedulerLease(acting_sessions, clock)
        IS_ACTIVE.set_function(lambda: self.is_active)
        self._stopping = threading.Event()
        self._watches = ExitStack()
        context = SchedulerContext(
            sessions=acting_sessions,
            clock=clock,
            listening_since=clock(),
            is_active=lambda: self.is_active,
            has_lease=self._lease.is_own,
            is_stopping=self._stopping.is_set,
            run_soon=self._run_soon,
        )
        self._placement = PlacementThread(
            context,
            interval_seconds=settings.placement_interval_seconds,
            run=self.run,
            stopping=self._stopping,
        )
        self._alerts = AlertTasks(settings, context, store, handlers=HANDLERS)
        self._jobs = JobTasks(settings, context, store)
        data = DatasetTasks(settings, context)
        portal = PortalTasks(
            settings,
            context,
            store,
            delete_images=self._jobs.delete_images,
            delete_data=data.delete_data,
        )
        self.tasks: dict[str, PeriodicTask] = {
            task.name: task
            for table in (
                self._alerts.table(),
                self._jobs.table(),
                LogTasks(settings, context).table(),
                portal.table(),
                ReportTasks(context, store, public_url=settings.resolved_public_url).table(),
                TenantTasks(settings, context).table(),
                BackupTasks(settings, context, store).table(),
                data.table(),
                market_tasks(settings, context, store),
            )
            for task in table
        }
        self._scheduler = _Background(
            timezone="UTC", job_defaults={"max_instances": 1, "coalesce": True}
        )

    def place_jobs(self) -> None:
        """Place the waiting jobs once, whether or not the tasks have started."""
        self._placement.place_jobs()

    @property
    def is_active(self) -> bool:
        """Whether this process has the lease."""
        return self._lease.is_held

    def start(self) -> None:
        """Acquire the lease if it is free, and start the tasks."""
        self._lease.start()
        for number, task in enumerate(self.tasks.values()):
            # Never two at the same moment of a second: together they delay requests the most.
            first_seconds = task.every_seconds + number / len(self.tasks)
            self._scheduler.add_job(
                self.run,
                "interval",
                args=(task.run,),
                seconds=task.every_seconds,
                start_date=utc_now() + timedelta(seconds=first_seconds),
            )
            if task.runs_at_start:
                self._scheduler.add_job(self.run, args=(task.run,))
        # A new portal has its first samples by then: show its usage before the next interval.
        soon = utc_now() + timedelta(seconds=SECOND_USAGE_SECONDS)
        usage = self.tasks["measure_usage"].run
        self._scheduler.add_job(self.run, "date", run_date=soon, args=(usage,))
        self._scheduler.start()
        self._placement.start()
        self._watches.enter_context(
            repeated(
                lambda: self.follow_clock(utc_now()),
                every_seconds=CLOCK_CHECK_SECONDS,
                name="clock",
            )
        )

    def stop(self) -> None:
        """Wait for the running tasks, and release the lease."""
        self._stopping.set()
        self._watches.close()
        self._scheduler.shutdown(wait=True)
        self._placement.join()
        self._alerts.close()
        self._jobs.close()
        self._lease.release()

    def follow_clock(self, now: datetime) -> None:
        """Run the tasks whose next run is further away than their interval: the clock was set back.

        APScheduler plans runs by the clock, and would wait until it is as late again.
        """
        for job in self._scheduler.get_jobs():
            interval, next_at = getattr(job.trigger, "interval", None), job.next_run_time
            if interval and next_at and next_at > now + interval + CLOCK_TOLERANCE:
                with suppress(JobLookupError):  # it is stopping
                    job.modify(next_run_time=now)

    def next_run_at(self, task: Task) -> datetime | None:
        """Return when a task runs next."""
        return next((job.next_run_time for job in self._jobs_of(task)), None)

    def run(self, task: Task) -> None:
        """Run a task now if this process has the lease, and log what goes wrong."""
        if not self.is_active:
            return
        try:
            with _measured(task.__name__):
                task()
        except DatabaseUnavailableError as error:
            # `core.db.transaction` has logged why.
            log.debug("%s: %s", task.__name__, error.message)
            self._retry_soon(task)
        except (UnavailableError, OverloadedError) as error:
            log.warning("%s: %s; retrying at the next interval", task.__name__, error.message)
        except Exception:
            log.exception("%s failed; retrying at the next interval", task.__name__)

    def _retry_soon(self, task: Task) -> None:
        """Bring a task's next run forward: the interval of some is an hour."""
        soon = utc_now() + RETRY_AFTER
        for job in self._jobs_of(task):
            if job.next_run_time is not None and job.next_run_time > soon:
                job.modify(next_run_time=soon)

    def _jobs_of(self, task: Task) -> list[Job]:
        return [job for job in self._scheduler.get_jobs() if job.args == (task,)]

    def _run_soon(self, task: Task) -> None:
        """Run a task now, not at the end of its interval."""
        for job in self._jobs_of(task):
            with suppress(JobLookupError):  # it is stopping
                job.modify(next_run_time=utc_now())


@contextmanager
def _measured(task: str) -> Iterator[None]:
    """Measure a run of a task."""
    started = time.perf_counter()
    try:
        yield
    except Exception:
        TASK_FAILURES.labels(task).inc()
        raise
    finally:
        TASK_SECONDS.labels(task).observe(time.perf_counter() - started)
    TASK_SUCCEEDED_AT.labels(task).set_to_current_time()
