"""The periodic task of consequences."""

import logging
from collections.abc import Sequence

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.consequences.standing import evaluate, forget_events, providers_to_judge

log = logging.getLogger(__name__)


class ConsequenceTasks:
    """Lets the operator's policy follow the evidence."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._context = context
        self._mail_url = settings.resolved_public_url if settings.smtp_url else ""

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.judge_providers, 300),
            PeriodicTask(self.forget_standing_events, 86_400),
        ]

    def judge_providers(self) -> None:
        """Take the steps that follow for providers now, each in a transaction of its own."""
        context = self._context
        with transaction(context.sessions) as session:
            idents = providers_to_judge(session)
        for ident in idents:
            if context.is_stopping():
                return
            with transaction(context.sessions) as session:
                if evaluate(session, ident, now=context.clock(), mail_url=self._mail_url):
                    log.info("the standing of provider %s changed", ident)

    def forget_standing_events(self) -> None:
        """Delete what nobody looks at any more."""
        with transaction(self._context.sessions) as session:
            forget_events(session, now=self._context.clock())
