"""The periodic tasks of the marketplace and of billing."""

from collections.abc import Sequence

from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.budgets.tasks import BudgetTasks


def market_tasks(settings: ServerSettings, context: SchedulerContext) -> Sequence[PeriodicTask]:
    """Return the tasks of all parts of the marketplace."""
    return [*BudgetTasks(settings, context).table()]
