"""The scheduler continues: on a busy database, an overloaded store, a clock that was set back.

It stops at any moment.
"""

import logging
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from apscheduler.executors.base import BaseExecutor
from apscheduler.job import Job
from apscheduler.schedulers.base import BaseScheduler
from sqlalchemy import Engine

from core.clock import utc_now
from core.db import SessionFactory
from core.errors import OverloadedError
from core.settings import ServerSettings
from scheduler.loops import RETRY_AFTER, Scheduler
from tests.fixtures.writers import written_by_another
from timeseries.store import Store


@pytest.fixture
def scheduler(tmp_path: Path, sessions: SessionFactory, store: Store) -> Iterator[Scheduler]:
    running = Scheduler(ServerSettings(data_dir=tmp_path), sessions=sessions, store=store)
    running.start()
    yield running
    running.stop()


def test_a_task_that_finds_the_database_busy_runs_again_within_seconds(
    engine: Engine, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    task = scheduler.tasks["prune"].run
    before_at = scheduler.next_run_at(task)
    assert before_at is not None
    assert before_at > utc_now() + timedelta(minutes=1)
    with written_by_another(engine), caplog.at_level(logging.WARNING, "scheduler.loops"):
        scheduler.run(task)
    after_at = scheduler.next_run_at(task)
    assert after_at is not None
    assert after_at <= utc_now() + RETRY_AFTER
    assert all(record.exc_info is None for record in caplog.records)


def test_a_task_that_finds_the_store_overloaded_is_a_warning_without_a_traceback(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    def record_fleet() -> None:
        raise OverloadedError("The store is overloaded.")

    with caplog.at_level(logging.WARNING, "scheduler.loops"):
        scheduler.run(record_fleet)
    (record,) = caplog.records
    assert "The store is overloaded." in record.message
    assert record.exc_info is None


def test_tasks_run_on_when_the_clock_was_set_back(scheduler: Scheduler) -> None:
    prune = scheduler.tasks["prune"]
    planned_at = scheduler.next_run_at(prune.run)
    assert planned_at is not None
    scheduler.follow_clock(utc_now())
    assert scheduler.next_run_at(prune.run) == planned_at

    scheduler.follow_clock(utc_now() - timedelta(seconds=1.5 * prune.every_seconds))
    next_at = scheduler.next_run_at(prune.run)
    assert next_at is not None
    assert next_at < planned_at


def test_a_scheduler_that_is_stopped_while_it_starts_a_task_ends_without_an_error(
    tmp_path: Path, sessions: SessionFactory, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would end with a traceback, which pytest reports as an error of the test."""
    starting, stopping = threading.Event(), list[BaseScheduler]()
    submit, shutdown = BaseExecutor.submit_job, BaseScheduler.shutdown

    def submit_late(self: BaseExecutor, job: Job, run_times: list[datetime]) -> None:
        starting.set()
        while not stopping or stopping[0].running:
            time.sleep(0.001)
        submit(self, job, run_times)

    def begin_to_stop(self: BaseScheduler, wait: bool = True) -> None:  # noqa: FBT001, FBT002 - as the library calls it
        stopping.append(self)
        shutdown(self, wait)

    monkeypatch.setattr(BaseExecutor, "submit_job", submit_late)
    monkeypatch.setattr(BaseScheduler, "shutdown", begin_to_stop)
    stopped = Scheduler(ServerSettings(data_dir=tmp_path), sessions=sessions, store=store)
    stopped.start()
    assert starting.wait(60)
    stopped.stop()
