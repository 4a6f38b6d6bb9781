"""The periodic tasks of verification."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.verification.answer_checks import answer_findings, slowed_findings
from marketplace.verification.compliance import notify_expiring
from marketplace.verification.findings import Finding, note
from marketplace.verification.orders import Policy, order_due
from marketplace.verification.sample_checks import sample_findings
from marketplace.verification.service import (
    Answer,
    answers_to_check,
    check_due,
    give_up_due,
    settle_answer,
    slowed_together,
)
from tenants.models import Challenge, ChallengeOutcome
from timeseries.store import Store, StoreUnavailableError

log = logging.getLogger(__name__)

# How long challenges are stored.
RETENTION = timedelta(days=400)


class VerificationTasks:
    """Checks inventories, orders challenges, and decides what their answers mean."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext, store: Store) -> None:
        self._policy = Policy.of(settings)
        self._context = context
        self._store = store

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.verify_appliances, 15),
            PeriodicTask(self.warn_of_expiry, 3600),
            PeriodicTask(self.delete_old_challenges, 24 * 3600),
        ]

    def verify_appliances(self) -> None:
        """Check what is due, and order what is due."""
        context, policy = self._context, self._policy
        for step in (give_up_due, check_due, order_due):
            with transaction(context.sessions) as session:
                count = step(session, policy, now=context.clock())
            if count:
                log.info("%s: %d appliances", step.__name__, count)
        with transaction(context.sessions) as session:
            answers = answers_to_check(session, now=context.clock())
        for answer in answers:
            if context.is_stopping():
                return
            self._settle(answer)

    def warn_of_expiry(self) -> None:
        """Email providers about compliance facts that expire soon."""
        with transaction(self._context.sessions) as session:
            notify_expiring(session, self._policy.mail_url, now=self._context.clock())

    def delete_old_challenges(self) -> None:
        """Delete challenges that are no evidence any more."""
        is_over = Challenge.outcome != ChallengeOutcome.OPEN
        is_old = Challenge.ordered_at < self._context.clock() - RETENTION
        old = delete(Challenge).where(is_over, is_old)
        with transaction(self._context.sessions) as session:
            session.execute(old, execution_options={"synchronize_session": False})

    def _settle(self, answer: Answer) -> None:
        context = self._context
        findings = self._findings(answer) if answer.result.answer is not None else []
        with transaction(context.sessions) as session:
            outcome = settle_answer(session, answer, findings, self._policy, now=context.clock())
        log.info("the challenge of %s has %s", answer.appliance_id, outcome.value)

    def _findings(self, answer: Answer) -> list[Finding]:
        findings = answer_findings(
            answer.order,
            answer.result,
            answer.inventory,
            ordered_at=answer.ordered_at,
            answered_at=answer.answered_at,
        )
        with transaction(self._context.sessions) as session:
            together = slowed_together(session, answer)
        if together:
            findings += slowed_findings(together[0][1], [name for name, _ in together])
        try:
            findings += sample_findings(
                self._store,
                answer.tenant_id,
                answer.appliance_id,
                gpu_uuids=answer.order.gpu_uuids,
                busy=(answer.ordered_at, answer.answered_at),
            )
        except StoreUnavailableError as error:
            findings.append(note("samples_not_checked", f"Its samples were not checked: {error}"))
        return findings
