"""Fixtures of tests of the marketplace."""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import true
from sqlalchemy.orm import Session

import marketplace.costs.unbilled
from core.db import SessionFactory
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from marketplace.budgets.tasks import BudgetTasks
from tests.cast import FrozenClock
from tests.unit.marketplace.verifying import Verifying
from timeseries.store import Store


@pytest.fixture
def own_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every tenant pay 2.50 for an hour of its own H100."""

    def price_of(
        _session: Session, _tenant_id: str, gpu_model: str, _at: datetime
    ) -> Decimal | None:
        return Decimal("2.50") if "H100" in gpu_model else None

    monkeypatch.setattr(marketplace.costs.unbilled, "price_of", price_of)


MakeTasks = Callable[..., BudgetTasks]


@pytest.fixture
def make_tasks(sessions: SessionFactory, clock: FrozenClock) -> MakeTasks:
    """Return the tasks with some settings, on the test's clock."""

    def tasks_with(**settings: Any) -> BudgetTasks:  # noqa: ANN401 - settings of any type
        context = SchedulerContext(
            sessions=sessions,
            clock=clock,
            listening_since=clock.now,
            is_active=lambda: True,
            has_lease=true(),
            is_stopping=lambda: False,
            run_soon=lambda _task: None,
        )
        return BudgetTasks(ServerSettings(**settings), context)

    return tasks_with


@pytest.fixture
def portal(sessions: SessionFactory, store: Store, clock: FrozenClock, tmp_path: Path) -> Verifying:
    """A portal that verifies appliances, simulated ones, too."""
    settings = ServerSettings(
        data_dir=tmp_path, marketplace=True, verification_accepts_simulated=True
    )
    return Verifying(sessions, store, clock, settings)
