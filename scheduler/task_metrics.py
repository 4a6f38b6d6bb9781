"""Metrics of the scheduler: whether it is active, and how its tasks go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram

IS_ACTIVE = Gauge("vedette_scheduler_active", "1 while this process has the scheduler's lease.")
TASK_SECONDS = Histogram(
    "vedette_task_seconds",
    "Time that runs of periodic tasks took, of place_jobs the placement.",
    ["task"],
    buckets=(0.01, 0.1, 0.5, 2, 10, 60),
)
TASK_FAILURES = Counter("vedette_task_failures", "Runs of periodic tasks that failed.", ["task"])
TASK_SUCCEEDED_AT = Gauge(
    "vedette_task_last_success_timestamp_seconds",
    "When a periodic task last succeeded in this process.",
    ["task"],
)


@contextmanager
def measured(task: str) -> Iterator[None]:
    """Measure a run of a task."""
    started = time.perf_counter()
    try:
        yield
    except Exception:
        TASK_FAILURES.labels(task).inc()
        raise
    finally:
        TASK_SECONDS.labels(task).observe(time.perf_counter() - started)
    TASK_SUCCEEDED_AT.labels(task).set_to_current_time()
