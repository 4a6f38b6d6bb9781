"""The periodic tasks that several packages share in."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from alerting.notification.notices import add_notice
from alerting.notification.quota_emails import email_admins
from alerting.notification.senders.notify import EmailSender
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from alerting.rules.platform_rules import forget_tenant
from alerting.rules.service import needed_fields
from core.clock import to_ns
from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.secretbox import SecretBox
from core.settings import ServerSettings
from datasets.parts import PartStore
from jobqueue.dispatch.appliance_lifecycle import (
    lose_attempts_at,
    move_overdue,
    stop_unrented,
    sweep_attempts,
)
from jobqueue.jobs.end_notices import take_end_notices, take_preemption_notices
from jobqueue.jobs.quarantine import order_probes
from jobqueue.logs.log_files import LogFiles
from marketplace.invoices.leaving import unsettled
from scheduler.bucket_parts import sweep_bucket_parts
from scheduler.event_webhooks import prune_events, queue_events
from scheduler.fleet_samples import fleet_points, write_fleet
from scheduler.outage_email import email_operators
from tenants.fleet.liveness import sweep_appliances
from tenants.lifecycle.message_budgets import MessageBudgets
from tenants.lifecycle.quota_warnings import update_quota_warnings
from tenants.lifecycle.removal_worker import Remover, run_removals
from tenants.lifecycle.usage import file_bytes, measure_storage, store_usage
from tenants.models import FillingQuota
from tenants.reporting_hosts import sweep_reporting_hosts
from timeseries.store import Resolution, Store

log = logging.getLogger(__name__)

BUCKET_SECONDS = 10.0


class PortalTasks:
    """Watches the fleet, and looks after samples and tenants.

    Args:
        settings: of the server.
        context: the scheduler.
        store: has the samples.
        delete_images: deletes the images of a tenant that is removed.
        delete_data: deletes its uploads and results.
    """

    def __init__(
        self,
        settings: ServerSettings,
        context: SchedulerContext,
        store: Store,
        *,
        delete_images: Callable[[str], None],
        delete_data: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._context = context
        self._store = store
        self._delete_images = delete_images
        self._delete_data = delete_data
        self._budgets = MessageBudgets.of(settings)

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.sweep, 5),
            PeriodicTask(self.remove_tenants, 5),
            PeriodicTask(self.record_fleet, 15),
            PeriodicTask(self.report_outage, 15),
            PeriodicTask(self.notify_ends, self._settings.notification_interval_seconds),
            PeriodicTask(self.queue_events, self._settings.notification_interval_seconds),
            PeriodicTask(self.maintain_samples, 300),
            PeriodicTask(self.measure_usage, 900, runs_at_start=True),
            PeriodicTask(self.expire_samples, 3600),
            PeriodicTask(self.prune_events, 3600),
            PeriodicTask(self.sweep_bucket_parts, 3600),
        ]

    def sweep_bucket_parts(self) -> None:
        """Delete results from tenants' buckets, once nothing refers to them."""
        policy = AddressPolicy(allowed=self._settings.webhook_networks)
        sweep_bucket_parts(
            self._context.sessions,
            WebhookClient(BUCKET_SECONDS, policy=policy),
            SecretBox.of(self._settings),
            now=self._context.clock(),
            is_stopping=self._context.is_stopping,
        )

    def maintain_samples(self) -> None:
        """Move settled samples into files, in a store that does so."""
        with transaction(self._context.sessions) as session:
            needed = needed_fields(session)
        self._store.maintain(now_ns=to_ns(self._context.clock()), needed=needed)

    def expire_samples(self) -> None:
        """Delete samples and roll-ups older than their retention, after moving settled samples.

        If they can't be moved, nothing is deleted: their roll-ups come with the files.
        """
        self.maintain_samples()
        settings, store, now = self._settings, self._store, self._context.clock()
        retention_days = {
            Resolution.RAW: settings.sample_retention_days,
            Resolution.FIVE_MINUTES: settings.five_minute_retention_days,
            Resolution.HOUR: settings.hour_retention_days,
        }
        for resolution, days in retention_days.items():
            store.delete_before(to_ns(now - timedelta(days=days)), resolution=resolution)

    def record_fleet(self) -> None:
        """Write what the portal knows of appliances and queues as samples."""
        with transaction(self._context.sessions) as session:
            points = fleet_points(session, budgets=self._budgets, now=self._context.clock())
        write_fleet(self._store, points)

    def sweep(self) -> None:
        """Notice which appliances are silent, and what that means for their jobs."""
        settings = self._settings
        with transaction(self._context.sessions) as session:
            sweep_appliances(
                session,
                now=self._context.clock(),
                stale_after=timedelta(seconds=settings.stale_after_seconds),
                unreachable_after=timedelta(seconds=settings.unreachable_after_seconds),
                lost_after=timedelta(seconds=settings.lost_after_seconds),
                listening_since=self._context.listening_since,
            )
            sweep_reporting_hosts(
                session,
                silent_after=timedelta(seconds=settings.silent_after_seconds),
                now=self._context.clock(),
                listening_since=self._context.listening_since,
            )
            sweep_attempts(session, now=self._context.clock())
            move_overdue(session, now=self._context.clock())
            stop_unrented(session, now=self._context.clock())
            order_probes(session, now=self._context.clock())

    def notify_ends(self) -> None:
        """Add the notices of jobs that have ended, or were preempted, to the outbox."""
        now, url = self._context.clock(), self._settings.resolved_public_url
        with transaction(self._context.sessions) as session:
            for notice in (*take_end_notices(session), *take_preemption_notices(session, now=now)):
                payload = {"subject": notice.subject, "text": notice.text}
                payload |= {"link": f"{url}{notice.path}", "link_name": "Job"}
                if not add_notice(
                    session,
                    notice.tenant_id,
                    payload,
                    address=notice.address,
                    receiver=notice.receiver,
                    now=now,
                ):
                    log.warning("%s: receiver %r is gone", notice.path, notice.receiver)

    def queue_events(self) -> None:
        """Add events to the outbox for the webhooks that asked for them."""
        url = self._settings.resolved_public_url
        with transaction(self._context.sessions) as session:
            queue_events(session, public_url=url, now=self._context.clock())

    def prune_events(self) -> None:
        """Delete old messages of events."""
        pruned = 1
        while pruned and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                pruned = prune_events(session, now=self._context.clock())

    def report_outage(self) -> None:
        """Email the operators once about a mass outage."""
        settings = self._settings
        sender = EmailSender(settings.smtp_url, settings.mail_from)
        email_operators(
            self._context.sessions,
            sender if settings.smtp_url else None,
            public_url=settings.resolved_public_url,
            now=self._context.clock(),
        )

    def remove_tenants(self) -> None:
        """Export and delete the tenants that are scheduled for removal."""
        run_removals(
            Remover(
                sessions=self._context.sessions,
                store=self._store,
                logs=LogFiles(self._settings.resolved_log_url),
                folder=self._settings.exports_dir,
                delete_images=self._delete_images,
                delete_data=self._delete_data_of,
                publish=self._publish_export,
                forget=forget_tenant,
                waits_for=lambda session, ident: unsettled(
                    session, ident, now=self._context.clock()
                ),
                clock=self._context.clock,
                is_stopping=self._context.is_stopping,
            )
        )

    def _delete_data_of(self, tenant_id: str) -> None:
        """Delete a tenant's data, and end what others run on its appliances, whose rows go next."""
        with transaction(self._context.sessions) as session:
            lose_attempts_at(session, tenant_id, now=self._context.clock())
        self._delete_data(tenant_id)

    def _publish_export(self, path: Path) -> None:
        """Move an export to the store of data, if that is not a folder of this host alone."""
        if self._settings.data_url:
            PartStore(self._settings).put_export(path)

    def measure_usage(self) -> None:
        """Measure and store the usage of every tenant, and warn about quotas."""
        store_bytes = file_bytes(self._settings.resolved_timeseries_url)
        now = self._context.clock()
        storage = measure_storage(self._store, store_bytes=store_bytes, now=now)
        with transaction(self._context.sessions) as session:
            store_usage(session, storage, now=now)
        self._warn_of_quotas()

    def _warn_of_quotas(self) -> None:
        """Email tenants' admins about quotas that are nearly used up, if SMTP is configured."""
        settings, now = self._settings, self._context.clock()
        if not settings.smtp_url:
            return
        defaults = {
            FillingQuota.SERIES: settings.max_series_per_tenant,
            FillingQuota.MEASUREMENTS: settings.max_measurements_per_tenant,
            FillingQuota.FIELDS: settings.max_fields_per_tenant,
        }
        with transaction(self._context.sessions) as session:
            crossings = update_quota_warnings(session, defaults=defaults, now=now)
            email_admins(session, crossings, public_url=settings.resolved_public_url, now=now)
