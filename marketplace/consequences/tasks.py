"""The periodic task of consequences."""

import logging
from collections.abc import Sequence

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.consequences.standing import evaluate, forget_events, providers_to_judge

log = logging.getLogger(__name__)

# Of providers in one transaction, which is short.
BATCH = 20


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
        """Take the steps that follow for providers now, in short transactions."""
        context = self._context
        with transaction(context.sessions) as session:
            idents = providers_to_judge(session)
        for start in range(0, len(idents), BATCH):
            if context.is_stopping():
                return
            with transaction(context.sessions) as session:
                for ident in idents[start : start + BATCH]:
                    if evaluate(session, ident, now=context.clock(), mail_url=self._mail_url):
                        log.info("the standing of provider %s changed", ident)

    def forget_standing_events(self) -> None:
        """Delete what nobody looks at any more."""
        with transaction(self._context.sessions) as session:
            forget_events(session, now=self._context.clock())
