"""The scheduler: every loop of the cloud side, run by APScheduler in the process with the lease.

Several processes may start a scheduler; the one that holds the lease works, the others wait.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

from apscheduler.schedulers.background import BackgroundScheduler

from alerting.addresses import AddressPolicy
from alerting.evaluation import evaluate_rules
from alerting.notify import EmailSender, Sender, WebhookSender
from alerting.outbox import drain_outbox
from alerting.quota_mails import tell_admins
from alerting.states import ReceiverKind
from cli.composition import Cloud
from cli.outage_alert import tell_operators
from core.clock import Clock, to_ns, utc_now
from core.db import transaction
from core.errors import UnavailableError
from core.leases import acquire_lease, release_lease
from core.secretbox import SecretBox
from core.settings import ServerSettings
from jobqueue.dispatch import dispatch
from jobqueue.sweep import sweep_attempts
from tenants.audit import Actor, acting
from tenants.customers.pruning import prune
from tenants.customers.removal_work import Remover, work_removals
from tenants.customers.usage import file_bytes, measure_storage, note_usage
from tenants.customers.warnings import note_crossings
from tenants.fleet.appliances import sweep_appliances
from tenants.fleet.events import prune_events
from timeseries.store import Resolution

log = logging.getLogger(__name__)

LEASE_NAME = "scheduler"
SCHEDULER = Actor(name="scheduler", via="scheduler")
LEASE_DURATION = timedelta(seconds=15)
LEASE_RENEWAL_SECONDS = 5.0
SWEEP_SECONDS = 5.0
ROLL_UP_SECONDS = 60.0
RETENTION_SECONDS = 3600.0
REMOVAL_SECONDS = 5.0
USAGE_SECONDS = 900.0
SECOND_USAGE_SECONDS = 90.0
PRUNING_SECONDS = 600.0
OUTAGE_SECONDS = 15.0


class Scheduler:
    """Runs the loops while this process holds the lease."""

    def __init__(self, cloud: Cloud, *, clock: Clock = utc_now) -> None:
        self._cloud = cloud
        self._clock = clock
        self._sessions = acting(cloud.sessions, SCHEDULER, clock=clock)
        self._holder = f"{socket.gethostname()}:{os.getpid()}"[-64:]
        self._is_active = False
        settings = cloud.settings
        self._listening_since = clock()
        self._stopping = threading.Event()
        self._senders: dict[ReceiverKind, Sender] = {
            ReceiverKind.EMAIL: EmailSender(settings.smtp_url, settings.mail_from),
            ReceiverKind.WEBHOOK: WebhookSender(
                settings.webhook_timeout_seconds,
                box=SecretBox.of(settings),
                policy=AddressPolicy(allowed=settings.webhook_networks),
            ),
        }
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"max_instances": 1, "coalesce": True}
        )

    def start(self) -> None:
        """Take the lease if it is free, and start the loops."""
        self._renew_lease()
        self._scheduler.add_job(self._renew_lease, "interval", seconds=LEASE_RENEWAL_SECONDS)
        for loop, seconds in self._loops(self._cloud.settings):
            self._scheduler.add_job(self._run, "interval", args=(loop,), seconds=seconds)
        self._scheduler.add_job(self._run, args=(self.measure_usage,))
        # A new portal has its first samples by then: a quarter of an hour of zeros would be long.
        soon = utc_now() + timedelta(seconds=SECOND_USAGE_SECONDS)
        self._scheduler.add_job(self._run, "date", run_date=soon, args=(self.measure_usage,))
        self._scheduler.start()

    def stop(self) -> None:
        """Let the running loops end, and give the lease back."""
        self._stopping.set()
        self._scheduler.shutdown(wait=True)
        with transaction(self._sessions) as session:
            release_lease(session, LEASE_NAME, holder=self._holder, now=self._clock())

    def roll_up(self) -> None:
        """Bring the roll-ups up to date: a job of every minute."""
        self._cloud.store.roll_up(now_ns=to_ns(self._clock()))

    def expire_samples(self) -> None:
        """Roll up, then delete what is older than its retention: a job of every hour.

        What is deleted is in the roll-ups before; where that fails, nothing is deleted.
        """
        self.roll_up()
        settings, store, now = self._cloud.settings, self._cloud.store, self._clock()
        kept_days = {
            Resolution.RAW: settings.sample_retention_days,
            Resolution.MINUTE: settings.minute_retention_days,
            Resolution.HOUR: settings.hour_retention_days,
        }
        for resolution, days in kept_days.items():
            store.delete_before(to_ns(now - timedelta(days=days)), resolution=resolution)

    def expire_events(self) -> None:
        """Delete events of appliances that are older than their retention: a job of every hour."""
        before = self._clock() - timedelta(days=self._cloud.settings.event_retention_days)
        pruned = 1
        while pruned:
            with transaction(self._sessions) as session:
                pruned = prune_events(session, before=before)

    def tell_of_outage(self) -> None:
        """Tell the operators once that the brake on mass outages holds."""
        settings = self._cloud.settings
        sender = EmailSender(settings.smtp_url, settings.mail_from)
        tell_operators(
            self._sessions, sender if settings.smtp_url else None,
            public_url=settings.resolved_public_url, now=self._clock(),
        )  # fmt: skip

    def remove_tenants(self) -> None:
        """Export and delete the tenants that are to be removed."""
        work_removals(
            Remover(
                sessions=self._sessions,
                store=self._cloud.store,
                folder=self._cloud.settings.exports_dir,
                clock=self._clock,
                is_stopping=self._stopping.is_set,
            )
        )

    def measure_usage(self) -> None:
        """Note what every tenant uses: a job of every quarter of an hour."""
        store_bytes = file_bytes(self._cloud.settings.resolved_timeseries_url)
        now = self._clock()
        storage = measure_storage(self._cloud.store, store_bytes=store_bytes, now=now)
        with transaction(self._sessions) as session:
            note_usage(session, storage, now=now)
        self._warn_of_quotas()

    def _warn_of_quotas(self) -> None:
        """Mail tenants' admins about quotas that are nearly used up, where there is a server."""
        settings, now = self._cloud.settings, self._clock()
        if not settings.smtp_url:
            return
        with transaction(self._sessions) as session:
            crossings = note_crossings(
                session, default_max_series=settings.max_series_per_tenant or None, now=now
            )
            tell_admins(session, crossings, public_url=settings.resolved_public_url, now=now)

    def prune(self) -> None:
        """Delete what is of no more use."""
        with transaction(self._sessions) as session:
            counts = prune(session, now=self._clock())
        for name, count in counts.items():
            if count:
                log.info("pruned %d %s", count, name)

    def _loops(self, settings: ServerSettings) -> list[tuple[Callable[[], object], float]]:
        return [
            (self._place_jobs, settings.placement_interval_seconds),
            (self._evaluate_rules, settings.evaluation_interval_seconds),
            (self._send_notifications, settings.notification_interval_seconds),
            (self._sweep, SWEEP_SECONDS),
            (self.roll_up, ROLL_UP_SECONDS),
            (self.expire_samples, RETENTION_SECONDS),
            (self.remove_tenants, REMOVAL_SECONDS),
            (self.measure_usage, USAGE_SECONDS),
            (self.prune, PRUNING_SECONDS),
            (self.expire_events, RETENTION_SECONDS),
            (self.tell_of_outage, OUTAGE_SECONDS),
        ]

    def _run(self, loop: Callable[[], object]) -> None:
        if not self._is_active:
            return
        try:
            loop()
        except UnavailableError as error:
            log.warning("%s: %s; tried again at the next turn", loop.__name__, error.message)
        except Exception:
            log.exception("%s failed; tried again at the next turn", loop.__name__)

    def _renew_lease(self) -> None:
        with transaction(self._sessions) as session:
            has_lease = acquire_lease(
                session, LEASE_NAME, holder=self._holder, now=self._clock(),
                duration=LEASE_DURATION,
            )  # fmt: skip
        if has_lease != self._is_active:
            log.info("scheduler %s", "is active" if has_lease else "waits: another one is active")
        self._is_active = has_lease

    def _place_jobs(self) -> None:
        with transaction(self._sessions) as session:
            dispatch(session, now=self._clock())

    def _evaluate_rules(self) -> None:
        cloud = self._cloud
        evaluate_rules(
            self._sessions, cloud.store, now=self._clock(),
            public_url=cloud.settings.resolved_public_url,
            listening_since=self._listening_since,
        )  # fmt: skip

    def _send_notifications(self) -> None:
        drain_outbox(self._sessions, self._senders, now=self._clock())

    def _sweep(self) -> None:
        settings = self._cloud.settings
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
