"""Periodic tasks: what packages declare, and what the scheduler tells their tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement

from core.clock import Clock
from core.db import SessionFactory

Task = Callable[[], object]


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A function that the scheduler calls again and again; its name is shown in the log.

    Attributes:
        run: the function; what it returns is ignored.
        every_seconds: the interval.
        runs_at_start: whether it also runs when the scheduler starts.
    """

    run: Task
    every_seconds: float
    runs_at_start: bool = False

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerContext:
    """The scheduler as its tasks see it.

    Attributes:
        sessions: whose changes the audit log attributes to the scheduler.
        clock: returns the current time.
        listening_since: when this process began to serve agents.
        is_active: whether this process has the lease; it may lose it meanwhile.
        has_lease: the same as a condition that the database checks.
        is_stopping: whether a long task should end early.
        run_soon: lets a task run now, not at the end of its interval.
    """

    sessions: SessionFactory
    clock: Clock
    listening_since: datetime
    is_active: Callable[[], bool]
    has_lease: ColumnElement[bool]
    is_stopping: Callable[[], bool]
    run_soon: Callable[[Task], None]
