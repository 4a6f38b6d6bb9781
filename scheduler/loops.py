"""The scheduler runs the portal's periodic tasks with APScheduler.

Several processes may start a scheduler; only the one with the lease runs the tasks.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from apscheduler.job import Job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from alerting.charts.pictures import AlertPictures
from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.late_samples import LateEvaluation
from alerting.evaluation.reminders import send_reminders
from alerting.evaluation.rounds import Rounds
from alerting.notification.maintenance_windows import add_occurrences
from alerting.notification.notices import add_notice
from alerting.notification.outbox_workers import OutboxWorkers
from alerting.notification.quota_emails import email_admins
from alerting.notification.senders.alertmanager import AlertmanagerSender, repeat_alerts
from alerting.notification.senders.chat import ChatSender
from alerting.notification.senders.notify import EmailSender, Sender, WebhookSender
from alerting.notification.senders.opsgenie import OpsgenieSender
from alerting.notification.senders.pagerduty import PagerDutySender
from alerting.notification.senders.paging import PagingClient
from alerting.notification.senders.paging_addresses import convert_addresses
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from alerting.rules.actions import run_actions
from alerting.rules.pack import offer_rules
from alerting.rules.platform_rules import copy_platform_rules
from alerting.rules.service import needed_fields
from alerting.states import ReceiverKind
from core.clock import Clock, to_ns, utc_now
from core.db import SessionFactory, transaction
from core.errors import DatabaseUnavailableError, UnavailableError
from core.secretbox import SecretBox
from core.settings import ServerSettings
from dash_app.reports.emails import delete_files, email_due
from jobqueue.dispatch.appliance_lifecycle import sweep_attempts
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.dispatch.drains import move_overdue
from jobqueue.images.catalog import delete_namespace, sync
from jobqueue.images.registry import Registry
from jobqueue.images.tokens import RegistryTokens
from jobqueue.jobs.end_notices import take_end_notices
from jobqueue.jobs.idle_limits import stop_idle_jobs
from jobqueue.jobs.quarantine import order_probes
from jobqueue.jobs.transitions import placement_wanted
from jobqueue.logs.log_files import LogFiles, bound_tenants, move_logs, sweep_files
from jobqueue.queue.retention import expire_jobs
from jobqueue.queue.schedule_runs import submit_due
from jobqueue.services.rolling_updates import advance_updates
from jobqueue.usage.ledger import record_usage
from scheduler.alert_actions import HANDLERS
from scheduler.fleet_samples import fleet_points, write_fleet
from scheduler.lease import SchedulerLease
from scheduler.outage_email import email_operators
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.fleet.events import prune_events
from tenants.fleet.liveness import sweep_appliances
from tenants.lifecycle.message_budgets import MessageBudgets
from tenants.lifecycle.pruning import BATCH, KINDS, prune
from tenants.lifecycle.quota_warnings import update_quota_warnings
from tenants.lifecycle.removal_worker import Remover, run_removals
from tenants.lifecycle.usage import file_bytes, measure_storage, store_usage
from tenants.models import FillingQuota
from timeseries.store import Resolution, Store

log = logging.getLogger(__name__)

SCHEDULER = Actor(name="scheduler", via="scheduler")
# After the database was busy, which is a matter of seconds.
RETRY_AFTER = timedelta(seconds=5)
SECOND_USAGE_SECONDS = 90.0
# What is submitted meanwhile is placed together.
PLACEMENT_PAUSE_SECONDS = 0.05

Task = Callable[[], object]


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
        self._settings = settings
        self._store = store
        self._clock = clock
        self._sessions = acting(sessions, SCHEDULER, clock=clock)
        self._lease = SchedulerLease(self._sessions, clock)
        self._listening_since = clock()
        self._stopping = threading.Event()
        self._placement_wanted = threading.Event()
        self._placing = threading.Thread(target=self._place_forever, name="placement", daemon=True)
        self._box = box = SecretBox.of(self._settings)
        policy = AddressPolicy(allowed=self._settings.webhook_networks)
        timeout_seconds = self._settings.webhook_timeout_seconds
        webhooks = WebhookSender(timeout_seconds, box=box, policy=policy)
        client = WebhookClient(timeout_seconds, policy=policy)
        self._alertmanagers = AlertmanagerSender(webhooks, clock=clock)
        self._senders: dict[ReceiverKind, Sender] = {
            ReceiverKind.EMAIL: EmailSender(
                self._settings.smtp_url,
                self._settings.mail_from,
                picture_of=AlertPictures(self._sessions, store, clock).of,
            ),
            ReceiverKind.WEBHOOK: webhooks,
            ReceiverKind.CHAT: ChatSender(box=box),
            ReceiverKind.ALERTMANAGER: self._alertmanagers,
            ReceiverKind.PAGERDUTY: PagerDutySender(PagingClient("PagerDuty", client, box=box)),
            ReceiverKind.OPSGENIE: OpsgenieSender(PagingClient("Opsgenie", client, box=box)),
        }
        self._dispatcher = Dispatcher(partial(transaction, self._sessions))
        evaluator = Evaluator(
            sessions=self._sessions,
            store=store,
            public_url=settings.resolved_public_url,
            listening_since=self._listening_since,
            delay_seconds=settings.evaluation_delay_seconds,
            may_record=lambda: self.is_active,
            fence=self._lease.is_own,
        )
        self._late = LateEvaluation(evaluator)
        self._rounds = Rounds(
            evaluator,
            tick_seconds=settings.evaluation_interval_seconds,
            on_notifications=self._send_soon,
        )
        self._sending: Job | None = None
        self._budgets = MessageBudgets.of(settings)
        self._outbox = OutboxWorkers(
            self._sessions,
            self._senders,
            clock=clock,
            may_send=lambda: self.is_active,
            budgets=self._budgets,
        )
        self._registry = Registry(settings, RegistryTokens(settings), clock)
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"max_instances": 1, "coalesce": True}
        )

    @property
    def is_active(self) -> bool:
        """Whether this process has the lease."""
        return self._lease.is_held

    def start(self) -> None:
        """Acquire the lease if it is free, and start the tasks."""
        self._lease.start()
        tasks = self._tasks()
        for number, (task, seconds) in enumerate(tasks):
            # Never two at the same moment of a second: together they delay requests the most.
            first_at = utc_now() + timedelta(seconds=seconds + number / len(tasks))
            job = self._scheduler.add_job(
                self.run, "interval", args=(task,), seconds=seconds, start_date=first_at
            )
            if task == self._outbox.start_due:
                self._sending = job
        for task in (self.measure_usage, self.offer_rules, self.convert_addresses):
            self._scheduler.add_job(self.run, args=(task,))
        # A new portal has its first samples by then: show its usage before the next interval.
        soon = utc_now() + timedelta(seconds=SECOND_USAGE_SECONDS)
        self._scheduler.add_job(self.run, "date", run_date=soon, args=(self.measure_usage,))
        self._scheduler.start()
        placement_wanted.connect(self._place_soon)
        self._placing.start()

    def stop(self) -> None:
        """Wait for the running tasks, and release the lease."""
        self._stopping.set()
        self._placement_wanted.set()
        self._scheduler.shutdown(wait=True)
        if self._placing.is_alive():
            self._placing.join()
        self._rounds.close()
        self._outbox.close()
        self._lease.release()

    def convert_addresses(self) -> None:
        """Convert chat receivers of paging services, which earlier versions accepted."""
        convert_addresses(self._sessions, self._box)

    def maintain_samples(self) -> None:
        """Move settled samples into files, in a store that does so."""
        with transaction(self._sessions) as session:
            needed = needed_fields(session)
        self._store.maintain(now_ns=to_ns(self._clock()), needed=needed)

    def expire_samples(self) -> None:
        """Delete samples and roll-ups older than their retention, after moving settled samples.

        If they can't be moved, nothing is deleted: their roll-ups come with the files.
        """
        self.maintain_samples()
        settings, store, now = self._settings, self._store, self._clock()
        retention_days = {
            Resolution.RAW: settings.sample_retention_days,
            Resolution.FIVE_MINUTES: settings.five_minute_retention_days,
            Resolution.HOUR: settings.hour_retention_days,
        }
        for resolution, days in retention_days.items():
            store.delete_before(to_ns(now - timedelta(days=days)), resolution=resolution)

    def expire_events(self) -> None:
        """Delete events of appliances that are older than their retention."""
        before = self._clock() - timedelta(days=self._settings.event_retention_days)
        pruned = 1
        while pruned:
            with transaction(self._sessions) as session:
                pruned = prune_events(session, before=before)

    def expire_jobs(self) -> None:
        """Delete ended jobs that are older than their retention."""
        days, expired = self._settings.job_retention_days, 1
        while expired and not self._stopping.is_set():
            with transaction(self._sessions) as session:
                expired = expire_jobs(session, retention_days=days, now=self._clock())

    def report_outage(self) -> None:
        """Email the operators once about a mass outage."""
        settings = self._settings
        sender = EmailSender(settings.smtp_url, settings.mail_from)
        email_operators(
            self._sessions,
            sender if settings.smtp_url else None,
            public_url=settings.resolved_public_url,
            now=self._clock(),
        )

    def remove_tenants(self) -> None:
        """Export and delete the tenants that are scheduled for removal."""
        run_removals(
            Remover(
                sessions=self._sessions,
                store=self._store,
                folder=self._settings.exports_dir,
                delete_images=self._delete_images,
                clock=self._clock,
                is_stopping=self._stopping.is_set,
            )
        )

    def _delete_images(self, namespace: str) -> None:
        if self._settings.registry_url:
            delete_namespace(self._registry, namespace)

    def measure_usage(self) -> None:
        """Measure and store the usage of every tenant, and warn about quotas."""
        store_bytes = file_bytes(self._settings.resolved_timeseries_url)
        now = self._clock()
        storage = measure_storage(self._store, store_bytes=store_bytes, now=now)
        with transaction(self._sessions) as session:
            store_usage(session, storage, now=now)
        self._warn_of_quotas()

    def _warn_of_quotas(self) -> None:
        """Email tenants' admins about quotas that are nearly used up, if SMTP is configured."""
        settings, now = self._settings, self._clock()
        if not settings.smtp_url:
            return
        defaults = {
            FillingQuota.SERIES: settings.max_series_per_tenant,
            FillingQuota.MEASUREMENTS: settings.max_measurements_per_tenant,
            FillingQuota.FIELDS: settings.max_fields_per_tenant,
        }
        with transaction(self._sessions) as session:
            crossings = update_quota_warnings(session, defaults=defaults, now=now)
            email_admins(session, crossings, public_url=settings.resolved_public_url, now=now)

    def move_logs(self) -> None:
        """Move the logs of ended attempts to files, and bound those of each tenant."""
        files, now = LogFiles(self._settings.resolved_log_url), self._clock()
        move_logs(self._sessions, files, now=now, is_stopping=self._stopping.is_set)
        with transaction(self._sessions) as session:
            deleted = bound_tenants(session, max_bytes=self._settings.max_log_bytes_per_tenant)
        if deleted:
            log.info("deleted %d logs of tenants with more than they may have", deleted)

    def sweep_log_files(self) -> None:
        """Delete files of logs whose attempts or jobs were deleted."""
        sweep_files(self._sessions, LogFiles(self._settings.resolved_log_url))

    def prune(self) -> None:
        """Delete expired sessions, tokens and other obsolete rows."""
        for kind in KINDS:
            count = BATCH
            while count >= BATCH and not self._stopping.is_set():
                with transaction(self._sessions) as session:
                    count = prune(session, now=self._clock(), kinds=[kind])[kind.name]
                if count:
                    log.info("pruned %d %s", count, kind.name)
        delete_files(self._sessions, now=self._clock())

    def _tasks(self) -> list[tuple[Task, float]]:
        """Return the periodic tasks with their intervals in seconds."""
        settings = self._settings
        images = [(self.sync_images, 600.0)] if settings.registry_url else []
        return [
            *images,
            (self.advance_updates, 2),
            (self._evaluate_rules, settings.evaluation_interval_seconds),
            (self.run_actions, settings.notification_interval_seconds),
            (self.notify_ends, settings.notification_interval_seconds),
            (self._outbox.start_due, settings.notification_interval_seconds),
            (self._sweep, 5),
            (self.record_fleet, 15),
            (self.evaluate_late, 15),
            (self.offer_rules, 60),
            (self.add_maintenance, 15),
            (self.repeat_alerts, 60),
            (self.send_reminders, 15),
            (self.email_reports, 15),
            (self.remove_tenants, 5),
            (self.report_outage, 15),
            (self.submit_scheduled, 5),
            (self.stop_idle_jobs, 30),
            (self.maintain_samples, 300),
            (self.record_usage, 60),
            (self.move_logs, 30),
            (self.prune, 600),
            (self.sweep_log_files, 3600),
            (self.measure_usage, 900),
            (self.expire_samples, 3600),
            (self.convert_addresses, 3600),
            (self.expire_events, 3600),
            (self.expire_jobs, 3600),
        ]

    def next_run_at(self, task: Task) -> datetime | None:
        """Return when a task runs next."""
        return next((job.next_run_time for job in self._jobs_of(task)), None)

    def run(self, task: Task) -> None:
        """Run a task now if this process has the lease, and log what goes wrong."""
        if not self.is_active:
            return
        try:
            task()
        except DatabaseUnavailableError as error:
            log.warning("%s: %s", task.__name__, error.message)
            self._retry_soon(task)
        except UnavailableError as error:
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

    def _place_soon(self, _sender: object) -> None:
        """Place jobs now, not at the end of the interval. Other processes' jobs wait for that."""
        self._placement_wanted.set()

    def _place_forever(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self.run(self.place_jobs)
            # As long again as it took, so that many small submissions leave time for the rest.
            pause_seconds = max(PLACEMENT_PAUSE_SECONDS, time.monotonic() - began)
            if not self._stopping.wait(pause_seconds):
                self._placement_wanted.wait(self._settings.placement_interval_seconds)
                self._placement_wanted.clear()

    def place_jobs(self) -> None:
        """Place waiting jobs, in as many cycles as a long queue takes."""
        while self.is_active and not self._stopping.is_set():
            self._dispatcher.cycle(now=self._clock())
            if not self._dispatcher.is_behind:
                break

    def advance_updates(self) -> None:
        """Take the next step of rolling updates of services."""
        with transaction(self._sessions) as session:
            advance_updates(session, now=self._clock())

    def sync_images(self) -> None:
        """Compare the list of images with the registry, whose notifications may be lost."""
        changed = sync(
            self._sessions,
            self._registry,
            shared_namespace=self._settings.registry_shared_namespace,
            now=self._clock(),
        )
        if changed:
            log.info("%d images differed from the registry", changed)

    def record_usage(self) -> None:
        """Append what jobs used of GPUs to the usage ledger, and check earlier hours."""
        appended = record_usage(self._sessions, self._store, now=self._clock())
        if appended:
            log.info("appended %d rows to the usage ledger", appended)

    def submit_scheduled(self) -> None:
        """Submit the jobs of schedules that are due."""
        box, count = SecretBox.of(self._settings), 1
        while count and not self._stopping.is_set():
            # One at a time: each may be an array, or replace one.
            with transaction(self._sessions) as session:
                count = submit_due(session, box=box, now=self._clock(), limit=1)

    def notify_ends(self) -> None:
        """Add the notices of jobs that have ended to the outbox."""
        now, url = self._clock(), self._settings.resolved_public_url
        with transaction(self._sessions) as session:
            for notice in take_end_notices(session):
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

    def stop_idle_jobs(self) -> None:
        """Stop the jobs whose GPUs were idle for the time of their limit."""
        stop_idle_jobs(self._sessions, self._store, now=self._clock())

    def _evaluate_rules(self) -> None:
        self._rounds.tick(now=self._clock())

    def evaluate_late(self) -> None:
        """Evaluate rules for samples that arrived after their windows had been evaluated."""
        if self._late.run(now=self._clock()):
            self._send_soon()

    def run_actions(self) -> None:
        """Carry out what rules do when their alerts fire."""
        run_actions(self._sessions, HANDLERS, clock=self._clock, may_act=lambda: self.is_active)

    def _send_soon(self) -> None:
        """Send new notifications now, not at the end of the interval."""
        if self._sending is not None:
            with suppress(JobLookupError):  # it is stopping
                self._sending.modify(next_run_time=utc_now())

    def add_maintenance(self) -> None:
        """Add the silences of maintenance windows."""
        with transaction(self._sessions) as session:
            add_occurrences(session, now=self._clock())

    def repeat_alerts(self) -> None:
        """Post the alerts that fire to Alertmanagers, which forget them otherwise."""
        repeat_alerts(self._sessions, self._alertmanagers, now=self._clock())

    def send_reminders(self) -> None:
        """Queue repeated and escalated notifications."""
        url = self._settings.resolved_public_url
        send_reminders(self._sessions, now=self._clock(), public_url=url)

    def email_reports(self) -> None:
        """Queue the emails of the saved reports that are due."""
        url = self._settings.resolved_public_url
        email_due(self._sessions, self._store, public_url=url, now=self._clock())

    def record_fleet(self) -> None:
        """Write what the portal knows of appliances and queues as samples."""
        with transaction(self._sessions) as session:
            points = fleet_points(session, budgets=self._budgets, now=self._clock())
        write_fleet(self._store, points)

    def offer_rules(self) -> None:
        """Add the rule pack and the platform's rules to tenants that don't have them yet."""
        with transaction(self._sessions) as session:
            url = self._settings.resolved_public_url
            if self._settings.rule_pack:
                offer_rules(session, now=self._clock(), public_url=url)
            copy_platform_rules(session, now=self._clock(), public_url=url)

    def _sweep(self) -> None:
        settings = self._settings
        with transaction(self._sessions) as session:
            sweep_appliances(
                session,
                now=self._clock(),
                stale_after=timedelta(seconds=settings.stale_after_seconds),
                unreachable_after=timedelta(seconds=settings.unreachable_after_seconds),
                lost_after=timedelta(seconds=settings.lost_after_seconds),
                listening_since=self._listening_since,
            )
            sweep_attempts(session, now=self._clock())
            move_overdue(session, now=self._clock())
            order_probes(session, now=self._clock())
