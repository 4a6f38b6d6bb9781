"""Periodic tasks: threads that repeat a step until the agent stops, with backoff after failures."""

import logging
from collections.abc import Callable
from random import Random
from threading import Event, Thread

from collector.errors import PortalRefusedError, PortalUnreachableError

log = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
MAX_SECONDS = 20.0
# A refused agent needs an admin, so it doesn't have to retry three times a minute.
MAX_REFUSED_SECONDS = 300.0
CRASH_WAIT_SECONDS = 5.0
REFUSED = frozenset({401, 403})
WARN_EVERY_FAILURES = 4


class Backoff:
    """Exponential backoff with jitter, so that a fleet does not return all at once."""

    def __init__(self, *, random: Random | None = None) -> None:
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self.failures = 0

    def next_seconds(self, *, at_least: float | None = None, is_refused: bool = False) -> float:
        """Count a failure and return how long to wait.

        Args:
            at_least: the shortest wait, as from Retry-After.
            is_refused: whether the server rejects this agent; raises the limit.
        """
        max_seconds = MAX_REFUSED_SECONDS if is_refused else MAX_SECONDS
        doubled = FIRST_SECONDS * 2.0 ** min(self.failures, 16)
        self.failures += 1
        jittered = min(max_seconds, doubled) * self._random.uniform(0.5, 1.0)
        return max(jittered, at_least or 0.0)

    def reset(self) -> None:
        """Start over after a success."""
        self.failures = 0


class PeriodicTask:
    """Repeats `step`, which returns the seconds to wait; a failed step is repeated with backoff.

    Args:
        name: of the thread.
        step: called repeatedly.
        stop: ends the task.
        wake: ends the wait for the next step when it is set; the step clears it.
        on_end: called once at the end, in the thread.
        is_polling: whether a step may take long. The thread is a daemon, so that a long poll does
            not delay the end of the agent.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        *,
        stop: Event,
        wake: Event | None = None,
        on_end: Callable[[], None] = lambda: None,
        is_polling: bool = False,
    ) -> None:
        self._name = name
        self._step = step
        self._stop = stop
        self._wake = wake or stop
        self._on_end = on_end
        self.is_polling = is_polling
        self._backoff = Backoff()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the thread to end."""
        if self._stop.is_set():
            self._wake.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.wait(self._run_step())
        finally:
            self._on_end()

    def _run_step(self) -> float:
        try:
            wait_seconds = self._step()
        except PortalUnreachableError as error:
            self._warn(error.message)
            return self._backoff.next_seconds(at_least=error.retry_after_seconds)
        except PortalRefusedError as error:
            self._warn(error.message)
            return self._backoff.next_seconds(is_refused=error.http_status in REFUSED)
        except Exception:
            log.exception("%s failed, next try in %.0f s", self._name, CRASH_WAIT_SECONDS)
            return CRASH_WAIT_SECONDS
        self._backoff.reset()
        return wait_seconds

    def _warn(self, message: str) -> None:
        if self._backoff.failures % WARN_EVERY_FAILURES == 0:
            log.warning("%s: %s", self._name, message)
