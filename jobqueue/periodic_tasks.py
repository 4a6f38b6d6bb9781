"""The periodic tasks of the job queue, but for placement, which runs all the time."""

import logging
from collections.abc import Sequence

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.secretbox import SecretBox
from core.settings import ServerSettings
from jobqueue.advice.runner import AdviceRunner, request_due
from jobqueue.advice.service import expire_dismissals
from jobqueue.fairshare.usage import charge_ended, tenants_to_charge
from jobqueue.gangs.members import sweep_networks
from jobqueue.images.catalog import delete_namespace, sync
from jobqueue.images.registry import Registry
from jobqueue.images.tokens import RegistryTokens
from jobqueue.jobs.idle_limits import stop_idle_jobs
from jobqueue.jobs.settings import settings_of
from jobqueue.logs.log_files import LogFiles, bound_tenants, move_logs, sweep_files
from jobqueue.queue.pending import make_forecasts, settle_forecasts, tenants_with_forecasts
from jobqueue.queue.retention import expire_history, expire_jobs
from jobqueue.queue.schedule_runs import submit_due
from jobqueue.results.artifacts import expire_results
from jobqueue.services.autoscaling.evaluation import scale_services
from jobqueue.services.autoscaling.traffic import sweep_traffic
from jobqueue.services.rolling_updates import advance_updates
from jobqueue.simulation.runner import SimulationRunner
from jobqueue.simulation.service import expire_simulations
from jobqueue.usage.ledger import record_usage
from timeseries.store import Store

log = logging.getLogger(__name__)


class JobTasks:
    """Submits, updates, stops and deletes jobs when it is time."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext, store: Store) -> None:
        self._settings = settings
        self._context = context
        self._store = store
        self._files = LogFiles(settings.resolved_log_url)
        self._box = SecretBox.of(settings)
        self._registry = Registry(settings, RegistryTokens(settings), context.clock)
        self._simulations = SimulationRunner(context.sessions, settings.resolved_database_url)
        self._advice = AdviceRunner(
            context.sessions,
            settings.resolved_database_url,
            weeks=settings.fleet_advice_weeks,
        )

    def close(self) -> None:
        """End the processes of simulations and of fleet advice."""
        self._simulations.close()
        self._advice.close()

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        images = [PeriodicTask(self.sync_images, 600)] if self._settings.registry_url else []
        return [
            *images,
            PeriodicTask(self.advance_updates, 2),
            PeriodicTask(self.scale_services, 2),
            PeriodicTask(self.run_simulations, 2),
            PeriodicTask(self.compute_advice, 5),
            PeriodicTask(self.request_advice, 600, runs_at_start=True),
            PeriodicTask(self.submit_scheduled, 5),
            PeriodicTask(self.stop_idle_jobs, 30),
            PeriodicTask(self.record_usage, 60),
            PeriodicTask(self.charge_usage, 60),
            PeriodicTask(self.forecast_starts, 300),
            PeriodicTask(self.move_logs, 30),
            PeriodicTask(self.sweep_log_files, 3600),
            PeriodicTask(self.expire_jobs, 3600),
            PeriodicTask(self.sweep_networks, 600),
            PeriodicTask(self.expire_service_history, 3600),
            PeriodicTask(self.expire_results, 3600),
        ]

    def advance_updates(self) -> None:
        """Take the next step of rolling updates of services."""
        with transaction(self._context.sessions) as session:
            advance_updates(session, now=self._context.clock())

    def scale_services(self) -> None:
        """Change the number of instances of services that scale, where it is due."""
        sessions, context = self._context.sessions, self._context
        scale_services(sessions, self._store, now=context.clock(), is_stopping=context.is_stopping)

    def expire_service_history(self) -> None:
        """Delete what is old of services that scale: attempts, events, counts of requests."""
        expired = 1
        while expired and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                expired = expire_history(session, now=self._context.clock())
        with transaction(self._context.sessions) as session:
            sweep_traffic(session, now=self._context.clock())

    def run_simulations(self) -> None:
        """Start simulations, and store how far they are."""
        self._simulations.step(self._context.clock())

    def compute_advice(self) -> None:
        """Compute the figures of fleet advice, a tenant at a time."""
        self._advice.step(self._context.clock())

    def request_advice(self) -> None:
        """Let the figures be computed that were not since the last night."""
        now = self._context.clock()
        with transaction(self._context.sessions) as session:
            request_due(session, now=now)
            expire_dismissals(session, now=now)

    def submit_scheduled(self) -> None:
        """Submit the jobs of schedules that are due."""
        count = 1
        while count and not self._context.is_stopping():
            # One at a time: each may be an array, or replace one.
            with transaction(self._context.sessions) as session:
                count = submit_due(session, box=self._box, now=self._context.clock(), limit=1)

    def sweep_networks(self) -> None:
        """Release the numbers of the networks of gangs that have ended."""
        with transaction(self._context.sessions) as session:
            sweep_networks(session, now=self._context.clock())

    def stop_idle_jobs(self) -> None:
        """Stop the jobs whose GPUs were idle for the time of their limit."""
        stop_idle_jobs(self._context.sessions, self._store, now=self._context.clock())

    def record_usage(self) -> None:
        """Append what jobs used of GPUs to the usage ledger, and check earlier hours."""
        appended = record_usage(self._context.sessions, self._store, now=self._context.clock())
        if appended:
            log.info("appended %d rows to the usage ledger", appended)

    def charge_usage(self) -> None:
        """Add what ended attempts used to the usage that fair shares are computed from."""
        sessions, now = self._context.sessions, self._context.clock()
        with transaction(sessions) as session:
            tenant_ids = tenants_to_charge(session)
        for tenant_id in tenant_ids:
            count = 1
            while count and not self._context.is_stopping():
                with transaction(sessions) as session:
                    half_life = settings_of(session, tenant_id).ordering.half_life
                    count = charge_ended(session, tenant_id, half_life=half_life, now=now)

    def forecast_starts(self) -> None:
        """Store when waiting jobs are expected to start, and compare that with what happened."""
        sessions, now = self._context.sessions, self._context.clock()
        with transaction(sessions) as session:
            tenant_ids = tenants_with_forecasts(session)
        for tenant_id in tenant_ids:
            if self._context.is_stopping():
                return
            with transaction(sessions) as session:
                settle_forecasts(session, tenant_id, now=now)
            # Planning a long queue takes a while: nobody's writes wait for it.
            with transaction(sessions) as session:
                forecasts = make_forecasts(session, tenant_id, now=now)
            with transaction(sessions) as session:
                session.add_all(forecasts)

    def move_logs(self) -> None:
        """Move the logs of ended attempts to files, and bound those of each tenant."""
        sessions, now = self._context.sessions, self._context.clock()
        move_logs(sessions, self._files, now=now, is_stopping=self._context.is_stopping)
        with transaction(sessions) as session:
            deleted = bound_tenants(session, max_bytes=self._settings.max_log_bytes_per_tenant)
        if deleted:
            log.info("deleted %d logs of tenants with more than they may have", deleted)

    def sweep_log_files(self) -> None:
        """Delete files of logs whose attempts or jobs were deleted."""
        sweep_files(self._context.sessions, self._files)

    def expire_jobs(self) -> None:
        """Delete ended jobs that are older than their retention, and old simulations."""
        with transaction(self._context.sessions) as session:
            expire_simulations(session, now=self._context.clock())
        days, expired = self._settings.job_retention_days, 1
        while expired and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                expired = expire_jobs(session, retention_days=days, now=self._context.clock())

    def expire_results(self) -> None:
        """Delete results of ended jobs that are older than their tenant retains them."""
        expired = 1
        while expired and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                expired = expire_results(session, now=self._context.clock())

    def sync_images(self) -> None:
        """Compare the list of images with the registry, whose notifications may be lost."""
        changed = sync(
            self._context.sessions,
            self._registry,
            shared_namespace=self._settings.registry_shared_namespace,
            now=self._context.clock(),
        )
        if changed:
            log.info("%d images differed from the registry", changed)

    def delete_images(self, namespace: str) -> None:
        """Delete the images of a tenant that is removed."""
        if self._settings.registry_url:
            delete_namespace(self._registry, namespace)
