"""The periodic tasks of rules, alerts and their notifications."""

from collections.abc import Mapping, Sequence

from alerting.charts.pictures import AlertPictures
from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.late_samples import LateEvaluation
from alerting.evaluation.reminders import send_reminders
from alerting.evaluation.rounds import Rounds
from alerting.notification.maintenance_windows import add_occurrences
from alerting.notification.outbox_workers import OutboxWorkers
from alerting.notification.senders.alertmanager import AlertmanagerSender, repeat_alerts
from alerting.notification.senders.chat import ChatSender
from alerting.notification.senders.events import EventSender
from alerting.notification.senders.notify import EmailSender, Sender, WebhookSender
from alerting.notification.senders.opsgenie import OpsgenieSender
from alerting.notification.senders.pagerduty import PagerDutySender
from alerting.notification.senders.paging import PagingClient
from alerting.notification.senders.paging_addresses import convert_addresses
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from alerting.rules.actions import Handler, run_actions
from alerting.rules.pack import offer_rules
from alerting.rules.platform_rules import copy_platform_rules
from alerting.states import ActionKind, ReceiverKind
from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.secretbox import SecretBox
from core.settings import ServerSettings
from tenants.lifecycle.message_budgets import MessageBudgets
from timeseries.store import Store


class AlertTasks:
    """Evaluates rules, and sends what follows from it.

    Args:
        settings: of the server.
        context: the scheduler.
        store: has the samples.
        handlers: carry out the actions of rules.
    """

    def __init__(
        self,
        settings: ServerSettings,
        context: SchedulerContext,
        store: Store,
        *,
        handlers: Mapping[ActionKind, Handler],
    ) -> None:
        self._settings = settings
        self._context = context
        self._handlers = handlers
        self._box = SecretBox.of(settings)
        self._public_url = settings.resolved_public_url
        policy = AddressPolicy(allowed=settings.webhook_networks)
        webhooks = WebhookSender(settings.webhook_timeout_seconds, box=self._box, policy=policy)
        client = WebhookClient(settings.webhook_timeout_seconds, policy=policy)
        self._alertmanagers = AlertmanagerSender(webhooks, clock=context.clock)
        senders: dict[ReceiverKind, Sender] = {
            ReceiverKind.EMAIL: EmailSender(
                settings.smtp_url,
                settings.mail_from,
                picture_of=AlertPictures(context.sessions, store, context.clock).of,
            ),
            ReceiverKind.WEBHOOK: webhooks,
            ReceiverKind.CHAT: ChatSender(box=self._box),
            ReceiverKind.ALERTMANAGER: self._alertmanagers,
            ReceiverKind.PAGERDUTY: PagerDutySender(
                PagingClient("PagerDuty", client, box=self._box)
            ),
            ReceiverKind.EVENTS: EventSender(
                settings.webhook_timeout_seconds,
                box=self._box,
                policy=policy,
                source=self._public_url,
            ),
            ReceiverKind.OPSGENIE: OpsgenieSender(PagingClient("Opsgenie", client, box=self._box)),
        }
        evaluator = Evaluator(
            sessions=context.sessions,
            store=store,
            public_url=self._public_url,
            listening_since=context.listening_since,
            delay_seconds=settings.evaluation_delay_seconds,
            may_record=context.is_active,
            fence=context.has_lease,
        )
        self._late = LateEvaluation(evaluator)
        self._rounds = Rounds(
            evaluator,
            tick_seconds=settings.evaluation_interval_seconds,
            on_notifications=self._send_soon,
        )
        self._outbox = OutboxWorkers(
            context.sessions,
            senders,
            clock=context.clock,
            may_send=context.is_active,
            budgets=MessageBudgets.of(settings),
        )

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        notification_seconds = self._settings.notification_interval_seconds
        return [
            PeriodicTask(self.evaluate_rules, self._settings.evaluation_interval_seconds),
            PeriodicTask(self.run_actions, notification_seconds),
            PeriodicTask(self.send_notifications, notification_seconds),
            PeriodicTask(self.evaluate_late, 15),
            PeriodicTask(self.add_maintenance, 15),
            PeriodicTask(self.send_reminders, 15),
            PeriodicTask(self.repeat_alerts, 60),
            PeriodicTask(self.offer_rules, 60, runs_at_start=True),
            PeriodicTask(self.convert_addresses, 3600, runs_at_start=True),
        ]

    def close(self) -> None:
        """Stop the threads of evaluation and delivery."""
        self._rounds.close()
        self._outbox.close()

    def evaluate_rules(self) -> None:
        """Evaluate the rules that are due."""
        self._rounds.tick(now=self._context.clock())

    def evaluate_late(self) -> None:
        """Evaluate rules for samples that arrived after their windows had been evaluated."""
        if self._late.run(now=self._context.clock()):
            self._send_soon()

    def run_actions(self) -> None:
        """Carry out what rules do when their alerts fire."""
        context = self._context
        run_actions(
            context.sessions, self._handlers, clock=context.clock, may_act=context.is_active
        )

    def send_notifications(self) -> None:
        """Deliver the notifications that are due."""
        self._outbox.start_due()

    def _send_soon(self) -> None:
        self._context.run_soon(self.send_notifications)

    def add_maintenance(self) -> None:
        """Add the silences of maintenance windows."""
        with transaction(self._context.sessions) as session:
            add_occurrences(session, now=self._context.clock())

    def repeat_alerts(self) -> None:
        """Post the alerts that fire to Alertmanagers, which forget them otherwise."""
        now = self._context.clock()
        repeat_alerts(self._context.sessions, self._alertmanagers, now=now)

    def send_reminders(self) -> None:
        """Queue repeated and escalated notifications."""
        now = self._context.clock()
        send_reminders(self._context.sessions, now=now, public_url=self._public_url)

    def offer_rules(self) -> None:
        """Add the rule pack and the platform's rules to tenants that don't have them yet."""
        now, url = self._context.clock(), self._public_url
        with transaction(self._context.sessions) as session:
            if self._settings.rule_pack:
                offer_rules(session, now=now, public_url=url)
            copy_platform_rules(session, now=now, public_url=url)

    def convert_addresses(self) -> None:
        """Convert chat receivers of paging services, which earlier versions accepted."""
        convert_addresses(self._context.sessions, self._box)
